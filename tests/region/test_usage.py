"""What processes say they hold, and what becomes of lies."""

import errno
import fcntl
import os
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.region import shared, usage
from fractile.region.layout import ACCOUNT, OBJECT, REGION
from fractile.region.usage import ProcessHold, RegionUsage, SliceCardUsage, SliceProcess, Unreadable
from tests.region.writer import SETLK, alive, take, written

CARDS = 2
GENERATION = 99
SHAPE = shared.RegionShape(CARDS)
HEADER = ("magic", "version", "header_size", "size", "card_count", "slot_count", "object_count", "account_size")


@pytest.fixture
def region(tmp_path: Path) -> Path:
    made = tmp_path / "region"
    shared.create(made, cards=CARDS, generation=GENERATION)
    return made


def look(region: Path) -> RegionUsage | Unreadable:
    return usage.usage(region, cards=CARDS, generation=GENERATION)


def seen(region: Path) -> RegionUsage:
    found = look(region)
    assert isinstance(found, RegionUsage), found
    return found


def why(region: Path) -> str:
    found = look(region)
    assert isinstance(found, Unreadable), found
    return found.reason


def test_a_new_region_is_wholly_on_the_disk_open_to_all_and_empty(region: Path) -> None:
    status = region.stat()
    assert status.st_size == SHAPE.size
    assert status.st_blocks * 512 >= status.st_size
    assert status.st_mode & 0o777 == 0o666
    assert set(region.read_bytes()[REGION.size :]) == {0}
    assert seen(region) == RegionUsage((SliceCardUsage(0, 0, 0, 0),) * CARDS, ())
    assert shared.generation(region, cards=CARDS) == GENERATION


