"""Does a process on a card still see the library and the page of limits that its container was given, and load it?

A container's own mount by way of a link, or of /proc/self/root, covers them, and chroot leaves them behind. Only
processes that use a card and account for nothing are checked. Only certain results count:

    another file, or none, at one of the three paths, as the process resolves them below its root     it does not see it
    the driver in its memory, and the library not (``mapped``)                                        it did not load it
    no slice's directory in its view, and mounts of its own (a nested container)                      not known
    it ended meanwhile; a path cannot be looked up now                                                not known

Files are identified by device and inode: a mount of this node's folders shows those of the file in the folder. A lookup
may take forever, on a dead NFS server for example, so it runs in a thread of its own. Failure rule: not known is ""; a
process that the agent may not inspect is named in the log.
"""

import ctypes
import errno
import logging
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fractile.agent.audit import mapped
from fractile.agent.audit.unaccounted import Attributed, Finding, Ledgers, knows
from fractile.agent.limits import library
from fractile.agent.limits.slices import Granted
from fractile.agent.node import kernel_text
from fractile.agent.node.cgroup import CgroupPlace, places
from fractile.agent.node.procfs import Process, started
from fractile.model.units import PodUID
from fractile.region import directory
from fractile.region.counters import Counters

PAGE = f"{directory.MOUNT}/{directory.LIMITS}"
UNMAPPED = "-"  # in place of a path: the process sees the library and did not load it

_PATIENCE = 1.0  # seconds for all lookups of one poll
_STUCK = 8  # at so many unfinished lookups no more are started
_FOREBEARS = 64
_OPENAT2 = 437  # on all architectures
_IN_ROOT, _NO_MAGIC = 0x10, 0x02  # RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_PPID = 1  # of /proc/<pid>/stat, counted after the command's closing bracket

_File = tuple[int, int]  # device and inode
_libc = ctypes.CDLL(None, use_errno=True)

log = logging.getLogger(__name__)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class SightCheck(msgspec.Struct, frozen=True):
    """``folders``: of the slices, one of which the process must see. ``sure``: it is in the container's own mounts.
    ``paths``: whether the paths count; not if a region cannot be read, since it may list a process that has called
    chroot since. ``holds``: it holds memory of the card, unlike a process that only queries NVML."""

    process: Process
    folders: tuple[Path, ...]
    sure: bool
    paths: bool = True
    holds: bool = True


