"""When a card is sick, and when it returns."""

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.model.health import HEALTHY, CardEvent, EventKind, HealthReading, HealthVerdict, Silence
from fractile.policy import health
from fractile.policy.health import WELL, CardHealth, HealthRules, notice, observe, verdict
from fractile.policy.xids import XIDS, XidKind
from tests.builders import card

CARD = card()
RULES = HealthRules()
LONGEST = RULES.replace + RULES.watched_most
FINE = HealthReading(index=0, card=CARD, temperature=40, slowdown_at=90, shutdown_at=95, uncorrected=0)


def reading(**changes: object) -> HealthReading:
    return msgspec.structs.replace(FINE, **changes)


def silent(why: Silence) -> HealthReading:
    return HealthReading(index=0, card=None, silence=why, error="GPU is lost")


def xid(number: int) -> CardEvent:
    return CardEvent(CARD.uuid, EventKind.XID, xid=number)


def after(*steps: tuple[float, HealthReading | CardEvent | None], rules: HealthRules = RULES) -> CardHealth:
    """The state after what came at these times; None: the driver does not list the card."""
    state = WELL
    for now, step in steps:
        state = (notice if isinstance(step, CardEvent) else observe)(state, step, now=now, rules=rules)  # pyright: ignore[reportArgumentType]
    return state


def of(kind: XidKind) -> list[int]:
    return [number for number, known in XIDS.items() if known.kind is kind]


# What makes a card sick


@pytest.mark.parametrize("number", [*of(XidKind.APPLICATION), *of(XidKind.NOTE)])
def test_a_programs_own_error_leaves_the_card_healthy(number: int) -> None:
    assert verdict(after((0, FINE), (1, xid(number)))) == HEALTHY


@pytest.mark.parametrize("number", [*of(XidKind.PASSES), *of(XidKind.RESET), *of(XidKind.REPLACE)])
def test_an_error_of_the_card_makes_it_sick_and_says_which(number: int) -> None:
    found = verdict(after((0, FINE), (7, xid(number)), (8, FINE)))
    assert (found.healthy, found.reason, found.since) == (False, f"Xid{number}", 7)
    assert found.message.startswith(f"XID {number}: {XIDS[number].text}")


def test_the_numbers_that_a_program_can_cause_are_those_that_nvidias_plugin_leaves_alone_and_more() -> None:
    assert {13, 31, 43, 45, 68, 109} <= set(of(XidKind.APPLICATION))


def test_an_unknown_number_takes_the_card_out_for_a_while_only() -> None:
    state = after((0, xid(4711)))
    assert verdict(state).until == RULES.passes
    assert verdict(observe(state, FINE, now=RULES.passes, rules=RULES)).healthy


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param(silent(Silence.LOST), "CardLost", id="lost"),
        pytest.param(silent(Silence.RESET_REQUIRED), "ResetRequired", id="does not answer before a reset"),
        pytest.param(None, "CardGone", id="not listed"),
        pytest.param(reading(reset_wanted=True), "ResetRequired", id="the driver wants a reset"),
        pytest.param(reading(repair_failed=True), "RepairFailed", id="no spare rows"),
        pytest.param(reading(prohibited=True), "ComputeProhibited", id="compute mode"),
        pytest.param(reading(partitioned=True), "MigEnabled", id="mig"),
        pytest.param(reading(temperature=95), "Overheated", id="at the temperature of shutdown"),
    ],
)
def test_what_the_driver_shows_makes_a_card_sick_while_it_lasts_and_no_longer(
    seen: HealthReading | None, reason: str
) -> None:
    rules = HealthRules(cool=0.0)
    state = after((0, FINE), (5, seen), (10, seen), rules=rules)
    assert (verdict(state).reason, verdict(state).since, verdict(state).until) == (reason, 5, None)
    assert verdict(observe(state, FINE, now=15, rules=rules)) == HEALTHY


def test_ecc_errors_from_before_we_looked_are_not_held_against_the_card_and_new_ones_are() -> None:
    old = reading(uncorrected=3)
    assert verdict(after((0, old), (5, old))).healthy
    assert verdict(after((0, old), (5, reading(uncorrected=4)))).reason == "UncorrectableECC"
    event = CardEvent(CARD.uuid, EventKind.UNCORRECTED)
    assert verdict(after((0, old), (5, event))).reason == "UncorrectableECC"


def test_corrected_errors_and_rows_that_wait_for_a_reset_leave_the_card_healthy() -> None:
    assert verdict(after((0, FINE), (5, reading(corrected=1000, repair_pending=True)))).healthy


