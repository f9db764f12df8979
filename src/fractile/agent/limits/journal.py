"""Token directories: all that the agent keeps on disk, and what the containers see at /etc/fractile.

    <state>/slices/<token>/ids            resource and ids of one Allocate, as ranges; written before kubelet's answer
    <state>/slices/<token>/limits         written by PreStart; its absence means "no GPU" to the library
    <state>/slices/<token>/shared/region  made by PreStart; what the container's processes use, written by them
    <state>/slices/<token>/vcuda          for gpu-manager's images only: see ``vcuda_folder``

A token is random and never used twice. Everything appears by rename. Kubelet reuses an answer after a power failure
that may have removed the directory; it calls PreStart before each start, and PreStart recreates it under its name, so
no write here waits for the disk. Failure rule: an OSError of ``create`` or ``write_limits`` goes to the caller; what
cannot be read is skipped with a log line, once for each directory.
"""

import errno
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from fractile.agent.limits import vcuda_folder
from fractile.agent.limits.known_limits import KnownLimits
from fractile.errors import WireError
from fractile.region import directory as shared_directory
from fractile.region import plain, shared
from fractile.region.page import ContainerLimits
from fractile.region.removal import remove_tree
from fractile.wire.fractile.device_ids import to_ranges

_HEADER = "fractile-ids=1"
_IDS = "ids"
_NEW_IDS = ".ids.new"

log = logging.getLogger(__name__)


class Grant(msgspec.Struct, frozen=True):
    """One Allocate: its token, what was given (as ranges, equal for equal sets), since when (seconds since 1970)."""

    token: str
    resource: str
    ranges: str
    since: float


class Journal:
    """The token directories below ``root``. ``new_token`` must never return the same text twice. ``in_memory``: what a
    container may write is in its own file system (``region.bounded``)."""

    def __init__(self, root: Path, *, new_token: Callable[[], str], in_memory: bool = False) -> None:
        self._root = root
        self._in_memory = in_memory
        self._writing = threading.Lock()
        self._told: set[str] = set()  # tokens whose limits are invalid
        self._known = KnownLimits(self.limits, lambda token: self.path(token) / shared_directory.LIMITS)
        self.generation = 0  # changes with every change that is made here
        self.new_token = new_token
        if not root.is_dir():
            plain.make_room_for_folder(root)
        root.mkdir(parents=True, exist_ok=True)
        root.chmod(0o700)  # containers see their own directory by its mount; on the node only root may read it
        for leftover in [*root.glob(".*"), *filter(_never_given, root.iterdir())]:
            _remove_leftover(leftover)
        for directory in root.iterdir():
            _finish(directory)

    @property
    def root(self) -> Path:
        return self._root

    def path(self, token: str) -> Path:
        return self._root / token

    def token(self, directory: Path) -> str:
        """The token of a directory; "" when it is not below our root."""
        ours = directory.parent == self._root and not directory.name.startswith(".")
        return directory.name if ours else ""

    def create(self, token: str, resource: str, ids: frozenset[str]) -> None:
        """Create a directory for these ids, complete before it appears under its name."""
        staging = self._root / f".{token}.new"
        staging.mkdir()
        try:
            staging.chmod(0o755)
            shared_directory.prepare(staging)
            if vcuda_folder.wanted(resource):
                vcuda_folder.prepare(staging)
            _write(staging / _IDS, _ids(resource, ids))
            self._put_in_place(staging, token)
        except OSError:
            _remove_leftover(staging)  # incomplete directories must not fill the disk
            raise

    def refill(self, token: str, resource: str, ids: frozenset[str]) -> None:
        """Like ``create``, but keeps what is left of an existing directory, because a container sees it."""
        here = self.path(token)
        if here.is_symlink() or not here.is_dir():
            self.create(token, resource, ids)
            return
        here.chmod(0o755)
        shared_directory.prepare(here)
        if vcuda_folder.wanted(resource):
            vcuda_folder.prepare(here)
        if not self.exists(token):
            for path in (here / _NEW_IDS, here / _IDS):
                plain.make_room(path)
            _write(here / _NEW_IDS, _ids(resource, ids))
            (here / _NEW_IDS).rename(here / _IDS)

    def _put_in_place(self, staging: Path, token: str) -> None:
        plain.make_room_for_folder(self.path(token))
        try:
            staging.rename(self.path(token))
        except OSError as e:
            if e.errno not in (errno.ENOTEMPTY, errno.EEXIST) or self.exists(token):
                raise
            self.remove(token)  # runtimes make folders in place of our lost directory, to have something to mount
            staging.rename(self.path(token))

    def write_limits(self, token: str, limits: ContainerLimits) -> None:
        """Grant: page and region have these limits when this returns; does nothing when they already have."""
        self.change(token, lambda _: limits)

    def change(
        self, token: str, change: Callable[[ContainerLimits | None], ContainerLimits | None], *, running: bool = False
    ) -> ContainerLimits | None:
        """Replace the present limits by the result of ``change``; None keeps them. Returns the limits put, if any.

        ``running``: the container runs, so only its page is checked, not what it did to its region. All changes of a
        page go through here, so that no writer undoes what another has just written. What the container may write is
        read before the lock is taken: that may take long, and must not delay other containers.
        """
        region = self.path(token) / shared_directory.REGION
        while True:
            found = shared.find(region)
            with self._writing:
                if shared.identity(region) == found.file:  # else it was replaced meanwhile
                    return self._change(token, change, found, running=running)

    def _change(
        self,
        token: str,
        change: Callable[[ContainerLimits | None], ContainerLimits | None],
        found: shared.FoundRegion,
        *,
        running: bool,
    ) -> ContainerLimits | None:
        wanted = change(self.limits(token))
        if wanted is not None:
            self._known.forget(token)
            put = shared_directory.amend if running else shared_directory.put
            try:
                put(self.path(token), wanted, found=found, in_memory=self._in_memory)
            finally:
                self.generation += 1
        return wanted

    def granted(self) -> dict[str, ContainerLimits]:
        """The limits of all tokens that have a page; unchanged limits are the same objects."""
        with self._writing:
            return self._known.look(self._tokens())

    @property
    def lost(self) -> bool:
        """Whether a page that was in force is gone without having been removed here."""
        return bool(self._known.lost)

    def pages(self) -> set[str]:
        """The tokens that have a limits page, whatever its content."""
        limits = shared_directory.LIMITS
        return {name for name in self._tokens() if plain.size(self.path(name) / limits) is not None}

    def limits(self, token: str) -> ContainerLimits | None:
        """The limits granted to the token; None when there are none yet, or the page is invalid."""
        try:
            return shared_directory.read(self.path(token))
        except (OSError, WireError) as e:
            if token not in self._told:
                log.warning("limits ignored token=%s reason=%s", token, e)
            self._told.add(token)
            return None

    def grants(self) -> Iterator[Grant]:
        """All directories that can be read."""
        for name in sorted(self._tokens()):
            grant = _grant(self.path(name))
            if grant is not None:
                yield grant

    def _tokens(self) -> list[str]:
        """Empty if the folder itself was removed or replaced; ``ground`` repairs that."""
        try:
            return [name for name in os.listdir(self._root) if not name.startswith(".")]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def find(self, resource: str, ids: frozenset[str]) -> list[Grant]:
        """The grants of exactly these ids, the newest last."""
        ranges = to_ranges(ids)
        same = (g for g in self.grants() if g.resource == resource and g.ranges == ranges)
        return sorted(same, key=lambda g: g.since)

    def exists(self, token: str) -> bool:
        """Whether the record of what was given to the token exists."""
        return _given(self.path(token)) is not None

    def remove(self, token: str) -> None:
        """Remove the directory. A container that still has it mounted keeps an empty directory."""
        doomed = self._root / f".{token}"
        with self._writing:  # else its page would count as lost
            self.path(token).rename(doomed)
            self._known.forget(token)
        shared_directory.release(doomed)
        remove_tree(doomed)
        self._told.discard(token)
        with self._writing:
            self.generation += 1


