"""A version of the library is what its name says, or no container starts over it."""

import itertools
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.agent.limits.library import LibraryVersion, install
from fractile.agent.limits.library_content import ARBITER, LIBRARY, PRELOAD, LibraryContent
from fractile.region import plain
from tests.agent.limits.test_library import source

NAMES = [LIBRARY, ARBITER, PRELOAD, "simgpu/libcuda.so.1"]


@pytest.fixture
def version(tmp_path: Path) -> LibraryVersion:
    return install(source(tmp_path / "from"), tmp_path / "state", simulated=tmp_path / "host")


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    os.truncate(path, 0)


def flip(path: Path) -> None:
    """The same size and the same times, as far as anybody can set them."""
    before = path.stat()
    path.write_bytes(b"x" * before.st_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def link_to_another_of_its_size(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"x" * path.stat().st_size)
    path.unlink()
    path.symlink_to(other)


def link_to_itself(path: Path) -> None:
    moved = path.rename(path.with_name("moved"))
    path.symlink_to(moved)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def writable(path: Path) -> None:
    path.chmod(0o666)


def anothers(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root gives a file away")
    os.chown(path, 65534, 0)


HARMS = [
    pytest.param(harm, id=harm.__name__)
    for harm in (remove, cut, flip, link_to_another_of_its_size, link_to_itself, folder, pipe, writable, anothers)
]


def settled(content: LibraryContent, version: LibraryVersion) -> None:
    """The agent has looked at it for long, and the clock of its file system has ticked since it was written."""
    for _ in range(2):
        assert content.wrong(version.folder) is None
    probe = version.folder.parent / "probe"
    while True:
        probe.touch()
        if probe.stat().st_ctime_ns > max(path.stat().st_ctime_ns for path in version.folder.rglob("*")):
            return


def patient() -> LibraryContent:
    """An hour passes between two looks."""
    return LibraryContent(clock=itertools.count(0.0, 3600.0).__next__)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("harm", HARMS)
def test_whatever_is_done_to_a_file_the_version_is_wrong_until_it_is_installed_again(
    version: LibraryVersion, tmp_path: Path, name: str, harm: Callable[[Path], None]
) -> None:
    content = patient()
    settled(content, version)
    before = (version.folder / name).read_bytes()
    harm(version.folder / name)
    assert content.wrong(version.folder) in (version.folder, version.folder / name)
    assert install(tmp_path / "from", tmp_path / "state", simulated=tmp_path / "host").folder == version.folder
    assert (version.folder / name).read_bytes() == before
    assert LibraryContent().wrong(version.folder) is None


def test_a_folder_that_is_a_link_or_whose_name_is_not_its_digest_is_wrong(version: LibraryVersion) -> None:
    other = version.folder.with_name("0" * 20)
    shutil.copytree(version.folder, other)
    assert LibraryContent().wrong(other) == other
    moved = version.folder.rename(version.folder.with_name("moved"))
    version.folder.symlink_to(moved)
    assert LibraryContent().wrong(version.folder) == version.folder


def test_a_version_that_was_read_is_not_read_again(version: LibraryVersion, monkeypatch: pytest.MonkeyPatch) -> None:
    content = patient()
    settled(content, version)

    def again(path: Path | str, access: int = os.O_RDONLY) -> int:
        raise AssertionError(path)

    monkeypatch.setattr(plain, "open_file", again)
    assert content.wrong(version.folder) is None


def test_what_changed_just_now_is_read_each_time_for_a_second_change_may_have_the_same_time(
    version: LibraryVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock stands still, as it does for the file system between two of its ticks."""
    content = LibraryContent(clock=lambda: 0.0)
    settled(content, version)
    stamps = {path: path.lstat() for path in version.folder.rglob("*")}
    (version.folder / PRELOAD).write_bytes(b"x" * stamps[version.folder / PRELOAD].st_size)
    real = os.lstat

    def as_before(path: Path) -> os.stat_result:
        return stamps.get(path) or real(path)

    monkeypatch.setattr(os, "lstat", as_before)
    assert content.wrong(version.folder) == version.folder


@pytest.mark.parametrize("place", ["lib", "version"])
def test_what_lies_in_the_place_of_a_folder_goes(version: LibraryVersion, tmp_path: Path, place: str) -> None:
    here = version.folder if place == "version" else version.folder.parent
    shutil.rmtree(here)
    here.touch()
    assert install(tmp_path / "from", tmp_path / "state", simulated=tmp_path / "host") == version
    assert LibraryContent().wrong(version.folder) is None
