"""The file that a container shares with its node, with anything written over it: readers answer, and never end."""

import contextlib
import os
import time
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.region import counters, directory, live, shared, usage
from tests.fuzz.test_decoders import EXAMPLES, LONGER
from tests.region.writer import alive, take
from tests.wire.golden_files import golden

CARDS, GENERATION = 2, 7
SIZE = shared.RegionShape(CARDS).size
NEAR = shared.RegionShape(CARDS).slot_at(8)  # header, cards and the slots that are in use
patches = st.lists(
    st.tuples(
        st.integers(0, NEAR) | st.integers(0, SIZE + 64),
        st.binary(min_size=1, max_size=16) | st.sampled_from([b"\xff" * 8, b"\xff" * 4096, b"\x00" * 64, b"\x80" * 8]),
    ),
    min_size=1,
    max_size=8,
)
bounded = settings(
    max_examples=EXAMPLES,
    derandomize=not LONGER,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def patched(path: Path, changes: list[tuple[int, bytes]], size: int | None = None) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        for at, data in changes:
            os.pwrite(descriptor, data, at)
        if size is not None:
            os.ftruncate(descriptor, size)
    finally:
        os.close(descriptor)


@bounded
@given(patches, st.none() | st.integers(0, 2 * SIZE))
def test_readers_of_a_region_survive_whatever_stands_in_it(
    tmp_path: Path, changes: list[tuple[int, bytes]], size: int | None
) -> None:
    path = tmp_path / f"region-{time.monotonic_ns()}"
    shared.create(path, cards=CARDS, generation=GENERATION)
    take(path, 0, 11, b"python", cards=CARDS, card=1, units=5)
    patched(path, changes, size)
    try:
        with alive(path, 0, 3):
            told = usage.usage(path, cards=CARDS, generation=GENERATION)
            assert isinstance(told, usage.RegionUsage | usage.Unreadable)
            if isinstance(told, usage.RegionUsage):
                assert len(told.cards) == CARDS
            assert isinstance(
                counters.counters(path, cards=CARDS, generation=GENERATION), counters.Counters | usage.Unreadable
            )
            shared.generation(path, cards=CARDS)
        shared.cut_back(path, cards=CARDS)
        assert path.stat().st_size <= SIZE
    finally:
        path.unlink()


def test_a_region_without_a_change_is_read_so_the_inputs_begin_with_a_good_one(tmp_path: Path) -> None:
    path = tmp_path / "region"
    shared.create(path, cards=CARDS, generation=GENERATION)
    take(path, 0, 11, b"python", cards=CARDS, card=1, units=5)
    with alive(path, 0):
        told = usage.usage(path, cards=CARDS, generation=GENERATION)
    assert isinstance(told, usage.RegionUsage)
    assert [p.pid for p in told.processes] == [11]


@bounded
@given(patches, st.none() | st.integers(0, 20_000))
def test_readers_of_limits_survive_a_damaged_page(
    tmp_path: Path, changes: list[tuple[int, bytes]], size: int | None
) -> None:
    path = tmp_path / directory.LIMITS
    path.write_bytes(golden("limits-v2.bin"))
    patched(path, [(at % 13_000, data) for at, data in changes], size)
    with contextlib.suppress(WireError):
        live.read(path)
    with contextlib.suppress(WireError):
        directory.read(tmp_path)
    assert live.is_page(path) in (True, False)
