"""Device ids and their ranges."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.units import CardUUID, DeviceID
from fractile.wire.fractile import device_ids
from tests.wire.golden_files import golden

A, B = (f"GPU-4f2b4d9e-0000-4000-8000-00000000000{i}" for i in range(2))


def test_an_id_names_its_card_and_a_number() -> None:
    assert device_ids.device_id(CardUUID(A), 7) == f"{A}::7"
    assert device_ids.split(f"{A}::7") == (A, 7)
    assert device_ids.card_of(f"{A}::7") == A


def test_a_card_has_as_many_ids_as_asked() -> None:
    assert device_ids.device_ids(CardUUID("GPU-a"), 3) == ["GPU-a::0", "GPU-a::1", "GPU-a::2"]
    assert device_ids.device_ids(CardUUID("GPU-a"), 0) == []


def test_ids_are_counted_by_card() -> None:
    assert device_ids.count_by_card([f"{B}::1", f"{A}::0", f"{B}::0"]) == {B: 2, A: 1}


def test_ranges_are_written_byte_for_byte_as_recorded_whatever_the_order() -> None:
    ids = [f"{B}::5", f"{A}::7", f"{A}::1", f"{A}::0", f"{A}::2", f"{A}::1"]
    assert device_ids.to_ranges(ids).encode() == golden("device-ranges.txt")
    assert device_ids.to_ranges(reversed(ids)).encode() == golden("device-ranges.txt")


def test_ranges_are_read_as_recorded() -> None:
    wanted = {DeviceID(f"{A}::{k}") for k in (0, 1, 2, 7)} | {DeviceID(f"{B}::5")}
    assert device_ids.from_ranges(golden("device-ranges.txt").decode()) == wanted


def test_no_ids_are_an_empty_line() -> None:
    assert device_ids.to_ranges([]) == ""
    assert device_ids.from_ranges("") == frozenset()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GPU-a",
        "GPU-a::",
        "::3",
        "GPU-a::-1",
        "GPU-a::x",
        "GPU-a::1.5",
        "GPU-a::²",
        "GPU-a::٣",
        "GPU-a::007",
        "GPU-a::1234567",
        "GPU a::1",
        "GPU-a::1 ",
        "GPU-a:1",
    ],
)
def test_what_is_no_device_id_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="is not a device id"):
        device_ids.split(text)


@pytest.mark.parametrize(
    "text",
    [
        "GPU-a",
        "GPU-a::",
        "::1",
        "GPU-a::1-",
        "GPU-a::-1",
        "GPU-a::1,,2",
        "GPU-a::1-2-3",
        "GPU-a::²",
        "GPU-a::٣",
        "GPU-a::1 2",
        "GPU-a::" + "1" * 5000,
        "GPU-a::1-1234567",
    ],
)
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(WireError, match="is not a range of device ids"):
        device_ids.from_ranges(text)


MANY = st.frozensets(st.sampled_from([f"{card}::{k}" for card in (A, B) for k in range(200)]))


@given(MANY, MANY)
def test_a_set_as_ranges_is_like_the_set(one: frozenset[str], other: frozenset[str]) -> None:
    ranges, others = device_ids.Ranges(device_ids.to_ranges(one)), device_ids.Ranges(device_ids.to_ranges(other))
    assert set(ranges) == one
    assert len(ranges) == len(one)
    assert ranges == one
    assert one == ranges
    assert hash(ranges) == hash(one)
    assert (ranges == others, ranges == other, one == others) == (one == other,) * 3
    assert ranges & others == one & other
    assert (ranges <= others) == (one <= other)
    assert all((device in ranges) == (device in one) for device in other | {"GPU-a", "x::1"})
    assert device_ids.to_ranges(ranges) == device_ids.to_ranges(one)


@pytest.mark.parametrize("count", [0, 1, 64, 65, 4000])
@pytest.mark.parametrize("form", ["GPU-a::{}", "none of ours {}"])
def test_compact_is_the_same_set(count: int, form: str) -> None:
    ids = [form.format(k) for k in range(count)]
    assert device_ids.compact([*ids, *ids]) == frozenset(ids)


def test_many_ids_take_little_room() -> None:
    held = device_ids.compact(device_ids.device_ids(CardUUID("GPU-a"), 16_000))
    assert isinstance(held, device_ids.Ranges)
    assert sys.getsizeof(held) + sys.getsizeof(held.text) < 300
