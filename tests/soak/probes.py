"""Reads what the kernel knows of Fractile's programs, and their own metrics. Changes nothing.

Failure rule: a program that is not there now, or does not answer in time, has no sample of this look.
"""

import asyncio
import contextlib
import re
import ssl
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.soak.samples import Sample

_PROC = Path("/proc")
_STATUS = re.compile(r"^(VmRSS|RssAnon|Threads):\s+(\d+)", re.M)
_SIMULATED = re.compile(r"/simgpu/state\n(?:[A-Z].*\n)*?Rss:\s+(\d+) kB$", re.M)
_TASKS = re.compile(r"^fractile_(?:control_plane|agent)_tasks(?:\{[^}]*\})? (\S+)$", re.M)
_LEDGER = re.compile(r"^fractile_ledger_pods\{[^}]*\} (\S+)$", re.M)


class Kernel(msgspec.Struct, frozen=True):
    """Of one process; memory in KiB. ``rss`` is without the state of the simulated cards, which all who ask them map:
    it keeps a list of everything that was ever allocated, and no driver of real cards has such a file.
    """

    rss: int
    anonymous: int
    threads: int
    descriptors: int


def kernel(pid: int, proc: Path = _PROC) -> Kernel | None:
    """None when there is no such process."""
    folder = proc / str(pid)
    try:
        found = {name: int(value) for name, value in _STATUS.findall((folder / "status").read_text())}
        descriptors = sum(1 for _ in (folder / "fd").iterdir())
        rss = found["VmRSS"] - simulated_cards((folder / "smaps").read_text())
        return Kernel(rss, found["RssAnon"], found["Threads"], descriptors)
    except (OSError, KeyError):
        return None


def simulated_cards(maps: str) -> int:
    """KiB of the simulated cards' state among the mappings (proc_pid_smaps(5))."""
    return sum(int(kib) for kib in _SIMULATED.findall(maps))


def sample(program: str, pid: int, page: str, *, seconds: float, entries: int | None = None) -> Sample | None:
    """``page``: its metrics, "" when it has none. Without ``entries`` those of the ledger on that page."""
    seen = kernel(pid)
    if seen is None:
        return None
    return Sample(
        seconds=round(seconds, 1),
        program=program,
        rss=seen.rss,
        anonymous=seen.anonymous,
        threads=seen.threads,
        descriptors=seen.descriptors,
        tasks=_first(_TASKS, page),
        entries=ledger_pods(page) if entries is None else entries,
    )


def ledger_pods(page: str) -> int | None:
    """Assumed and bound ones together; None for a page without a ledger."""
    found = [int(float(count)) for count in _LEDGER.findall(page)]
    return sum(found) if found else None


def _first(pattern: re.Pattern[str], page: str) -> int | None:
    found = pattern.search(page)
    return int(float(found[1])) if found else None


def children(pid: int, proc: Path = _PROC) -> Iterator[tuple[int, str]]:
    """Processes that this one has started, with their names."""
    with contextlib.suppress(OSError):
        for task in (proc / str(pid) / "task").iterdir():
            for child in (task / "children").read_text().split():
                with contextlib.suppress(OSError):
                    yield int(child), (proc / child / "comm").read_text().strip()


async def get(host: str, port: int, path: str, *, ca: Path | None = None, timeout: float = 5.0) -> str:
    """The body of a 200, over TLS with ``ca``; "" for anything else."""
    tls = ssl.create_default_context(cafile=str(ca)) if ca is not None else None
    writer = None
    try:
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(host, port, ssl=tls)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    except (OSError, TimeoutError):
        return ""
    finally:
        if writer is not None:
            writer.close()
    return body if head.partition("\r\n")[0].endswith(" 200 OK") else ""
