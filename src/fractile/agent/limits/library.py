"""The files that stand between a container's programs and the driver, one folder per version on this node.

    <state>/lib/<content>/libfractile.so      the container's /usr/local/lib/fractile/libfractile.so
                          ld.so.preload       the container's /etc/ld.so.preload, which names it
                          fractile-arbiter    run by the agent
                          simgpu/*.so.1       with simulated cards: the driver that the library finds

Containers have the library mapped as long as they run, and writing other bytes to a mapped file crashes them all
(Project-HAMi/HAMi#727). So a version is a folder named by its content, complete before it appears by rename. A new
agent puts a new one next to it and locks the folder for its own lifetime, also while it waits for its predecessor to
end. A file that was cut short or overwritten in place is repaired in place: restoring the original bytes is harmless,
and reaches the containers that have it mounted. A version is removed when no agent holds it and no container in
kubelet's records mounts it; a file that is still mapped then stays in the kernel. Failure rule: ``install`` raises
SetupError or OSError; a version in doubt is kept.
"""

import asyncio
import contextlib
import fcntl
import logging
import os
import platform
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletStateMissing, mounts, sources
from fractile.agent.kubelet.owner import Denied
from fractile.agent.limits.library_content import ARBITER, DRIVER, LIBRARY, PRELOAD, SIMULATED, LibraryContent, digest
from fractile.errors import SetupError
from fractile.kube.pacing import Clock, Sleep
from fractile.region import plain
from fractile.wire.foreign.kubelet_checkpoint import Recorded

PRELOADED = "/etc/ld.so.preload"  # names it to the loader of every program
INSIDE = f"/usr/local/lib/fractile/{LIBRARY}"  # no image has it, no loader searches there by itself
SIMULATED_HOST = "/run/simgpu"  # where a container sees the state of its simulated cards
# Where the loaders of Debian and of Fedora search, and the library too, whatever the image contains.
DRIVER_FOLDERS = ("/usr/lib64", f"/usr/lib/{platform.machine()}-linux-gnu")

_ROUND = 60.0  # seconds
_UNUSED = 300.0  # for so long, since kubelet records an Allocate after its answer
_TRIES = 5

log = logging.getLogger(__name__)


class LibraryVersion(msgspec.Struct, frozen=True):
    """One version as installed on the node. ``simulated``: the folder of the simulated host, None with real cards.
    ``restored``: one of its files was damaged, and has been repaired."""

    folder: Path
    simulated: Path | None
    restored: bool = False

    @property
    def arbiter(self) -> Path:
        return self.folder / ARBITER

    @property
    def files(self) -> tuple[Path, ...]:
        """The files needed as long as the version is in use."""
        return tuple(self.folder / name for name in (LIBRARY, PRELOAD, ARBITER))

    def mounts(self) -> list[dp.Mount]:
        """The container's mounts, in addition to its token directory."""
        found = [_mount(INSIDE, self.folder / LIBRARY), _mount(PRELOADED, self.folder / PRELOAD)]
        if self.simulated is not None:
            found += [_mount(f"{d}/{n}", self.folder / DRIVER / n) for d in DRIVER_FOLDERS for n in SIMULATED]
            found.append(dp.Mount(container_path=SIMULATED_HOST, host_path=str(self.simulated)))
        return found

    def environment(self) -> dict[str, str]:
        return {"SIMGPU_DIR": SIMULATED_HOST} if self.simulated is not None else {}


def default_source() -> Path | None:
    """The default folder of the native parts: in the installed package, or where the repository builds them."""
    package = Path(__file__).parents[2]
    candidates = (package / "native", package.parents[1] / "native" / "build")
    return next((c for c in candidates if _find(c, LIBRARY) and _find(c, ARBITER)), None)


def install(source: Path, state: Path, *, simulated: Path | None = None) -> LibraryVersion:
    """Install the parts of ``source`` as a version on this node; writes nothing if it is there already."""
    parts = _parts(source, simulated=simulated is not None)
    content = {name: path.read_bytes() for name, path in parts.items()} | {PRELOAD: f"{INSIDE}\n".encode()}
    root = state / "lib"
    folder = root / digest(content)
    restored = False
    if LibraryContent().wrong(folder) is not None and folder.is_dir() and not folder.is_symlink():
        restored = _restored(folder, content)
    if LibraryContent().wrong(folder) is not None:
        if folder.is_dir() and not folder.is_symlink():
            _remove(folder)
        _write(root, folder, content)
        wrong = LibraryContent().wrong(folder)
        if wrong is not None:
            raise SetupError(
                f"{wrong} differs from what the agent wrote, even after the agent wrote it again; remove it; if that "
                "does not help, replace the disk"
            )
    if simulated is not None:
        simulated.mkdir(parents=True, exist_ok=True)
        simulated.chmod(0o1777)  # containers of any user leave their objects there
    return LibraryVersion(folder, simulated, restored)


def denied(entries: Iterable[Recorded], content: LibraryContent) -> Denied | None:
    """Why containers with these answers of kubelet's may not start; None: they may. If the library was removed from the
    node, the container runtime makes a directory for each mount's missing source, and they would start without it; if
    it was changed, they would run the changed one."""
    folders = dict.fromkeys(path.parent for entry in entries for path in sources(entry, (INSIDE, PRELOADED)))
    wrong = next((path for folder in folders if (path := content.wrong(folder)) is not None), None)
    if wrong is None:
        return None
    return Denied(
        f"{wrong}, which holds the container to its limits, was removed or changed on this node; the agent restores it "
        "within seconds, and kubelet then starts the container; if the error persists, delete the pod, so that it is "
        "created again"
    )