def test_the_umask_of_the_agent_changes_nothing(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        shared.create(tmp_path / "r", cards=1, generation=1)
    finally:
        os.umask(before)
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o666


def test_what_a_process_held_does_not_count_when_it_has_ended(region: Path) -> None:
    take(region, 0, 17, b"python", cards=CARDS, card=0, units=10)
    take(region, 1, 18, b"ended", cards=CARDS, card=0, units=4)
    take(region, 2, 19, b"ended", cards=CARDS, card=1, units=7)
    with alive(region, 0):
        assert [card.used for card in seen(region).cards] == [5120, 0]
    assert [card.used for card in seen(region).cards] == [0, 0]


def test_live_processes_are_listed_with_what_they_hold(region: Path) -> None:
    take(region, 0, 17, b"python", cards=CARDS, card=0, units=10)
    take(region, 1023, 18, b"worker\0junk", cards=CARDS, card=1, units=4, contexts=2)
    with alive(region, 0, 1023):
        found = seen(region)
    assert found.processes == (
        SliceProcess(17, "python", (ProcessHold(0, 5120, 1, 5_000_000),)),
        SliceProcess(18, "worker", (ProcessHold(1, 2048, 2, 5_000_000),)),
    )
    assert found.cards == (SliceCardUsage(5120, 5632, 0, 0), SliceCardUsage(2048, 2560, 0, 0))


def test_who_lives_is_what_the_kernel_says_and_not_the_region(region: Path) -> None:
    take(region, 3, 17, b"dead", cards=CARDS, card=0, units=10)
    assert seen(region).processes == ()
    assert not shared.in_use(region)
    with alive(region, 4, 5):
        assert [p.pid for p in seen(region).processes] == [0, 0]  # alive, and has not said who it is
        assert shared.locked(region) == {4, 5}
        assert shared.in_use(region)


def test_a_process_that_is_killed_is_gone_from_the_list_at_once(region: Path) -> None:
    program = (
        "import fcntl, os, struct, sys; fd = os.open(sys.argv[1], os.O_RDWR);"
        f"fcntl.fcntl(fd, {SETLK}, struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, 6, 1, 0)); print('ready', flush=True);"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(region)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert shared.locked(region) == {6}
        process.kill()
        process.wait()
    assert shared.locked(region) == frozenset()


def test_looking_takes_no_lock_that_another_could_meet(region: Path) -> None:
    with alive(region, 1):
        for _ in range(3):
            look(region)
        with alive(region, 0, 2, 1023):  # would raise when they were held
            assert shared.locked(region) == {0, 1, 2, 1023}


def test_one_lock_over_all_slots_makes_them_all_live_and_no_endless_work(region: Path) -> None:
    descriptor = os.open(region, os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
        assert len(seen(region).processes) == shared.SLOTS
    finally:
        os.close(descriptor)


def test_what_objects_hold_by_themselves_is_told_apart(region: Path) -> None:
    with written(region) as mapped, memoryview(mapped) as view:
        for number, (state, card) in enumerate([(3, 0), (3, 1), (2, 0), (3, 4_000_000_000)]):
            at = SHAPE.object_at(number)
            OBJECT.put(view, at, "state", state)
            OBJECT.put(view, at, "card", card)
            ACCOUNT.put(view, at + OBJECT.fields["own"].offset, "charged", 8 << 19 | 1)
    assert [c.shared for c in seen(region).cards] == [4096, 4096]


@pytest.mark.parametrize("seed", range(12))
def test_a_region_full_of_nonsense_is_read_or_refused_and_never_raises(region: Path, seed: int) -> None:
    rng = random.Random(seed)
    with written(region) as mapped:
        mapped[REGION.size * (seed % 2 == 0) :] = rng.randbytes(len(mapped) - REGION.size * (seed % 2 == 0))
    with alive(region, *range(0, shared.SLOTS, 7)):
        found = look(region)
    if seed % 2:
        assert isinstance(found, Unreadable)
        return
    assert isinstance(found, RegionUsage)
    assert all(p.command.isprintable() for p in found.processes)


@pytest.mark.parametrize("name", HEADER)
def test_a_header_that_does_not_agree_is_refused(region: Path, name: str) -> None:
    with written(region) as mapped, memoryview(mapped) as view:
        REGION.put(view, 0, name, REGION.get(view, 0, name) ^ 1)
    assert why(region) == "its header is invalid"


def test_a_region_of_other_limits_is_refused(region: Path) -> None:
    assert usage.usage(region, cards=CARDS, generation=1) == Unreadable("it belongs to other limits")
    assert usage.usage(region, cards=1, generation=GENERATION) == Unreadable("its header is invalid")


def _truncate(region: Path) -> None:
    os.truncate(region, 100)


def _grow(region: Path) -> None:
    os.truncate(region, 2**40)


def _remove(region: Path) -> None:
    region.unlink()


def _directory(region: Path) -> None:
    region.unlink()
    region.mkdir()


def _fifo(region: Path) -> None:
    region.unlink()
    os.mkfifo(region)


def _link(region: Path) -> None:
    region.rename(region.with_name("elsewhere"))
    region.symlink_to("elsewhere")


def _device(region: Path) -> None:
    region.unlink()
    try:
        os.mknod(region, 0o666 | 0o020000, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("device nodes need root")


@pytest.mark.parametrize("harm", [_truncate, _grow, _remove, _directory, _fifo, _link, _device])
def test_whatever_lies_in_its_place_is_unreadable_at_once(region: Path, harm: Callable[[Path], None]) -> None:
    harm(region)
    assert why(region)
    assert shared.generation(region, cards=CARDS) is None
    assert not shared.in_use(region)


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"no room for the .* KiB .* No space left on device"):
        shared.create(tmp_path / "region", cards=1, generation=1)


def test_a_file_system_that_reserves_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def sparse(descriptor: int, _at: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    monkeypatch.setattr(os, "posix_fallocate", sparse)
    with pytest.raises(OSError, match="does not reserve space"):
        shared.create(tmp_path / "region", cards=1, generation=1)


def test_looking_is_quick_also_with_64_cards_and_all_slots_taken(tmp_path: Path) -> None:
    path = tmp_path / "region"
    shared.create(path, cards=64, generation=1)
    with alive(path, *range(0, shared.SLOTS, 2)):
        began = time.perf_counter()
        found = usage.usage(path, cards=64, generation=1)
        took = time.perf_counter() - began
    assert isinstance(found, RegionUsage)
    assert len(found.processes) == 512
    assert took < 2.0
