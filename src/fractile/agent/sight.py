"""Does a process on a card still see the library and the page of limits that its container was given?

A container's own mount by way of a link, or of /proc/self/root, covers them, and chroot leaves them behind. Looked at
are only processes that use a card and account for nothing. What counts is what is surely so:

    another file, or none, at one of the three paths, as the process resolves them below its root     it does not see it
    no slice's directory in its view, and mounts of its own (a nested container)                      not known
    it ended meanwhile; a path cannot be looked up now                                                not known

Files are told by device and inode: what is mounted from this node's folders has those of the file in the folder. A
lookup may take for ever, on a dead NFS server for example, so nobody waits for it. Failure rule: not known is "".
"""

import ctypes
import errno
import os
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from fractile.agent import library
from fractile.agent.cgroup import Place, places
from fractile.agent.outside import Attributed, Finding, Ledgers, knows
from fractile.agent.procfs import Process
from fractile.agent.slices import Granted
from fractile.model.units import PodUID
from fractile.region import directory
from fractile.region.counters import Counters

PAGE = f"{directory.MOUNT}/{directory.LIMITS}"

_PATIENCE = 1.0  # seconds for all lookups of one look
_STUCK = 8  # lookups that do not end, until no more are begun
_FOREBEARS = 64
_OPENAT2 = 437  # on all architectures
_IN_ROOT, _NO_MAGIC = 0x10, 0x02  # RESOLVE_IN_ROOT, RESOLVE_NO_MAGICLINKS
_ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
_PPID = 1  # of /proc/<pid>/stat, counted after the command's closing bracket

_File = tuple[int, int]  # device and inode
_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class Ask(msgspec.Struct, frozen=True):
    """``folders``: of the slices, one of which the process must see. ``sure``: it has the container's own mounts."""

    process: Process
    folders: tuple[Path, ...]
    sure: bool


class Sight:
    """``state``: the agent's folder, with its versions of the library. One thread at a time."""

    def __init__(self, state: Path, *, proc: Path = Path("/proc")) -> None:
        self._state = state
        self._proc = proc
        self._stuck: dict[int, threading.Thread] = {}  # by pid

    def judged(self, found: Attributed, granted: Sequence[Granted], ledgers: Ledgers) -> Attributed:
        """The same findings; those of processes that do not see the library say so."""
        asks = [ask for f in found.findings if (ask := _ask(f, granted, ledgers)) is not None]
        if not asks:
            return found
        unseen = self.look(asks)
        return msgspec.structs.replace(found, findings=tuple(_judged(f, granted, unseen) for f in found.findings))

    def look(self, asks: Iterable[Ask]) -> dict[int, str]:
        """By pid the path at which the process does not see what it was given."""
        self._stuck = {pid: thread for pid, thread in self._stuck.items() if thread.is_alive()}
        ours = _Ours.read(self._state)
        wanted = [ask for ask in asks if ask.process.pid not in self._stuck]
        if ours is None or not wanted or len(self._stuck) >= _STUCK:
            return {}
        unseen: dict[int, str] = {}
        begun: list[int] = []

        def work() -> None:
            for ask in wanted:
                begun.append(ask.process.pid)
                if path := self._unseen(ask, ours):
                    unseen[ask.process.pid] = path

        thread = threading.Thread(target=work, daemon=True, name="sight")
        thread.start()
        thread.join(_PATIENCE)
        if thread.is_alive() and begun:
            self._stuck[begun[-1]] = thread
        return dict(unseen)

    def _unseen(self, ask: Ask, ours: "_Ours") -> str:
        try:
            if not ask.sure and not self._has_mounts_of_its_container(ask.process):
                return ""
            pages = frozenset(_identity(os.stat(folder / directory.LIMITS)) for folder in ask.folders)
            root = self._root(ask.process)
            try:
                right = ((library.PRELOADED, ours.preloads), (library.INSIDE, ours.libraries), (PAGE, pages))
                path = next((path for path, files in right if _looked_up(root, path) not in files), "")
                # Mounts go with the last process that has them, and its root before: so it must be there still.
                return path if path and self._same(root, ask.process) else ""
            finally:
                os.close(root)
        except (OSError, ValueError, IndexError):
            return ""

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
        """Whether the outermost of its forebears in the same container has the same mount namespace."""
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

    def _places(self, pid: int) -> tuple[Place, ...]:
        return places(Path(f"{self._proc}/{pid}/cgroup").read_text("utf-8", "replace"))

    def _mounts(self, pid: int) -> _File:
        return _identity(os.stat(f"{self._proc}/{pid}/ns/mnt"))


class _Ours(msgspec.Struct, frozen=True):
    """The files of all versions on this node: a container has that of its start."""

    preloads: frozenset[_File]
    libraries: frozenset[_File]

    @classmethod
    def read(cls, state: Path) -> "_Ours | None":
        """None: it cannot be said."""
        try:
            folders = [entry.path for entry in os.scandir(state / "lib") if entry.is_dir(follow_symlinks=False)]
            preloads = frozenset(_files(folders, library.PRELOAD))
            libraries = frozenset(_files(folders, library.LIBRARY))
        except OSError:
            return None
        return cls(preloads, libraries) if preloads and libraries else None


def _files(folders: Iterable[str], name: str) -> Iterator[_File]:
    for folder in folders:
        try:
            yield _identity(os.stat(f"{folder}/{name}", follow_symlinks=False))
        except FileNotFoundError:
            continue  # a version that is on its way


def _looked_up(root: int, path: str) -> _File | None:
    """What the process finds at the path; None: nothing. OSError where that is not known."""
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


def _container(where: Sequence[Place]) -> str:
    return next((place.container_id for place in where if place.container_id), "")


def _ask(finding: Finding, granted: Sequence[Granted], ledgers: Ledgers) -> Ask | None:
    """The process to look at because of this finding; None: none, or it may account for what it holds."""
    process = finding.process
    if process is None or finding.kind != "not-in-ledger":
        return None
    near = _near(finding, granted)
    looks = [ledgers.get(g.token, ()) for g in near]
    if not near or not all(any(isinstance(look, Counters) for look in some) for some in looks):
        return None
    if any(isinstance(look, Counters) and knows(look, process) for some in looks for look in some):
        return None  # it had loaded the library before it called chroot
    if finding.granted is None and not _container(process.places):
        return None
    return Ask(process, tuple(g.folder for g in near), sure=finding.granted is not None)


def _judged(finding: Finding, granted: Sequence[Granted], unseen: Mapping[int, str]) -> Finding:
    path = unseen.get(finding.process.pid) if finding.process is not None else None
    if path is None or finding.kind != "not-in-ledger":
        return finding
    if finding.granted is not None:
        return msgspec.structs.replace(finding, kind="no-library", unseen=path)
    # Its container is known by the id alone: the audit asks whether it is one of those with a slice.
    names = frozenset(str(g.limits.container) for g in _near(finding, granted))
    return msgspec.structs.replace(finding, unseen=path, containers=names)


def _near(finding: Finding, granted: Sequence[Granted]) -> list[Granted]:
    """Its container's slice; where that is not known, those of its pod on the card."""
    if finding.granted is not None:
        return [finding.granted]
    uids = {place.pod_uid for place in finding.process.places} if finding.process is not None else set[PodUID]()
    return [g for g in granted if g.limits.pod_uid in uids and any(c.uuid == finding.card for c in g.limits.cards)]