def hold(version: LibraryVersion, again: Callable[[], LibraryVersion]) -> LibraryVersion:
    """Lock the version until this process ends, so that it is not removed; ``again`` reinstalls it if it was removed
    just before. SetupError if that does not help."""
    for _ in range(_TRIES):
        descriptor = os.open(version.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(version.folder)):
                return version
        os.close(descriptor)
        version = again()
    raise SetupError(
        f"{version.folder} is removed again and again; find out what else removes files in {version.folder.parent}"
    )


class LibrarySweeper:
    """Removes unused versions. ``clock`` never jumps; the age of files is not used."""

    def __init__(
        self, kubelet: Kubelet, current: LibraryVersion, *, clock: Clock = time.monotonic, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._kubelet = kubelet
        self._current = current
        self._clock = clock
        self._sleep = sleep
        self._suspects: dict[Path, float] = {}  # since when they are unused

    async def run(self) -> None:
        """Work forever."""
        while True:
            await self._sleep(_ROUND)
            await self.round()

    async def round(self) -> None:
        """One check; a version goes when all checks of the last minutes found it unused, by records that could be
        read."""
        try:
            folders = await asyncio.to_thread(lambda: list(self._others()))
            if not folders:
                return
            recorded = (await self._kubelet.state()).recorded
        except (KubeletStateMissing, OSError) as e:
            log.info("library sweep skipped reason=%s", e)
            return
        if recorded is None:
            return
        used = {path.parent for entry in recorded for path in mounts(entry)}
        now = self._clock()
        self._suspects = {f: self._suspects.get(f, now) for f in folders if f not in used}
        for folder, since in self._suspects.items():
            if now - since >= _UNUSED:
                await asyncio.to_thread(_remove_unheld, folder)

    def _others(self) -> Iterator[Path]:
        """Folders only: anything else there is not ours."""
        for path in sorted(self._current.folder.parent.iterdir()):
            if path != self._current.folder and stat.S_ISDIR(path.lstat().st_mode):
                yield path


def _remove_unheld(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _remove(folder)
    except BlockingIOError:
        return  # a running agent will mount it
    finally:
        os.close(descriptor)


def _mount(inside: str, outside: Path) -> dp.Mount:
    return dp.Mount(container_path=inside, host_path=str(outside), read_only=True)


def _parts(source: Path, *, simulated: bool) -> dict[str, Path]:
    wanted = [LIBRARY, ARBITER, *(f"{DRIVER}/{name}" for name in SIMULATED if simulated)]
    found = {name: _find(source, name) for name in wanted}
    lacking = [name for name, path in found.items() if path is None]
    if lacking:
        raise SetupError(
            f"{source} lacks {' and '.join(lacking)}; build them with `make -C native`, or give another --library-dir"
        )
    return {name: path for name, path in found.items() if path is not None}


def _find(source: Path, name: str) -> Path | None:
    """Find a part in an installed folder, or where the repository's build leaves it."""
    built = {LIBRARY: f"interposer/{LIBRARY}", ARBITER: f"arbiter/{ARBITER}"}
    return next((p for p in (source / name, source / built.get(name, name)) if p.is_file()), None)


def _write(root: Path, folder: Path, content: dict[str, bytes]) -> None:
    if not root.is_dir():
        plain.make_room_for_folder(root)
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    plain.make_room_for_folder(folder)
    staging = root / f".{secrets.token_hex(8)}"
    try:
        for name, data in content.items():
            path = staging / name
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, data)
        for made in (staging, *(p for p in staging.iterdir() if p.is_dir())):
            made.chmod(0o755)  # whatever the umask
            _sync(made)
        staging.rename(folder)
        _sync(root)
    except OSError:
        shutil.rmtree(staging, ignore_errors=True)
        if not folder.is_dir():  # else another agent was faster
            raise


def _restored(folder: Path, content: dict[str, bytes]) -> bool:
    """Repair the version in place. Returns whether a file had other bytes: programs may have started with these."""
    damaged = False
    try:
        for name, data in content.items():
            path = folder / name
            if stat.S_ISREG(path.lstat().st_mode):
                damaged = _overwritten(path, data) or damaged
    except OSError as e:
        log.warning("library not restored in place path=%s reason=%s", folder, e)
    if damaged:
        log.error("library was damaged and is restored path=%s", folder)
    return damaged


def _overwritten(path: Path, data: bytes) -> bool:
    """Overwrite without ever changing a byte that is right. Returns False if there was nothing to do."""
    if path.read_bytes() == data:
        return False
    descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(descriptor, data[done:], done)
        os.ftruncate(descriptor, len(data))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return True


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    path.chmod(0o444 if path.name == PRELOAD else 0o555)


def _remove(folder: Path) -> None:
    doomed = folder if folder.name.startswith(".") else folder.with_name(f".{secrets.token_hex(8)}")
    try:
        if doomed != folder:
            folder.rename(doomed)  # never incomplete under its name
        shutil.rmtree(doomed)
    except OSError as e:
        log.warning("library version not removed folder=%s reason=%s", folder, e)
        return
    log.info("library version removed folder=%s", folder)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
