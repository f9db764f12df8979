"""The library as files of a node: whole versions, never changed, gone when nobody mounts them."""

import fcntl
import itertools
import mmap
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletState, KubeletStateMissing
from fractile.agent.limits import library
from fractile.agent.limits.library import LibrarySweeper, LibraryVersion, hold, install
from fractile.errors import SetupError
from fractile.model.units import ContainerName, PodUID
from fractile.wire.foreign.kubelet_checkpoint import Recorded


def source(folder: Path, text: str = "one", *, flat: bool = True) -> Path:
    """A folder with all parts, as it is installed or as the repository builds it."""
    places = ("", "") if flat else ("interposer/", "arbiter/")
    names = (
        f"{places[0]}libfractile.so",
        f"{places[1]}fractile-arbiter",
        "simgpu/libcuda.so.1",
        "simgpu/libnvidia-ml.so.1",
    )
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} {path.name}")
    return folder


class Said(Kubelet):
    """Kubelet's books as the test has them."""

    def __init__(self, recorded: tuple[Recorded, ...] | None = (), *, closed: bool = False) -> None:
        super().__init__(Path("/nowhere"), Path("/nowhere"))
        self.recorded = recorded
        self.closed = closed

    async def state(self) -> KubeletState:
        if self.closed:
            raise KubeletStateMissing("closed by the test")
        return KubeletState((), self.recorded)


def holding(version: LibraryVersion) -> Recorded:
    answer = dp.ContainerAllocateResponse(mounts=version.mounts()).SerializeToString()
    return Recorded(PodUID("u"), ContainerName("c"), "r", frozenset({"GPU-a::0"}), answer)


def sweeper(kubelet: Kubelet, current: LibraryVersion, *, later: float = 1000.0) -> LibrarySweeper:
    """``later``: seconds from one round to the next."""
    times = itertools.count(0.0, later)
    return LibrarySweeper(kubelet, current, clock=lambda: next(times))


@pytest.mark.parametrize("flat", [True, False])
def test_a_version_is_whole_readable_for_all_and_writable_for_nobody(tmp_path: Path, flat: bool) -> None:
    version = install(source(tmp_path / "from", flat=flat), tmp_path / "state", simulated=tmp_path / "host")
    files = {str(p.relative_to(version.folder)): p for p in version.folder.rglob("*") if p.is_file()}
    assert set(files) == {
        *("libfractile.so", "fractile-arbiter", "ld.so.preload"),
        *("simgpu/libcuda.so.1", "simgpu/libnvidia-ml.so.1"),
    }
    assert all(p.stat().st_mode & 0o777 in (0o444, 0o555) for p in files.values())
    assert files["ld.so.preload"].read_text() == "/usr/local/lib/fractile/libfractile.so\n"
    assert os.access(version.arbiter, os.X_OK)
    assert [p.name for p in (tmp_path / "state" / "lib").iterdir()] == [version.folder.name]


def test_a_container_mounts_existing_files_read_only_and_only_the_simulated_host_to_write(tmp_path: Path) -> None:
    version = install(source(tmp_path / "from"), tmp_path / "state", simulated=tmp_path / "host")
    mounts = {m.container_path: m for m in version.mounts()}
    assert all(Path(m.host_path).exists() for m in mounts.values())
    assert [path for path, m in mounts.items() if not m.read_only] == [library.SIMULATED_HOST]
    named = Path(mounts["/etc/ld.so.preload"].host_path).read_text().strip()
    assert Path(mounts[named].host_path).name == "libfractile.so"
    assert version.environment() == {"SIMGPU_DIR": library.SIMULATED_HOST}


def test_with_real_cards_a_container_gets_the_library_and_no_driver(tmp_path: Path) -> None:
    version = install(source(tmp_path / "from"), tmp_path / "state")
    assert [m.container_path for m in version.mounts()] == [library.INSIDE, "/etc/ld.so.preload"]
    assert version.environment() == {}
    assert not (version.folder / "simgpu").exists()


def test_the_same_content_is_the_same_version_and_is_not_written_again(tmp_path: Path) -> None:
    first = install(source(tmp_path / "from"), tmp_path / "state")
    inode = (first.folder / "libfractile.so").stat().st_ino
    assert install(source(tmp_path / "again"), tmp_path / "state") == first
    assert (first.folder / "libfractile.so").stat().st_ino == inode


def test_an_upgrade_leaves_the_files_that_containers_have_mapped(tmp_path: Path) -> None:
    old = install(source(tmp_path / "old", "one"), tmp_path / "state")
    inode = (old.folder / "libfractile.so").stat().st_ino
    new = install(source(tmp_path / "new", "two"), tmp_path / "state")
    assert new.folder != old.folder
    assert (old.folder / "libfractile.so").stat().st_ino == inode
    assert (old.folder / "libfractile.so").read_text() == "one libfractile.so"


