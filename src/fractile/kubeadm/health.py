"""Whether the kube-scheduler of this node runs as its manifest says, and is healthy.

The old program answers until kubelet has ended it, so an answer alone proves nothing. Kubelet starts the program with
the manifest's own words, and every configuration has a name of its own: a process with exactly that command line is the
new one. It must be the same process, and healthy, for some seconds: one that cannot read its configuration ends at once
and is started again and again.

Failure rule: closed. What cannot be seen counts as not healthy; ``waited`` says why. No answer takes longer than
``_TIMEOUT``, and the certificate is not checked, since kube-scheduler makes it by itself for the loopback address.
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
    """Monotonic seconds, and waiting for some."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class SchedulerHealth(msgspec.Struct, frozen=True):
    """``reason``: why it is not healthy; empty when it is. ``log``: its last words about it."""

    seconds: float
    reason: str = ""
    log: tuple[str, ...] = ()


def check_visible(proc: Path) -> None:
    """SetupError when no processes can be seen here: nothing could be said about the new one."""
    if not (proc / "1" / "cmdline").exists():
        raise SetupError(
            f"{proc} shows no processes of the node, so nobody would notice whether kube-scheduler runs; "
            "mount it, or take --wait 0"
        )


def processes(proc: Path, command: tuple[str, ...]) -> frozenset[int]:
    """Those that were started with exactly these words."""
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
    """Empty when ``/healthz`` says yes, else why not. Every version serves it, to everybody."""
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
    """Wait until it runs and is healthy, ``limit`` seconds at most."""
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
    """Of the pod's containers: what looks like an error in the newest log that has any, else just the end of one."""
    try:
        logs = list((root / _LOGS).glob(f"kube-system_{NAME}-*/{NAME}/*.log"))
        logs.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        # Of the newest pod only; a program that has just been started again has said nothing yet.
        told = [_words(path) for path in logs if path.parent == logs[0].parent]
    except OSError:
        return ()  # kubelet has removed them
    errors = [_errors(words) for words in told]
    found = [words for words in (*errors, *told) if words]
    return tuple(found[0][-_LOG_LINES:]) if found else ()


def _errors(words: list[str]) -> list[str]:
    """Versions up to 1.22 end with a line of plain text."""
    return [line for line in words if _BAD.search(line)] or [line for line in words if not _FINE.match(line)]


def _words(log: Path) -> list[str]:
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - _LOG_BYTES, 0))
        lines = file.read(_LOG_BYTES).decode(errors="replace").splitlines()
    return [_CRI.sub("", line)[:300] for line in lines if line.strip()]
