"""Which ids are preferred."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.agent.deviceplugin.preferred_ids import prefer
from fractile.model.units import CardUUID
from fractile.wire.fractile.device_ids import count_by_card, device_ids, to_ranges

A, B, C = CardUUID("GPU-a"), CardUUID("GPU-b"), CardUUID("GPU-c")
FREE = [*device_ids(B, 8), *device_ids(A, 4), *device_ids(C, 6)]


def test_the_wanted_card_comes_first_with_its_lowest_numbers() -> None:
    assert to_ranges(prefer(FREE, [], 3, wanted={B: 3})) == "GPU-b::0-2"


def test_ids_that_must_be_included_count_towards_the_wanted_card() -> None:
    chosen = prefer(FREE, ["GPU-b::7"], 3, wanted={B: 3})
    assert chosen[0] == "GPU-b::7"
    assert to_ranges(chosen) == "GPU-b::0-1,7"


def test_several_wanted_cards_each_give_their_share() -> None:
    assert count_by_card(prefer(FREE, [], 2, wanted={C: 1, A: 1})) == {C: 1, A: 1}


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        pytest.param(4, "GPU-a::0-3", id="the tightest card that serves all"),
        pytest.param(5, "GPU-c::0-4", id="the next larger when it does not"),
        pytest.param(9, "GPU-a::0 GPU-b::0-7", id="the largest and then the tightest for the rest"),
    ],
)
def test_without_a_wish_ids_are_packed_on_as_few_cards_as_possible(size: int, expected: str) -> None:
    assert to_ranges(prefer(FREE, [], size, wanted={})) == expected


@pytest.mark.parametrize(
    ("size", "distinct", "room", "expected"),
    [
        pytest.param(4, False, {A: 100, B: 900, C: 800}, {B: 4}, id="the one with the most"),
        pytest.param(5, False, {A: 900, B: 100, C: 800}, {C: 5}, id="of those that have enough ids"),
        pytest.param(4, False, {A: 0}, {A: 4}, id="the tightest where none has any"),
        pytest.param(2, True, {A: 1, B: 9, C: 5}, {B: 1, C: 1}, id="two different ones"),
    ],
)
def test_among_equals_those_with_room_come_first(
    size: int, distinct: bool, room: dict[CardUUID, int], expected: dict[CardUUID, int]
) -> None:
    assert count_by_card(prefer(FREE, [], size, wanted={}, distinct=distinct, room=room)) == expected


def test_what_the_wanted_card_lacks_comes_from_others() -> None:
    assert count_by_card(prefer(FREE, [], 6, wanted={A: 6})) == {A: 4, C: 2}


def test_an_unknown_wanted_card_is_no_obstacle() -> None:
    assert len(prefer(FREE, [], 2, wanted={CardUUID("GPU-gone"): 2})) == 2


@pytest.mark.parametrize("size", [-5, 0, 10**9])
def test_impossible_sizes_give_what_there_is(size: int) -> None:
    assert len(prefer(FREE, ["GPU-a::0"], size, wanted={})) == max(1, min(size, len(FREE)))


IDS = st.one_of(st.sampled_from(FREE), st.text(max_size=12), st.just("GPU-a::007"))


@settings(deadline=None)  # the machine may be busy
@given(
    available=st.lists(IDS, max_size=30),
    must=st.lists(IDS, max_size=5),
    size=st.integers(-2, 40),
    wanted=st.dictionaries(st.sampled_from([A, B, C, CardUUID("")]), st.integers(-3, 20)),
)
def test_the_answer_is_always_usable(
    available: list[str], must: list[str], size: int, wanted: dict[CardUUID, int]
) -> None:
    chosen = prefer(available, must, size, wanted=wanted)
    assert len(chosen) == len(set(chosen))
    assert set(must) <= set(chosen)
    assert set(chosen) - set(must) <= set(available)
    assert len(chosen) <= max(size, len(set(must)))
    assert chosen == prefer(list(reversed(available)), must, size, wanted=wanted)


def test_ids_that_stand_for_cards_are_of_as_many_cards_as_possible() -> None:
    assert count_by_card(prefer(FREE, [], 3, wanted={}, distinct=True)) == {A: 1, B: 1, C: 1}
    assert count_by_card(prefer(FREE, ["GPU-c::5"], 2, wanted={}, distinct=True)) == {C: 1, A: 1}
    assert count_by_card(prefer(FREE, [], 2, wanted={B: 1}, distinct=True)) == {B: 1, A: 1}
    assert count_by_card(prefer(FREE, [], 4, wanted={}, distinct=True)) == {A: 2, B: 1, C: 1}
    assert len(prefer(FREE, [], 99, wanted={}, distinct=True)) == len(FREE)