def test_a_reading_that_fails_once_or_twice_is_no_sickness_and_the_third_is() -> None:
    fails = silent(Silence.ERROR)
    assert verdict(after((0, FINE), (5, fails), (10, fails))).healthy
    assert verdict(after((0, FINE), (5, fails), (10, FINE), (15, fails), (20, fails))).healthy
    assert verdict(after((0, FINE), (5, fails), (10, fails), (15, fails))).reason == "DriverError"


def test_a_driver_that_says_little_makes_nobody_sick() -> None:
    assert verdict(after((0, HealthReading(index=0, card=CARD)), (5, HealthReading(index=0, card=CARD)))).healthy


def test_a_driver_that_hangs_makes_its_card_sick_until_it_answers() -> None:
    state = health.hung(after((0, FINE)), now=40, rules=RULES)
    assert verdict(state).reason == "DriverHangs"
    assert verdict(observe(state, FINE, now=60, rules=RULES)).healthy


# Heat


def test_a_moment_of_heat_is_no_sickness_and_lasting_heat_is() -> None:
    hot = reading(temperature=91)
    assert verdict(after((0, hot), (5, hot), (10, FINE), (15, hot), (40, hot))).healthy
    assert verdict(after((0, hot), (5, hot), (30, hot))).reason == "Overheated"


def test_a_card_that_was_hot_returns_when_it_was_cool_for_long_enough_and_not_at_the_edge() -> None:
    hot, warm, cool = reading(temperature=91), reading(temperature=88), reading(temperature=80)
    state = after((0, hot), (30, hot), (60, warm), (600, warm))
    assert not verdict(state).healthy, "just below the threshold is not cool"
    state = observe(state, cool, now=605, rules=RULES)
    assert verdict(state).until == 600 + RULES.cool
    assert not verdict(observe(state, cool, now=899, rules=RULES)).healthy
    assert verdict(observe(state, cool, now=900, rules=RULES)).healthy


# How it returns


def test_a_lost_card_returns_when_it_answers_again_and_its_xid_with_it() -> None:
    state = after((0, FINE), (1, xid(79)), (2, silent(Silence.LOST)), (500, silent(Silence.LOST)))
    assert verdict(state).reason == "CardLost"
    assert verdict(observe(state, FINE, now=505, rules=RULES)) == HEALTHY


@pytest.mark.parametrize(
    ("before", "afterwards"),
    [
        pytest.param(reading(uncorrected=2), reading(uncorrected=0), id="the counters begin again"),
        pytest.param(reading(reset_wanted=True), reading(reset_wanted=False), id="the driver wants no reset any more"),
    ],
)
def test_a_reset_that_is_seen_ends_what_a_reset_cures(before: HealthReading, afterwards: HealthReading) -> None:
    state = after((0, FINE), (1, xid(95)), (2, before))
    assert not verdict(state).healthy
    assert verdict(observe(state, afterwards, now=10, rules=RULES)).healthy


def test_without_a_sign_of_a_reset_a_card_returns_after_the_time_for_it_and_each_error_begins_it_anew() -> None:
    state = after((0, FINE), (10, xid(119)), (100, xid(119)))
    assert verdict(state).until == 100 + RULES.reset
    assert not verdict(observe(state, FINE, now=99 + RULES.reset, rules=RULES)).healthy
    assert verdict(observe(state, FINE, now=100 + RULES.reset, rules=RULES)).healthy


