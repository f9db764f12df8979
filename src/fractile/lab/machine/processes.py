"""Long-lived programs on this machine: started detached, identified by pid and start time, stopped only by these.

A shell writes the record of the process and then execs the program, so the record exists before the program does: `up`
may be killed at any instant, and `down` still finds everything. A pid alone is ambiguous once it is reused or after a
reboot; together with the start time (field 22 of /proc/PID/stat) and the boot id, it is unique.
Failure rule: a record that does not match a living process means "not running"; nothing is ever signalled on a guess.
"""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from fractile.errors import SetupError

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LAUNCH = """
record=$1 log=$2
shift 2
read -r boot </proc/sys/kernel/random/boot_id
read -r stat </proc/self/stat
printf '%s\\n%s\\n' "$boot" "$stat" >"$record.new" && mv -f "$record.new" "$record" || exit 1
exec >>"$log" 2>&1 </dev/null
exec "$@"
"""
_LAUNCH_TIMEOUT = 10.0


class StartedProcess(msgspec.Struct, frozen=True):
    """The identity of a process: no other process of this boot has the same pid and start time."""

    pid: int
    started: int  # clock ticks since boot


def start(argv: Sequence[str], *, record: Path, log: Path, env: Mapping[str, str]) -> StartedProcess:
    """Run ``argv`` in its own session, with output to ``log``; the process is a child of init, not ours."""
    record.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)
    command = ["setsid", "--fork", "sh", "-c", _LAUNCH, "launch", str(record), str(log), *argv]
    # Returns when the shell has moved its output to the log, which is after it wrote the record.
    done = subprocess.run(command, cwd="/", env=dict(env), capture_output=True, timeout=_LAUNCH_TIMEOUT, check=False)
    process = _read(record)
    if process is None:
        raise SetupError(f"could not start {argv[0]}: {done.stderr.decode(errors='replace').strip() or 'no record'}")
    return process


def running(record: Path) -> StartedProcess | None:
    """The recorded process, if it is still alive."""
    process = _read(record)
    return process if process is not None and alive(process) else None


def alive(process: StartedProcess) -> bool:
    """Whether exactly this process still runs; a zombie counts as ended."""
    found = _stat(process.pid)
    return found is not None and found[0] not in "ZX" and found[1] == process.started


def send(process: StartedProcess, number: int) -> bool:
    """Signal exactly this process; False when it has ended. The pidfd guards against reuse of the pid in between."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not alive(process):
            return False
        signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(descriptor)
    return True


def wait(process: StartedProcess, seconds: float) -> bool:
    """Wait until the process has ended; False when it still runs after ``seconds``."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not alive(process):
            return True
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(seconds * 1000))
    finally:
        os.close(descriptor)


def stop(process: StartedProcess, *, grace: float) -> None:
    """Send SIGTERM, then SIGKILL after ``grace`` seconds, and return when the process is gone."""
    if grace > 0 and send(process, signal.SIGTERM) and wait(process, grace):
        return
    if send(process, signal.SIGKILL) and not wait(process, 10.0):
        raise SetupError(f"process {process.pid} does not end even on SIGKILL; it hangs in the kernel, see dmesg")


def identify(pid: int) -> StartedProcess | None:
    """The identity of a living process; None when there is none with that pid."""
    found = _stat(pid)
    return None if found is None else StartedProcess(pid, found[1])


def boot_id() -> str:
    return _BOOT_ID.read_text().strip()


def _read(record: Path) -> StartedProcess | None:
    try:
        boot, stat = record.read_text().split("\n")[:2]
    except (FileNotFoundError, ValueError):
        return None
    parsed = _parse(stat)
    return StartedProcess(parsed[0], parsed[2]) if parsed is not None and boot == boot_id() else None


def _stat(pid: int) -> tuple[str, int] | None:
    try:
        parsed = _parse(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if parsed is None else parsed[1:]


def _parse(stat: str) -> tuple[int, str, int] | None:
    """Pid, state and start time of a stat line; the program's name may hold spaces and parentheses (proc(5))."""
    pid, _, rest = stat.partition(" (")
    fields = rest.rpartition(") ")[2].split()
    try:
        return int(pid), fields[0], int(fields[19])
    except (ValueError, IndexError):
        return None
