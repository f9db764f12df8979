"""The glance of every second: the same figures as the whole region, and as much distrust."""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.region import shared
from fractile.region.counters import Account, CardCount, Counters, CountersReader, Member, counters
from fractile.region.layout import ACCOUNT, REGION, REGION_CARD, SLOT
from fractile.region.usage import RegionUsage, Unreadable, usage
from tests.region.writer import alive, take, written

CARDS = 2
GENERATION = 99
SHAPE = shared.RegionShape(CARDS)


@pytest.fixture
def region(tmp_path: Path) -> Path:
    made = tmp_path / "region"
    shared.create(made, cards=CARDS, generation=GENERATION)
    return made


def look(region: Path) -> Counters | Unreadable:
    return counters(region, cards=CARDS, generation=GENERATION)


def why(region: Path) -> str:
    found = look(region)
    assert isinstance(found, Unreadable), found
    return found.reason


def test_cards_and_live_processes_are_counted_and_the_dead_are_not(region: Path) -> None:
    take(region, 0, 17, b"python", cards=CARDS, card=0, units=10)
    take(region, 1, 19, b"dead", cards=CARDS, card=0, units=1)
    take(region, 1023, 18, b"worker", cards=CARDS, card=1, units=4, contexts=2)
    with written(region) as mapped, memoryview(mapped) as view:
        for name, value in (("generation", 3), ("start_time", 1234), ("pid_namespace", 4026531836)):
            SLOT.put(view, SHAPE.slot_at(1023), name, value)
    with alive(region, 0, 1023):
        found = look(region)
    nothing = Account(0, 0, 0, 0)
    assert found == Counters(
        (CardCount(10 * 512, 12 * 512, 0), CardCount(4 * 512, 5 * 512, 0)),
        (
            Member(0, 0, 17, 0, 0, (Account(5120, 1, 5_000_000, 0), nothing)),
            Member(1023, 3, 18, 1234, 4026531836, (nothing, Account(2048, 2, 5_000_000, 0))),
        ),
    )


@pytest.mark.parametrize("dead", [0, 2, 900])
def test_what_a_process_held_is_gone_with_it_whatever_its_slot_and_whoever_lives(region: Path, dead: int) -> None:
    reader = CountersReader(region, cards=CARDS, generation=GENERATION)

    def used() -> list[int]:
        found = reader.read(fresh=True)
        assert isinstance(found, Counters)
        return [card.used for card in found.cards]

    with alive(region, 1):
        take(region, 1, 17, b"stays", cards=CARDS, card=0, units=3)
        with alive(region, dead):
            take(region, dead, 18, b"goes", cards=CARDS, card=0, units=10)
            assert used() == [13 * 512, 0]
        assert used() == [3 * 512, 0]
    assert used() == [0, 0]


def test_what_a_process_is_given_while_the_region_is_read_is_not_taken_off(region: Path) -> None:
    take(region, 0, 17, b"liar", cards=CARDS, card=0, units=10)
    with written(region) as mapped, memoryview(mapped) as view:
        SLOT.put(view, SHAPE.slot_at(1), "state", 2)
        ACCOUNT.put(view, SHAPE.account_at(1, 0), "charged", 1000 << 19)
        REGION.put(view, 0, "slot_high", 2)
        REGION_CARD.put(view, SHAPE.card_at(0), "used", 15 << 30)
    with alive(region, 0):
        found = look(region)
    assert isinstance(found, Counters)
    assert found.cards[0].used == 10 * 512


def test_it_agrees_with_a_reading_of_the_whole(region: Path) -> None:
    rng = random.Random(5)
    slots = sorted(rng.sample(range(1024), 20))
    for n, slot in enumerate(slots):
        take(region, slot, n + 1, b"x", cards=CARDS, card=rng.randrange(CARDS), units=rng.randrange(1, 1000))
    with alive(region, *slots[::2]):
        glance, whole = look(region), usage(region, cards=CARDS, generation=GENERATION)
    assert isinstance(glance, Counters)
    assert isinstance(whole, RegionUsage)
    assert [(c.used, c.peak, c.refusals) for c in glance.cards] == [(c.used, c.peak, c.refusals) for c in whole.cards]
    assert [m.pid for m in glance.members] == [p.pid for p in whole.processes]


def test_what_is_no_region_is_unreadable(region: Path, tmp_path: Path) -> None:
    assert counters(region, cards=CARDS, generation=1) == Unreadable("it belongs to other limits")
    assert isinstance(counters(region, cards=1, generation=GENERATION), Unreadable)
    assert isinstance(counters(tmp_path / "absent", cards=1, generation=1), Unreadable)
    region.unlink()
    region.mkdir()
    assert why(region) == "it is not a regular file"
    region.rmdir()
    os.mkfifo(region)
    assert why(region) == "it is not a regular file"
    region.unlink()
    region.symlink_to("/dev/zero")
    assert why(region) == "it is not a regular file"


