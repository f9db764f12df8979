"""Quantities as people write them."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.wire import quantity
from fractile.wire.measure import LIMIT, Measure, measure

EQUAL = (
    ("10GiB", "10Gi", "10gib", "10 GiB", "10gi", "10737418240", "10737418240B", "1.0737418240e10"),
    ("1.5GHz", "1500MHz", "1.5 ghz", "1500mhz", "1.5e9", "1500000000Hz", "1.5G"),
    ("10GB", "10G", "10gb", "10Gb", "10000MB", "1e10"),
    ("200Gb/s", "200Gbps", "25GB/s", "25GBps", "200gbit/s", "200 Gb/s"),
    ("250W", "0.25kW", "250w", "250"),
    ("500m", "0.5", ".5", "5e-1", "500000u"),
    ("8.0", "8", "+8", "8."),
    ("-40", "-40.0"),
)
NONE = (
    "", " ", "lots", "Tesla V100", "535.104.05", "10 GiB ", "10  GiB", " 10", "1_000", "0x10", "10GiBs", "10Xi", "NaN",
    "Infinity", "1e", ".", "-", "--1", "1,5", "٣", "10Gi\n", "1e999", "99999999999999999999", "8Ei",
    "9223372036854775808", "1" * 41, "1GBPS", "1e+", "10 e3",
)  # fmt: skip


@pytest.mark.parametrize("texts", EQUAL, ids=lambda texts: texts[0])
def test_what_people_write_in_several_ways_has_one_value(texts: tuple[str, ...]) -> None:
    found = [measure(t) for t in texts]
    assert None not in found
    assert len({m.value for m in found if m is not None}) == 1, dict(zip(texts, found, strict=True))


@pytest.mark.parametrize("text", NONE, ids=repr)
def test_what_is_no_quantity_has_no_value(text: str) -> None:
    assert measure(text) is None


def test_milli_and_mega_are_told_apart_where_no_unit_says_which() -> None:
    assert measure("1m") == Measure(Fraction(1, 1000))
    assert measure("1M") == Measure(Fraction(10**6))
    assert measure("1mHz") == measure("1MHz") == Measure(Fraction(10**6), "Hz")


def test_quantities_of_different_units_cannot_be_compared() -> None:
    clock, memory, bare = (measure(t) for t in ("1GHz", "1GiB", "1G"))
    assert clock is not None
    assert memory is not None
    assert bare is not None
    assert not clock.comparable(memory)
    assert clock.comparable(bare)
    assert memory.comparable(bare)


@given(st.from_regex(r"\A[+-]?[0-9]{1,12}(\.[0-9]{0,6})?(Ki|Mi|Gi|Ti|n|u|m|k|M|G|T|[eE][+-]?[0-9])?\Z"))
def test_what_kubernetes_reads_has_the_same_value(text: str) -> None:
    exact = quantity.parse(text)
    assert measure(text) == (Measure(exact) if abs(exact) <= LIMIT else None)


@given(st.text(st.sampled_from("0123456789.+-eEkKmMgGtTiIbBhHzZ/ sp"), max_size=12))
def test_nothing_that_is_written_breaks_it(text: str) -> None:
    found = measure(text)
    assert found is None or abs(found.value) <= LIMIT
    try:
        exact = quantity.parse(text)
    except WireError:
        return
    assert found is None or found == Measure(exact)