def test_a_card_that_is_lost_again_and_again_is_watched_twice_as_long_each_time() -> None:
    state, now, waits = WELL, 0.0, list[float]()
    for _ in range(9):
        state = observe(state, silent(Silence.LOST), now=now, rules=RULES)
        answered = now = now + 5
        state = observe(state, FINE, now=now, rules=RULES)
        while not verdict(state).healthy:
            assert "stays out of service for a while" in verdict(state).message
            now += 5
            state = observe(state, FINE, now=now, rules=RULES)
        waits.append(now - answered)
        now += 5
    assert waits == [0, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def test_relapses_of_long_ago_do_not_count() -> None:
    state = after((0, silent(Silence.LOST)), (5, FINE), (RULES.window + 1, silent(Silence.LOST)))
    assert verdict(observe(state, FINE, now=RULES.window + 6, rules=RULES)).healthy


def test_a_card_that_the_driver_does_not_list_is_forgotten_after_a_while_and_not_before() -> None:
    state = after((0, FINE), (10, None), (20, None))
    assert not health.forgettable(state, now=9 + RULES.forgotten, rules=RULES)
    assert health.forgettable(state, now=10 + RULES.forgotten, rules=RULES)
    assert not health.forgettable(observe(state, FINE, now=30, rules=RULES), now=1e9, rules=RULES)


# What a site changes


def test_a_site_may_ignore_numbers_and_add_some() -> None:
    rules = HealthRules(ignored_xids=frozenset({79, 74}), added_xids=frozenset({31, 48}))
    assert verdict(after((0, xid(74)), rules=rules)).healthy
    added = verdict(after((0, xid(31)), rules=rules))
    assert (added.reason, added.until) == ("Xid31", rules.reset)
    assert verdict(after((0, xid(79)), (1, silent(Silence.LOST)), rules=rules)).reason == "CardLost"


# After a restart of the agent


def test_what_was_known_before_a_restart_holds_until_its_time() -> None:
    before = verdict(after((0, FINE), (10, xid(119))))
    state = health.restored(observe(WELL, FINE, now=100, rules=RULES), before, now=100, rules=RULES)
    assert (verdict(state).reason, verdict(state).message) == (before.reason, before.message)
    assert (verdict(state).since, verdict(state).until) == (before.since, before.until)
    assert verdict(observe(state, FINE, now=10 + RULES.reset, rules=RULES)).healthy


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(HEALTHY, id="healthy"),
        pytest.param(HealthVerdict(False, "CardLost", "gone", 1, None), id="a condition, which readings show"),
        pytest.param(HealthVerdict(False, "Xid119", "m", 1, 99), id="over by now"),
    ],
)
def test_what_is_over_or_will_show_itself_is_not_restored(known: HealthVerdict) -> None:
    assert verdict(health.restored(WELL, known, now=100, rules=RULES)).healthy


@pytest.mark.parametrize(("counted", "healthy"), [(0, True), (2, False), (None, False)])
def test_an_ecc_error_is_not_restored_when_its_counter_began_anew(counted: int | None, healthy: bool) -> None:
    before = verdict(after((0, FINE), (10, xid(48))))
    state = observe(WELL, reading(uncorrected=counted), now=100, rules=RULES)
    assert verdict(health.restored(state, before, now=100, rules=RULES)).healthy is healthy


# For all cards and histories

_readings = st.one_of(
    st.none(),
    st.builds(silent, st.sampled_from(Silence)),
    st.builds(
        reading,
        temperature=st.one_of(st.none(), st.integers(20, 110)),
        uncorrected=st.one_of(st.none(), st.integers(0, 5)),
        reset_wanted=st.one_of(st.none(), st.booleans()),
        repair_failed=st.one_of(st.none(), st.booleans()),
        prohibited=st.one_of(st.none(), st.booleans()),
        partitioned=st.one_of(st.none(), st.booleans()),
    ),
)
_events = st.one_of(
    st.builds(xid, st.one_of(st.sampled_from(sorted(XIDS)), st.integers(1, 200))),
    st.just(CardEvent(CARD.uuid, EventKind.UNCORRECTED)),
)
_histories = st.lists(st.tuples(st.floats(0, 4000), st.one_of(_readings, _events)), max_size=30)


def timed(
    steps: list[tuple[float, HealthReading | CardEvent | None]],
) -> Iterator[tuple[float, HealthReading | CardEvent | None]]:
    now = 0.0
    for pause, step in steps:
        now += pause
        yield now, step


@given(_histories)
def test_every_card_returns_once_it_is_well(steps: list[tuple[float, HealthReading | CardEvent | None]]) -> None:
    history = list(timed(steps))
    state, now = after(*history), history[-1][0] if history else 0.0
    for _ in range(2):
        now += LONGEST
        state = observe(state, FINE, now=now, rules=RULES)
    assert verdict(state) == HEALTHY


@given(_histories)
def test_a_verdict_is_whole_and_says_a_time_to_come(
    steps: list[tuple[float, HealthReading | CardEvent | None]],
) -> None:
    state = WELL
    for now, step in timed(steps):
        state = (notice if isinstance(step, CardEvent) else observe)(state, step, now=now, rules=RULES)  # pyright: ignore[reportArgumentType]
        found = verdict(state)
        assert found.healthy is not bool(found.reason and found.message)
        assert found.since <= now
        assert found.until is None or now < found.until <= now + LONGEST
        assert len(state.sicknesses) <= 16


@given(_histories, _events)
def test_while_the_driver_shows_a_condition_no_event_ends_it(
    steps: list[tuple[float, HealthReading | CardEvent | None]], event: CardEvent
) -> None:
    history = list(timed(steps))
    now = history[-1][0] if history else 0.0
    state = observe(after(*history), silent(Silence.LOST), now=now + 1, rules=RULES)
    assert not verdict(notice(state, event, now=now + 2, rules=RULES)).healthy
