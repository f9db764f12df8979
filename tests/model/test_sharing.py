"""How cards may be cut."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.model.sharing import FREE, SharingRule
from fractile.model.units import MiB

CARD = MiB(16_276)
QUARTERS = SharingRule(4, (Fraction(1, 4), Fraction(1, 2)))


@pytest.mark.parametrize(
    ("memory", "cores", "admitted"),
    [
        pytest.param(4069, 0, True, id="a quarter"),
        pytest.param(4069, 25, True, id="a quarter with its share of the cores"),
        pytest.param(4069, 26, False, id="a quarter with more of the cores"),
        pytest.param(3072, 0, True, id="a quarter in whole GiB"),
        pytest.param(3840, 25, True, id="a quarter in blocks of 256 MiB"),
        pytest.param(3045, 0, False, id="more than 1 GiB too small"),
        pytest.param(4070, 0, False, id="more than a quarter"),
        pytest.param(8138, 50, True, id="a half"),
        pytest.param(CARD, 100, False, id="a whole card, which is none of the fractions"),
        pytest.param(0, 10, False, id="no memory"),
    ],
)
def test_a_slice_has_the_size_of_a_fraction(memory: int, cores: int, admitted: bool) -> None:
    assert QUARTERS.admits(CARD, memory=memory, cores=cores) is admitted


def test_without_rules_everything_is_allowed() -> None:
    assert FREE.admits(CARD, memory=1, cores=99)
    assert FREE.has_place(255, 1)
    assert not FREE.has_place(256, 1)  # kubelet is told of so many device ids for each card


def test_a_card_has_place_for_so_many_slices() -> None:
    assert QUARTERS.has_place(3, 1)
    assert not QUARTERS.has_place(3, 2)
    assert not QUARTERS.has_place(9, 0)  # a rule that came later: it is full


@given(st.integers(2, 8), st.integers(9_000, 200_000))
def test_as_many_equal_fractions_as_there_are_fit_on_a_card(parts: int, card: int) -> None:
    rule = SharingRule(parts, (Fraction(1, parts),))
    (size,) = rule.sizes(MiB(card))
    assert rule.admits(MiB(card), memory=size, cores=100 // parts)
    assert size * parts <= card < (size + 1) * parts