@pytest.mark.parametrize("size", [0, 10, REGION.size, SHAPE.slot_at(0), SHAPE.slot_at(1023)])
def test_a_region_that_is_cut_short_is_unreadable(region: Path, size: int) -> None:
    with alive(region, 1023):
        os.truncate(region, size)
        assert isinstance(look(region), Unreadable)


def test_any_bytes_in_it_give_an_answer(region: Path) -> None:
    rng = random.Random(7)
    head = region.read_bytes()[: REGION.size]
    with alive(region, 0, 5):
        for _ in range(50):
            region.write_bytes(head + rng.randbytes(SHAPE.size - REGION.size))
            found = look(region)
            assert isinstance(found, Counters)
            assert len(found.members) == 2
        for _ in range(50):
            region.write_bytes(rng.randbytes(rng.randrange(4096)))
            assert isinstance(look(region), Unreadable)


def test_a_reader_sees_every_change_and_another_file_in_the_regions_place(region: Path, tmp_path: Path) -> None:
    reader = CountersReader(region, cards=CARDS, generation=GENERATION)

    def soon() -> Counters | Unreadable:
        """What one of the next looks shows, of things that are written down nowhere."""
        return [reader.read() for _ in range(shared.LOOKS)][-1]

    assert reader.read() == Counters((CardCount(0, 0, 0),) * 2, ())
    assert reader.read() is reader.read()  # decoded once
    with alive(region, 3):
        take(region, 3, 17, b"x", cards=CARDS, card=1, units=4)
        found = reader.read()
        assert isinstance(found, Counters)
        assert (found.cards[1].used, [m.slot for m in found.members]) == (2048, [3])
    assert soon() == Counters((CardCount(0, 0, 0), CardCount(0, 2560, 0)), ())
    shared.create(tmp_path / "new", cards=CARDS, generation=GENERATION)
    (tmp_path / "new").rename(region)
    assert soon() == Counters((CardCount(0, 0, 0),) * 2, ())
    region.unlink()
    assert isinstance(soon(), Unreadable)
    shared.create(region, cards=CARDS, generation=GENERATION)
    assert isinstance(reader.read(), Counters)
    before = set(os.listdir("/proc/self/fd"))
    reader.close()
    reader.close()
    assert len(os.listdir("/proc/self/fd")) == len(before) - 1


@pytest.mark.parametrize("slot", [0, 3, 4, 1023])
def test_what_a_process_does_is_in_the_next_look_whatever_its_slot(region: Path, slot: int) -> None:
    reader = CountersReader(region, cards=CARDS, generation=GENERATION)
    with alive(region, slot):
        take(region, slot, 17, b"x", cards=CARDS, card=1, units=4)
        for launches in range(1, 3 * shared.LOOKS):
            with written(region) as mapped, memoryview(mapped) as view:
                ACCOUNT.put(view, SHAPE.account_at(slot, 1), "launches", launches)
            found = reader.read()
            assert isinstance(found, Counters)
            assert [m.accounts[1].launches for m in found.members] == [launches]


@pytest.mark.parametrize("there", [(), (0,), (0, 7)], ids=["nobody", "one", "two"])
def test_a_process_that_comes_is_in_the_next_look(region: Path, there: tuple[int, ...]) -> None:
    reader = CountersReader(region, cards=CARDS, generation=GENERATION)
    for _ in range(3 * shared.LOOKS):
        with alive(region, *there):
            reader.read(fresh=True)
            with alive(region, 1):
                take(region, 1, 17, b"x", cards=CARDS, card=0, units=1)
                found = reader.read()
        assert isinstance(found, Counters)
        assert [m.slot for m in found.members] == sorted({*there, 1})


def test_a_process_that_died_is_gone_when_the_look_must_be_fresh_and_within_a_few_otherwise(region: Path) -> None:
    reader = CountersReader(region, cards=CARDS, generation=GENERATION)
    for fresh in (True, False):
        with alive(region, 0):
            found = reader.read(fresh=True)
            assert isinstance(found, Counters)
            assert len(found.members) == 1
        looks = [reader.read(fresh=fresh) for _ in range(1 if fresh else shared.LOOKS)]
        assert isinstance(looks[-1], Counters)
        assert looks[-1].members == ()


def test_at_rest_a_look_is_one_system_call(region: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("pread", "lstat", "open", "fstat"):
        real = getattr(os, name)

        def call(*args: object, name: str = name, real: Callable[..., object] = real) -> object:
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, call)
    reader = CountersReader(region, cards=CARDS, generation=GENERATION)
    with alive(region, 0, 2):
        reader.read()
        calls.clear()
        for _ in range(2 * shared.LOOKS):
            reader.read()
    assert calls.count("pread") <= 2 * shared.LOOKS + 2 * 2
    assert calls.count("lstat") == 2
