"""Counters that only rise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.usage.tally import UsageTally
from fractile.model.units import CardUUID
from fractile.region.counters import Account, CardCount, Counters, Member
from fractile.region.page import CardLimits
from fractile.wire.fractile.arbiter_status import ArbiterCard, ArbiterStatus, Seat

CARD = CardUUID("GPU-a")
KEY = ("t", CARD)
S = 1_000_000_000


def ledger(*processes: tuple[int, int], generation: int = 1) -> Counters:
    """Each process: slot and GPU time in ns; as many launches as microseconds."""
    members = tuple(
        Member(slot, generation, 7, 99, 0, (Account(0, 1, gpu_ns, gpu_ns // 1000),)) for slot, gpu_ns in processes
    )
    return Counters((CardCount(0, 0, 0),), members)


def look(tally: UsageTally, *processes: tuple[int, int], generation: int = 1) -> None:
    tally.counted("t", (CardLimits(uuid=CARD, memory=1),), ledger(*processes, generation=generation))
    tally.keep(["t"])


def arbiter(now_ns: int, held: int, *, waited: int = 0, throttled: int = 0) -> ArbiterStatus:
    seat = Seat("t", held_ns=held, waited_ns=waited, throttled_ns=throttled)
    return ArbiterStatus(1, now_ns, (ArbiterCard(CARD, (seat,)),))


def test_what_the_first_look_finds_is_where_counting_begins() -> None:
    tally = UsageTally()
    look(tally, (0, 5 * S))
    assert tally.totals(KEY).gpu_ns == 0
    look(tally, (0, 7 * S))
    assert (tally.totals(KEY).gpu_ns, tally.totals(KEY).launches) == (2 * S, 2_000_000)


def test_a_process_that_comes_later_counts_from_its_start() -> None:
    tally = UsageTally()
    look(tally)
    look(tally, (0, 3 * S))
    assert tally.totals(KEY).gpu_ns == 3 * S


def test_what_ended_processes_did_stays() -> None:
    tally = UsageTally()
    look(tally)
    look(tally, (0, 3 * S), (1, 1 * S))
    look(tally, (1, 2 * S))
    look(tally)
    assert tally.totals(KEY).gpu_ns == 5 * S


def test_the_next_process_in_a_slot_counts_anew() -> None:
    tally = UsageTally()
    look(tally)
    look(tally, (0, 3 * S))
    look(tally, (0, 1 * S), generation=2)
    assert tally.totals(KEY).gpu_ns == 4 * S


def test_nonsense_from_a_container_counts_nothing() -> None:
    tally = UsageTally()
    look(tally, (0, 5))
    look(tally, (0, 2**64 - 1))
    look(tally, (0, 3))
    assert tally.totals(KEY).gpu_ns == 0


def test_the_arbiters_numbers_are_taken_from_where_they_stood_and_over_its_restart() -> None:
    tally = UsageTally()
    tally.arbitrated(arbiter(10 * S, 4 * S, waited=S, throttled=S))
    assert tally.totals(KEY).held_ns == 0
    tally.arbitrated(arbiter(11 * S, 5 * S, waited=2 * S, throttled=S))
    tally.arbitrated(arbiter(1 * S, S // 2))  # it was restarted
    totals = tally.totals(KEY)
    assert (totals.held_ns, totals.waited_ns, totals.throttled_ns) == (S + S // 2, S, 0)


def test_the_share_is_that_of_the_last_ten_seconds() -> None:
    tally = UsageTally()
    for second in range(31):
        tally.arbitrated(arbiter(second * S, held=min(second, 20) * S // 2))
    assert tally.totals(KEY).share_percent == 0
    tally = UsageTally()
    for second in range(31):
        tally.arbitrated(arbiter(second * S, held=second * S * 7 // 10))
    assert tally.totals(KEY).share_percent == 70


def test_who_comes_later_and_who_rests_have_their_share_of_the_time_that_they_are_known() -> None:
    def both(second: int, first: int, second_one: int | None) -> ArbiterStatus:
        seats = [Seat("t", held_ns=first)] + ([] if second_one is None else [Seat("u", held_ns=second_one)])
        return ArbiterStatus(1, second * S, (ArbiterCard(CARD, tuple(seats)),))

    tally = UsageTally()
    for second in range(5):
        tally.arbitrated(both(second, 7 * S, None))  # says the same: nobody computes
    assert tally.totals(KEY).share_percent == 0
    tally.arbitrated(both(5, 8 * S, 0))
    assert tally.totals(KEY).share_percent == 20
    assert tally.totals(("u", CARD)).share_percent is None
    for second in range(6, 9):
        tally.arbitrated(both(second, 8 * S, (second - 5) * S // 2))
    assert tally.totals(("u", CARD)).share_percent == 50
    assert tally.totals(KEY).share_percent == 12.5


def test_a_status_that_says_the_same_again_costs_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    tally = UsageTally()
    tally.arbitrated(arbiter(1 * S, S))

    def looked_at(_self: UsageTally, _key: tuple[str, CardUUID], _seat: Seat) -> None:
        raise AssertionError

    monkeypatch.setattr(UsageTally, "_seat", looked_at)
    for second in range(2, 40):
        tally.arbitrated(arbiter(second * S, S))
    assert tally.totals(KEY).share_percent == 0


def test_a_container_that_the_arbiter_knew_first_is_counted_when_it_is_known_here() -> None:
    tally = UsageTally()
    tally.arbitrated(arbiter(1 * S, 0))
    tally.keep([])
    tally.arbitrated(arbiter(2 * S, 0))
    tally.keep(["t"])
    assert tally.totals(KEY).held_ns == 0


def test_without_an_arbiter_its_numbers_are_unknown() -> None:
    tally = UsageTally()
    look(tally, (0, 1))
    assert (tally.totals(KEY).held_ns, tally.totals(KEY).share_percent) == (None, None)


def test_an_ended_container_is_forgotten() -> None:
    tally = UsageTally()
    look(tally)
    look(tally, (0, 3 * S))
    tally.arbitrated(arbiter(S, S))
    tally.keep([])
    assert (tally.totals(KEY).gpu_ns, tally.totals(KEY).held_ns) == (0, None)


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2**64 - 1)), unique_by=lambda p: p[0]), max_size=8)
)
def test_no_counter_ever_falls(looks: list[list[tuple[int, int]]]) -> None:
    tally = UsageTally()
    last = (0, 0)
    for processes in looks:
        look(tally, *processes)
        totals = tally.totals(KEY)
        assert totals.gpu_ns >= last[0]
        assert totals.launches >= last[1]
        last = totals.gpu_ns, totals.launches