@pytest.mark.parametrize("name", ["libfractile.so", "fractile-arbiter"])
def test_a_folder_that_lacks_a_part_is_refused_by_name(tmp_path: Path, name: str) -> None:
    source(tmp_path / "from")
    (tmp_path / "from" / name).unlink()
    with pytest.raises(SetupError, match=rf"lacks {name}"):
        install(tmp_path / "from", tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_disk_that_fails_leaves_nothing_half(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        install(source(tmp_path / "from"), tmp_path / "state")
    assert list((tmp_path / "state" / "lib").iterdir()) == []


async def test_a_version_goes_when_two_looks_found_nobody_who_mounts_it(tmp_path: Path) -> None:
    old = install(source(tmp_path / "old", "one"), tmp_path / "state")
    new = install(source(tmp_path / "new", "two"), tmp_path / "state")
    kubelet = Said((holding(old),))
    sweep = sweeper(kubelet, new)
    for _ in range(3):
        await sweep.round()
    assert old.folder.exists()
    kubelet.recorded = ()
    await sweep.round()
    assert old.folder.exists()
    await sweep.round()
    assert not old.folder.exists()
    assert new.folder.exists()


@pytest.mark.parametrize(
    ("kubelet", "later"),
    [
        pytest.param(Said(closed=True), 1000.0, id="kubelet is away"),
        pytest.param(Said(None), 1000.0, id="the checkpoint cannot be read"),
        pytest.param(Said(()), 10.0, id="it was put there just now"),
    ],
)
async def test_a_version_stays_while_anything_is_doubtful(tmp_path: Path, kubelet: Said, later: float) -> None:
    old = install(source(tmp_path / "old", "one"), tmp_path / "state")
    new = install(source(tmp_path / "new", "two"), tmp_path / "state")
    sweep = sweeper(kubelet, new, later=later)
    for _ in range(3):
        await sweep.round()
    assert old.folder.exists()


@contextmanager
def waiting_agent(source: Path, state: Path) -> Generator[Path]:
    """A process that holds a version of its own; which one."""
    program = (
        "import sys; from pathlib import Path; from functools import partial\n"
        "from fractile.agent.limits.library import hold, install\n"
        "put = partial(install, Path(sys.argv[1]), Path(sys.argv[2]))\n"
        "print(hold(put(), put).folder, flush=True); sys.stdin.read()"
    )
    command = (sys.executable, "-c", program, source, state)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as waiting:
        assert waiting.stdout is not None
        yield Path(waiting.stdout.readline().strip())
        waiting.kill()


async def test_the_version_of_an_agent_that_waits_for_its_predecessor_stays_whatever_the_clock_says(
    tmp_path: Path,
) -> None:
    """Also when files look older than they are: a clock that jumps makes them so."""
    mine = install(source(tmp_path / "old", "one"), tmp_path / "state")
    sweep = sweeper(Said(), mine)
    with waiting_agent(source(tmp_path / "new", "two"), tmp_path / "state") as other:
        os.utime(other, (0, 0))
        for _ in range(4):
            await sweep.round()
        assert set(other.parent.iterdir()) == {mine.folder, other}
    await sweep.round()
    assert set(other.parent.iterdir()) == {mine.folder}


def test_a_version_that_was_removed_before_it_was_held_is_put_there_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = install(source(tmp_path / "from"), tmp_path / "state")
    real = fcntl.flock

    def removed_meanwhile(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        shutil.rmtree(version.folder)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", removed_meanwhile)
    held = hold(version, lambda: install(tmp_path / "from", tmp_path / "state"))
    assert (held.folder / "libfractile.so").exists()


async def test_what_a_killed_agent_left_half_written_goes_too(tmp_path: Path) -> None:
    new = install(source(tmp_path / "new"), tmp_path / "state")
    half = new.folder.with_name(".0123")
    half.mkdir()
    (half / "libfractile.so").write_text("ha")
    sweep = sweeper(Said(), new)
    for _ in range(2):
        await sweep.round()
    assert not half.exists()


async def test_what_is_no_version_ends_no_agent_and_stays(tmp_path: Path) -> None:
    new = install(source(tmp_path / "new"), tmp_path / "state")
    nowhere, note = new.folder.with_name("nowhere"), new.folder.with_name("note")
    nowhere.symlink_to(tmp_path / "gone")
    note.write_text("somebody's")
    sweep = sweeper(Said(), new)
    for _ in range(3):
        await sweep.round()
    assert nowhere.is_symlink()
    assert note.read_text() == "somebody's"
    shutil.rmtree(new.folder.parent)
    await sweep.round()


@pytest.mark.parametrize("harm", ["remove", "cut"])
def test_a_version_of_which_a_part_was_removed_is_made_again(tmp_path: Path, harm: str) -> None:
    version = install(source(tmp_path / "from"), tmp_path / "state")
    part = version.folder / "libfractile.so"
    before = part.read_bytes()
    part.unlink()
    if harm == "cut":
        part.touch()
    assert install(source(tmp_path / "from"), tmp_path / "state").folder == version.folder
    assert part.read_bytes() == before
    assert all(path.exists() for path in version.files)


@pytest.mark.parametrize("size", [0, 3])
def test_a_file_that_was_cut_short_is_put_right_where_it_lies_for_those_who_have_it_mapped(
    tmp_path: Path, size: int
) -> None:
    version = install(source(tmp_path / "from"), tmp_path / "state")
    part = version.folder / "libfractile.so"
    before, file = part.read_bytes(), part.stat().st_ino
    with part.open("rb") as opened, mmap.mmap(opened.fileno(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ) as mapped:
        os.truncate(part, size)
        again = install(tmp_path / "from", tmp_path / "state")
        assert mapped[:] == before
    assert part.stat().st_ino == file
    assert again.restored
    assert not install(tmp_path / "from", tmp_path / "state").restored


@pytest.mark.parametrize("name", ["libfractile.so", "ld.so.preload"])
def test_a_file_that_was_removed_harmed_nobody_who_runs(tmp_path: Path, name: str) -> None:
    version = install(source(tmp_path / "from"), tmp_path / "state")
    (version.folder / name).unlink()
    assert not install(tmp_path / "from", tmp_path / "state").restored
