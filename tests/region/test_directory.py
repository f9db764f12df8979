"""The directory that a container sees."""

import os
from pathlib import Path

import msgspec
import pytest

from fractile.errors import WireError
from fractile.region import directory, live, page, shared
from fractile.region.page import ContainerLimits
from tests.region.examples import LIMITS
from tests.region.writer import alive

STEPS = 16  # calls that change something, in a grant and a change


def put(folder: Path, wanted: ContainerLimits = LIMITS, generation: int = 7) -> None:
    directory.put(folder, wanted, new_generation=lambda: generation)


def state(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every file below the folder: which, and what it holds."""
    return {
        str(file.relative_to(folder)): (file.stat().st_ino, file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


def generation(folder: Path) -> int:
    found = directory.read(folder)
    assert found is not None
    return found.generation


def test_nothing_is_granted_in_an_empty_directory(tmp_path: Path) -> None:
    assert directory.read(tmp_path) is None


def test_page_and_region_belong_together(tmp_path: Path) -> None:
    put(tmp_path)
    assert directory.read(tmp_path) == msgspec.structs.replace(LIMITS, generation=7)
    assert shared.generation(tmp_path / directory.REGION, cards=2) == 7
    assert list(state(tmp_path)) == ["limits", "shared/region"]


def test_the_same_again_changes_nothing(tmp_path: Path) -> None:
    put(tmp_path)
    before = state(tmp_path)
    put(tmp_path, generation=8)
    assert state(tmp_path) == before


def test_other_limits_for_the_same_cards_go_into_the_same_page_and_leave_the_region(tmp_path: Path) -> None:
    put(tmp_path)
    page_before, region_before = state(tmp_path).values()
    put(tmp_path, msgspec.structs.replace(LIMITS, flags=page.FLAG_OFF), generation=8)
    page_after, region_after = state(tmp_path).values()
    assert region_after == region_before
    assert page_after[0] == page_before[0]
    assert page_after[1] != page_before[1]
    assert generation(tmp_path) == 7


def test_a_region_without_a_page_is_kept_as_a_crash_left_it(tmp_path: Path) -> None:
    put(tmp_path)
    (tmp_path / "limits").unlink()
    put(tmp_path, generation=8)
    assert generation(tmp_path) == 7


@pytest.mark.parametrize("damage", [b"", b"x" * 40, b"\0" * shared.RegionShape(2).size])
def test_a_damaged_region_that_nobody_uses_is_made_anew(tmp_path: Path, damage: bytes) -> None:
    put(tmp_path)
    (tmp_path / directory.REGION).write_bytes(damage)
    put(tmp_path, generation=8)
    assert generation(tmp_path) == shared.generation(tmp_path / directory.REGION, cards=2) == 8


def test_other_cards_get_another_region(tmp_path: Path) -> None:
    put(tmp_path)
    put(tmp_path, msgspec.structs.replace(LIMITS, cards=LIMITS.cards[:1]), generation=8)
    assert generation(tmp_path) == shared.generation(tmp_path / directory.REGION, cards=1) == 8


def test_a_region_is_never_taken_from_under_a_process(tmp_path: Path) -> None:
    put(tmp_path)
    before = state(tmp_path)
    with alive(tmp_path / directory.REGION, 3):
        with pytest.raises(OSError, match="processes still use"):
            put(tmp_path, msgspec.structs.replace(LIMITS, cards=LIMITS.cards[:1]), generation=8)
        assert state(tmp_path) == before


def test_a_damaged_page_is_repaired_in_place(tmp_path: Path) -> None:
    put(tmp_path)
    inode = (tmp_path / "limits").stat().st_ino
    (tmp_path / "limits").write_bytes(b"\x01" * page.SIZE)
    with pytest.raises(WireError):
        directory.read(tmp_path)
    put(tmp_path, generation=8)
    assert generation(tmp_path) == 7
    assert (tmp_path / "limits").stat().st_ino == inode


def test_a_text_of_the_first_release_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "limits").write_text("fractile-limits=1\nend=1\n")
    with pytest.raises(WireError, match="earlier release"):
        directory.read(tmp_path)
    put(tmp_path)
    assert generation(tmp_path) == 7


def grant_and_change_until(step: int, folder: Path, other: ContainerLimits) -> None:
    """In a process of its own, which dies before the call of that number, of those that change something."""
    left = step

    def count(name: str, owner: object) -> None:
        real = getattr(owner, name)

        def call(*args: object, **kwargs: object) -> object:
            nonlocal left
            left -= 1
            return os._exit(0) if left == 0 else real(*args, **kwargs)

        setattr(owner, name, call)

    for name in ("fsync", "posix_fallocate", "pwrite", "fchmod"):
        count(name, os)
    for name in ("rename", "unlink", "chmod", "mkdir"):
        count(name, Path)
    count("_fence", live)
    put(folder)
    put(folder, other)


@pytest.mark.parametrize("step", range(1, STEPS + 2))
def test_killed_before_any_step_it_is_whole_after_the_next_start(tmp_path: Path, step: int) -> None:
    other = msgspec.structs.replace(LIMITS, priority=2)
    child = os.fork()
    if child == 0:
        try:
            grant_and_change_until(step, tmp_path, other)
        finally:
            os._exit(9)  # as far as here only when there are fewer steps
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == (0 if step <= STEPS else 9)
    directory.finish(tmp_path)
    found = directory.read(tmp_path)
    assert found in (None, *(msgspec.structs.replace(x, generation=7) for x in (LIMITS, other)))
    put(tmp_path, other, generation=8)
    assert list(state(tmp_path)) == ["limits", "shared/region"]
    assert directory.read(tmp_path) == msgspec.structs.replace(other, generation=generation(tmp_path))
    assert shared.generation(tmp_path / directory.REGION, cards=2) == generation(tmp_path)


@pytest.mark.parametrize("lost", [("limits",), ("shared/region",), ("limits", "shared/region")])
@pytest.mark.parametrize("finished", [True, False])
def test_names_without_bytes_as_a_power_failure_leaves_them_are_written_again(
    tmp_path: Path, lost: tuple[str, ...], finished: bool
) -> None:
    put(tmp_path)
    for name in lost:
        os.truncate(tmp_path / name, 0)
    if finished:
        directory.finish(tmp_path)
        assert (tmp_path / "limits").exists() == ("limits" not in lost)  # whoever opens it sees the page in force
    put(tmp_path, generation=8)
    assert directory.read(tmp_path) == msgspec.structs.replace(LIMITS, generation=generation(tmp_path))
    assert shared.generation(tmp_path / directory.REGION, cards=2) == generation(tmp_path)


def test_a_grant_waits_for_no_disk_and_a_change_is_on_it_whole_before_the_page_is_touched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bytes]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced.append((str(path.relative_to(tmp_path)), (tmp_path / "limits").read_bytes()))
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    put(tmp_path)
    assert synced == []
    before = (tmp_path / "limits").read_bytes()
    put(tmp_path, msgspec.structs.replace(LIMITS, priority=2))
    after = (tmp_path / "limits").read_bytes()
    assert synced == [("limits.next", before), (".", before), ("limits", after)]


def test_without_a_change_under_way_finishing_does_nothing(tmp_path: Path) -> None:
    directory.finish(tmp_path)
    put(tmp_path)
    before = state(tmp_path)
    directory.finish(tmp_path)
    (tmp_path / "file").write_text("")
    directory.finish(tmp_path / "file")
    assert state(tmp_path).items() >= before.items()