def _ids(resource: str, ids: frozenset[str]) -> str:
    return f"{_HEADER}\nresource={resource}\nids={to_ranges(ids)}\n"


def _remove_leftover(folder: Path) -> None:
    try:
        shared_directory.release(folder)
        remove_tree(folder)
    except OSError as e:
        log.warning("incomplete token directory not removed path=%s reason=%s", folder, e)


def _never_given(directory: Path) -> bool:
    """Whether a power failure left the directory's name without its content: kubelet never got the answer. If it has a
    page, a container may run, and the record was emptied in some other way."""
    return plain.size(directory / _IDS) == 0 and not plain.size(directory / shared_directory.LIMITS)


def _finish(directory: Path) -> None:
    try:
        shared_directory.finish(directory)
    except OSError as e:
        log.warning("token directory not tidied token=%s reason=%s", directory.name, e)


def _given(directory: Path) -> list[str] | None:
    """The lines of the ``ids`` file, if it is one of ours."""
    lines = (_read(directory / _IDS) or "").split("\n")
    return lines if len(lines) == 4 and lines[0] == _HEADER else None


def _grant(directory: Path) -> Grant | None:
    lines = _given(directory)
    if lines is None:
        log.warning("token directory ignored token=%s reason=%s", directory.name, "not a journal of version 1")
        return None
    try:
        since = (directory / _IDS).stat().st_mtime
    except OSError as e:
        log.warning("token directory ignored token=%s reason=%s", directory.name, e)
        return None
    return Grant(directory.name, lines[1].removeprefix("resource="), lines[2].removeprefix("ids="), since)


def _read(path: Path) -> str | None:
    try:
        with plain.opened(path) as descriptor, open(descriptor, encoding="ascii", closefd=False) as file:
            return file.read()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as e:
        log.warning("file ignored path=%s reason=%s", path, e)
        return None


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")
    path.chmod(0o644)  # whatever the umask: the container's user must read it
