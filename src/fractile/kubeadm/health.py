"""Checks whether the kube-scheduler of this node runs as its manifest says and is healthy.

The old process answers until kubelet has ended it, so an answer alone proves nothing. Kubelet starts the process with
the manifest's own command line, and every configuration has a unique name, so a process with exactly that command line
is the new one. The same process must be healthy for some seconds: one that cannot read its configuration exits
immediately and is restarted again and again.

Failure rule: closed. What cannot be observed counts as unhealthy; ``waited`` says why. Each request is limited to
``_TIMEOUT``. The certificate is not checked, since kube-scheduler generates it for the loopback address.
"""

import http.client
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from fractile.errors import SetupError
from fractile.wire.foreign.static_pod import NAME, Manifest

STEADY = 5.0  # seconds
_STEP = 0.5
_TIMEOUT = 2.0
_LOGS = "var/log/pods"
_LOG_BYTES = 64 << 10
_LOG_LINES = 3
_CRI = re.compile(r"^\S+ (?:stdout|stderr) [FP] ")  # time, stream and tag before each line (CRI's logging format)
_FINE = re.compile(r"[IW]\d{4} ")  # klog's information and warnings
_BAD = re.compile(r"^[EF]\d{4} |\berr(or)?\b|^panic", re.IGNORECASE)


class Clock(Protocol):
    """A monotonic clock in seconds that can also sleep."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SchedulerHealth(msgspec.Struct, frozen=True):
    """``reason``: why it is not healthy; empty when it is. ``log``: its last log lines about that."""

    seconds: float
    reason: str = ""
    log: tuple[str, ...] = ()


def check_visible(proc: Path) -> None:
    """SetupError when the node's processes are not visible, so that the new one could not be found."""
    if not (proc / "1" / "cmdline").exists():
        raise SetupError(
            f"{proc} shows no processes of the node, so the command could not check whether kube-scheduler runs; mount "
            "it, or give --wait 0"
        )


def processes(proc: Path, command: tuple[str, ...]) -> frozenset[int]:
    """The processes with exactly this command line."""
    wanted = b"".join(word.encode() + b"\0" for word in command)
    found: set[int] = set()
    for path in proc.iterdir():
        if path.name.isdecimal():
            try:
                words = (path / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended
            if words == wanted:
                found.add(int(path.name))
    return frozenset(found)


def answers(host: str, port: int) -> str:
    """Why ``/healthz`` does not return 200; empty when it does. Every version serves it without authentication."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection(host, port, timeout=_TIMEOUT, context=context)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as e:
        return str(e) or type(e).__name__
    finally:
        connection.close()
    return "" if status == 200 else f"it answers {status}"


def waited(
    manifest: Manifest,
    *,
    root: Path,
    limit: float,
    clock: Clock,
    asked: Callable[[str, int], str] = answers,
) -> SchedulerHealth:
    """Wait until kube-scheduler runs and is healthy, for at most ``limit`` seconds."""
    proc = root / "proc"
    begin = clock.now()
    since, steady, seen = begin, frozenset[int](), set[int]()
    reason = ""
    while (now := clock.now()) - begin < limit:
        running = processes(proc, manifest.command)
        seen |= running
        if running != steady:
            since, steady = now, running
        reason = _unhealthy(manifest, asked) if len(running) == 1 else _why(running, seen)
        if reason:
            since = now
        elif now - since >= STEADY:
            return SchedulerHealth(now - begin)
        clock.sleep(_STEP)
    reason = reason or f"kube-scheduler has not run and been healthy for {STEADY:.0f} s in a row"
    again = f"; it was started {len(seen)} times" if len(seen) > 1 else ""
    return SchedulerHealth(clock.now() - begin, reason + again, last_words(root))


def _unhealthy(manifest: Manifest, asked: Callable[[str, int], str]) -> str:
    said = asked(manifest.host, manifest.port)
    return f"https://{manifest.host}:{manifest.port}/healthz: {said}" if said else ""


def _why(running: frozenset[int], seen: set[int]) -> str:
    if running:
        return f"{len(running)} processes run with the manifest's command line"
    if seen:
        return "kube-scheduler was started with the new command line and ended"
    return "kubelet has not started kube-scheduler with the new command line"


def last_words(root: Path) -> tuple[str, ...]:
    """The errors in the newest log of the pod's containers that has any, else the end of the newest log."""
    try:
        logs = list((root / _LOGS).glob(f"kube-system_{NAME}-*/{NAME}/*.log"))
        logs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        # All logs of the newest pod, since a process that has just restarted has not logged anything yet.
        told = [_words(path) for path in logs if path.parent == logs[0].parent]
    except OSError:
        return ()  # kubelet has removed them
    errors = [_errors(words) for words in told]
    found = [words for words in (*errors, *told) if words]
    return tuple(found[0][-_LOG_LINES:]) if found else ()


def _errors(words: list[str]) -> list[str]:
    """The lines that look like errors; versions up to 1.22 end with a line of plain text instead."""
    return [line for line in words if _BAD.search(line)] or [line for line in words if not _FINE.match(line)]


def _words(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _LOG_BYTES, 0))
        lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
    return [_CRI.sub("", line)[:300] for line in lines if line.strip()]