class Sight:
    """``state``: the agent's folder, with its versions of the library. One thread at a time."""

    def __init__(self, state: Path, *, proc: Path = Path("/proc")) -> None:
        self._state = state
        self._proc = proc
        self._stuck: dict[int, threading.Thread] = {}  # by pid
        self._closed: frozenset[int] = frozenset()  # pids of processes that the agent may not inspect

    def judged(self, found: Attributed, granted: Sequence[Granted], ledgers: Ledgers) -> Attributed:
        """The same findings, marked where the process does not see the library."""
        asks = [ask for f in found.findings if (ask := _ask(f, granted, ledgers)) is not None]
        if not asks:
            return found
        unseen = self.look(asks)
        return msgspec.structs.replace(found, findings=tuple(_judged(f, granted, unseen) for f in found.findings))

    def look(self, asks: Iterable[SightCheck]) -> dict[int, str]:
        """By pid the path at which the process does not see what it was given, or UNMAPPED."""
        self._stuck = {pid: thread for pid, thread in self._stuck.items() if thread.is_alive()}
        ours = _Ours.read(self._state)
        wanted = [self._patient(ask) for ask in asks]
        if ours is None or not wanted:
            return {}
        unseen: dict[int, str] = {}
        begun: list[int] = []
        closed: set[int] = set()

        def work() -> None:
            for ask in wanted:
                begun.append(ask.process.pid)
                try:
                    for found in self._found(ask, ours):
                        unseen[ask.process.pid] = found
                except PermissionError:
                    closed.add(ask.process.pid)
                except (OSError, ValueError, IndexError):
                    continue

        thread = threading.Thread(target=work, daemon=True, name="sight")
        thread.start()
        thread.join(_PATIENCE)
        if thread.is_alive() and begun:
            self._stuck[begun[-1]] = thread
        self._tell(frozenset(closed), wanted)
        return dict(unseen)

    def _tell(self, closed: frozenset[int], asks: Sequence[SightCheck]) -> None:
        for one in (ask.process for ask in asks if ask.process.pid in closed - self._closed):
            log.warning(
                "unknown whether it has the library pid=%d command=%r reason=%r", one.pid, one.command,
                "the agent cannot read its files in /proc (CAP_SYS_PTRACE, hostPID); its pod stays",
            )  # fmt: skip
        self._closed = closed

    def _patient(self, ask: SightCheck) -> SightCheck:
        """Without lookups if one of the process, or too many in all, have not ended."""
        stuck = ask.process.pid in self._stuck or len(self._stuck) >= _STUCK
        return msgspec.structs.replace(ask, paths=False) if stuck else ask

    def _found(self, ask: SightCheck, ours: "_Ours") -> Iterator[str]:
        """The last result is the most specific; a lookup, which may not end, comes after the check that always ends."""
        if not ask.sure and not self._has_mounts_of_its_container(ask.process):
            return
        if ask.holds and self._goes_without(ask.process, ours):
            yield UNMAPPED
        if ask.paths and (path := self._covered(ask, ours)):
            yield path

    def _covered(self, ask: SightCheck, ours: "_Ours") -> str:
        pages = frozenset(_identity(os.stat(folder / directory.LIMITS)) for folder in ask.folders)
        root = self._root(ask.process)
        try:
            right = ((library.PRELOADED, ours.preloads), (library.INSIDE, ours.libraries), (PAGE, pages))
            path = next((path for path, files in right if _looked_up(root, path) not in files), "")
            # Mounts go with the last process that has them, and its root before: so the process must still be there.
            return path if path and self._same(root, ask.process) else ""
        finally:
            os.close(root)

    def _goes_without(self, process: Process, ours: "_Ours") -> bool:
        try:
            found = mapped.goes_without(self._proc, process.pid, ours.mapped)
        except PermissionError:
            raise
        except (OSError, ValueError):
            return False
        return found and started(self._proc, process.pid) == process.start_time

    def _root(self, process: Process) -> int:
        return os.open(f"{self._proc}/{process.pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _same(self, root: int, process: Process) -> bool:
        again = self._root(process)
        try:
            same = os.path.samestat(os.fstat(root), os.fstat(again))
        finally:
            os.close(again)
        return same and int(self._stat(process.pid)[19]) == process.start_time

    def _has_mounts_of_its_container(self, process: Process) -> bool:
        """Whether its outermost ancestor in the same container has the same mount namespace."""
        pid = outermost = process.pid
        for _ in range(_FOREBEARS):
            pid = int(self._stat(pid)[_PPID])
            if pid <= 0 or _container(self._places(pid)) != _container(process.places):
                break
            outermost = pid
        return self._mounts(outermost) == self._mounts(process.pid)

    def _stat(self, pid: int) -> list[bytes]:
        data = Path(f"{self._proc}/{pid}/stat").read_bytes()
        return data[data.rindex(b")") + 2 :].split()

    def _places(self, pid: int) -> tuple[CgroupPlace, ...]:
        return places(kernel_text.read(Path(f"{self._proc}/{pid}/cgroup")))

    def _mounts(self, pid: int) -> _File:
        return _identity(os.stat(f"{self._proc}/{pid}/ns/mnt"))


class _Ours(msgspec.Struct, frozen=True):
    """The files of all versions on this node: a container keeps the version of its start. ``mapped``: the libraries, as
    /proc shows their mappings."""

    preloads: frozenset[_File]
    libraries: frozenset[_File]
    mapped: frozenset[mapped.Shown]

    @classmethod
    def read(cls, state: Path) -> "_Ours | None":
        """None: the files cannot be read."""
        try:
            folders = [entry.path for entry in os.scandir(state / "lib") if entry.is_dir(follow_symlinks=False)]
            preloads = frozenset(_files(folders, library.PRELOAD))
            libraries = frozenset(_files(folders, library.LIBRARY))
            shown = mapped.shown(path for folder in folders if os.path.exists(path := f"{folder}/{library.LIBRARY}"))
        except OSError:
            return None
        return cls(preloads, libraries, shown) if preloads and libraries else None


def _files(folders: Iterable[str], name: str) -> Iterator[_File]:
    for folder in folders:
        try:
            yield _identity(os.stat(f"{folder}/{name}", follow_symlinks=False))
        except FileNotFoundError:
            continue  # a version that is being installed


def _looked_up(root: int, path: str) -> _File | None:
    """The file that the process finds at the path; None: there is none. OSError: not known."""
    how = _How(os.O_PATH | os.O_CLOEXEC, 0, _IN_ROOT | _NO_MAGIC)
    opened = _libc.syscall(
        ctypes.c_long(_OPENAT2), ctypes.c_int(root), ctypes.c_char_p(path.encode()), ctypes.byref(how),
        ctypes.c_size_t(ctypes.sizeof(how)),
    )  # fmt: skip
    if opened < 0:
        number = ctypes.get_errno()
        if number in _ABSENT:
            return None
        raise OSError(number, os.strerror(number), path)
    try:
        return _identity(os.fstat(opened))
    finally:
        os.close(opened)


def _identity(file: os.stat_result) -> _File:
    return file.st_dev, file.st_ino


def _container(where: Sequence[CgroupPlace]) -> str:
    return next((place.container_id for place in where if place.container_id), "")


def _ask(finding: Finding, granted: Sequence[Granted], ledgers: Ledgers) -> SightCheck | None:
    """The process to check because of this finding; None: no process, or it may account for what it holds."""
    process = finding.process
    if process is None or finding.kind != "not-in-ledger":
        return None
    near = _near(finding, granted)
    looks = [ledgers.get(g.token, ()) for g in near]
    if not near:
        return None
    readable = all(any(isinstance(look, Counters) for look in some) for some in looks)
    if any(isinstance(look, Counters) and knows(look, process) for some in looks for look in some):
        return None  # it had loaded the library before it called chroot
    if finding.granted is None and not _container(process.places):
        return None
    folders = tuple(g.folder for g in near)
    return SightCheck(process, folders, finding.granted is not None, paths=readable, holds=finding.bytes != 0)


def _judged(finding: Finding, granted: Sequence[Granted], unseen: Mapping[int, str]) -> Finding:
    path = unseen.get(finding.process.pid) if finding.process is not None else None
    if path is None or finding.kind != "not-in-ledger":
        return finding
    path = "" if path == UNMAPPED else path
    if finding.granted is not None:
        return msgspec.structs.replace(finding, kind="no-library", unseen=path)
    # Its container is known only by id: the audit finds out whether it is one of those with a slice.
    names = frozenset(str(g.limits.container) for g in _near(finding, granted))
    return msgspec.structs.replace(finding, unseen=path, containers=names)


def _near(finding: Finding, granted: Sequence[Granted]) -> list[Granted]:
    """The slice of the process's container; if that is not known, those of its pod on the card."""
    if finding.granted is not None:
        return [finding.granted]
    uids = {place.pod_uid for place in finding.process.places} if finding.process is not None else set[PodUID]()
    return [g for g in granted if g.limits.pod_uid in uids and any(c.uuid == finding.card for c in g.limits.cards)]
