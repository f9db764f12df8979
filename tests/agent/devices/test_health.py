"""A card's sickness seen from kubelet, from the API server and from the pods, through the whole agent."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.devices.health import HealthMonitor
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.kube import paths
from fractile.model.card import Card
from fractile.model.health import CardEvent, EventKind, HealthReading, HealthVerdict, Silence
from fractile.model.units import CardUUID, MemoryUnit, MiB
from fractile.nvml.watcher import Failed, Readings, Report
from fractile.policy.health import HealthRules
from fractile.wire.fractile.device_ids import MAX_PER_RESOURCE
from fractile.wire.fractile.extended_resource import (
    HEALTHY,
    ExtendedResource,
    ExtendedResourceStatus,
    from_card,
    object_name,
)
from tests.agent.world import CARDS, COUNT, MEM, NODE, Asks, World, card, world

A, B = CARDS
ALL = 32  # GiB of both cards


async def until(true: Callable[[], bool], *, seconds: float = 20.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def status(w: World, card: Card) -> dict[str, Any]:
    found = {o["metadata"]["name"]: o for o in w.server.all(paths.extended_resources())}
    return found.get(object_name(card.uuid), {}).get("status", {})


def told(w: World, pod: str) -> list[tuple[str, str]]:
    events = w.server.all(paths.events("default"))
    return [(e["reason"], e["message"]) for e in events if e["involvedObject"]["name"] == pod]


async def test_a_lost_card_is_taken_out_alone_with_a_reason_and_returns_by_itself() -> None:
    async with world() as w:
        on_a, on_b = (w.admit(Asks("main", 4), on={"main": [c]}, name=n) for c, n in ((A, "a"), (B, "b")))
        await w.kubelet.running(on_a)
        await w.kubelet.running(on_b)
        await until(lambda: status(w, A).get("phase") in HEALTHY)

        w.hurt(A, lost=True)
        await until(lambda: w.kubelet.capacity() == {**w.kubelet.capacity(), MEM: (ALL, 16), COUNT: (2, 1)})
        await until(lambda: status(w, A).get("phase") == "Unhealthy")
        assert status(w, A)["reason"] == "CardLost"
        assert "returns to service when it answers" in status(w, A)["message"]
        assert status(w, A)["lastTransitionTime"].endswith("Z")
        assert "returnsAt" not in status(w, A)
        assert status(w, B)["phase"] in HEALTHY
        await until(lambda: bool(told(w, "a")))
        assert [reason for reason, _ in told(w, "a")] == ["CardUnhealthy"]
        assert A.uuid in told(w, "a")[0][1]
        assert told(w, "b") == []

        late = w.admit(Asks("main", 4), on={"main": [B]}, name="late")
        await w.kubelet.running(late)
        w.check(on_a, on_b, late)

        w.hurt(A)
        await w.kubelet.registered(MEM, ALL)
        await until(lambda: status(w, A).get("phase") in HEALTHY)
        assert not {"reason", "message", "returnsAt"} & set(status(w, A))
        await until(lambda: sorted(reason for reason, _ in told(w, "a")) == ["CardHealthy", "CardUnhealthy"])
        assert told(w, "b") == []


async def test_an_error_of_a_program_is_told_to_the_pods_of_the_card_and_changes_nothing_else() -> None:
    async with world() as w:
        on_a, on_b = (w.admit(Asks("main", 4), on={"main": [c]}, name=n) for c, n in ((A, "a"), (B, "b")))
        await w.kubelet.running(on_a)
        await w.kubelet.running(on_b)
        w.hurt(A, xids=[31])
        await until(lambda: bool(told(w, "a")))
        ((reason, message),) = told(w, "a")
        assert (reason, "XID 31" in message, "of this pod" in message) == ("ProgramFailedOnCard", True, True)
        assert told(w, "b") == []
        await asyncio.sleep(0.3)
        assert w.kubelet.capacity()[MEM] == (ALL, ALL)
        assert status(w, A)["phase"] in HEALTHY


async def test_an_error_of_the_card_takes_it_out_for_its_time_and_the_status_says_until_when() -> None:
    async with world(rules=HealthRules(reset=1.5)) as w:
        w.hurt(B, xids=[119])
        await w.kubelet.registered(MEM, 16)
        await until(lambda: status(w, B).get("phase") == "Unhealthy")
        assert status(w, B)["reason"] == "Xid119"
        assert status(w, B)["returnsAt"] >= status(w, B)["lastTransitionTime"]
        await w.kubelet.registered(MEM, ALL)
        await until(lambda: status(w, B).get("phase") in HEALTHY)


async def test_heat_takes_a_card_out_and_coolness_brings_it_back() -> None:
    async with world(rules=HealthRules(hot=0.3, cool=0.3)) as w:
        w.hurt(B, temperature=92)
        await until(lambda: status(w, B).get("reason") == "Overheated")
        w.hurt(B, temperature=50)
        await until(lambda: status(w, B).get("phase") in HEALTHY)


async def test_a_restarted_agent_remembers_a_sick_card_and_until_when() -> None:
    async with world() as w:
        w.hurt(B, xids=[119])
        await until(lambda: status(w, B).get("reason") == "Xid119")
        before = status(w, B)
        await w.restart_agent()
        await w.kubelet.registered(MEM, 16)
        await asyncio.sleep(0.3)
        assert status(w, B) == before
        assert w.kubelet.capacity()[MEM] == (ALL, 16)


async def test_a_restarted_agent_knows_a_card_that_does_not_answer() -> None:
    async with world() as w:
        await until(lambda: status(w, B).get("phase") in HEALTHY)
        w.hurt(B, lost=True)
        await until(lambda: status(w, B).get("reason") == "CardLost")
        await w.restart_agent()
        await until(lambda: w.kubelet.capacity().get(MEM) == (ALL, 16))
        assert status(w, B)["reason"] == "CardLost"
        w.hurt(B)
        await w.kubelet.registered(MEM, ALL)


async def test_what_a_sick_card_says_is_said_again_when_somebody_deletes_its_object() -> None:
    async with world() as w:
        w.hurt(B, lost=True)
        await until(lambda: status(w, B).get("phase") == "Unhealthy")
        w.server.delete(paths.extended_resource(object_name(B.uuid)))
        w.hurt(B, lost=True, xids=[31])
        w.hurt(A, lost=True)  # the inventory looks again when something changes
        await until(lambda: status(w, B).get("phase") == "Unhealthy")


# One report at a time


class Silent:
    """A driver of which only ``asking`` is asked."""

    def __init__(self) -> None:
        self.hanging: CardUUID | None = None

    def cards(self) -> list[Card]:
        return list(CARDS)

    def readings(self) -> list[HealthReading]:
        return [HealthReading(index=c.index, card=c) for c in CARDS]

    def events(self, timeout: float) -> list[CardEvent]:
        return []

    def renew(self) -> None: ...

    def asking(self) -> CardUUID | None:
        return self.hanging

    def close(self) -> None: ...


class Record:
    def __init__(self) -> None:
        self.turns: list[tuple[CardUUID, bool]] = []

    def turned(self, card: Card, verdict: HealthVerdict) -> None:
        self.turns.append((card.uuid, verdict.healthy))

    def failed(self, card: Card, event: CardEvent, text: str) -> None: ...


@pytest.fixture
def driver() -> Silent:
    return Silent()


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def made(
    driver: Silent,
    clock: Time,
    *,
    rules: HealthRules = HealthRules(),  # noqa: B008
) -> tuple[HealthMonitor, CurrentCatalog, Record]:
    current_catalog, record = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.GiB)), Record()
    return (
        HealthMonitor(driver, current_catalog, record, rules=rules, clock=clock, wall=lambda: 1e9 + clock()),
        current_catalog,
        record,
    )


def answers(*cards: Card) -> Readings:
    return Readings(tuple(HealthReading(index=c.index, card=c) for c in cards))


def healthy(current_catalog: CurrentCatalog) -> dict[CardUUID, bool]:
    return {c.uuid: c.healthy for c in current_catalog.catalog.cards}


def test_a_driver_that_hangs_costs_the_card_that_it_was_asked_about(driver: Silent) -> None:
    health, current_catalog, record = made(driver, Time())
    health.take(answers(A, B))
    health.take(None)
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: True}, "the card that is meant is unknown"
    driver.hanging = A.uuid
    health.take(None)
    assert healthy(current_catalog) == {A.uuid: False, B.uuid: True}
    assert health.verdict(A.uuid).reason == "DriverHangs"
    health.take(answers(A, B))
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: True}
    assert record.turns == [(A.uuid, False), (A.uuid, True)]


def test_a_card_that_is_not_listed_any_more_stays_sick_for_a_while_and_leaves(driver: Silent) -> None:
    clock = Time()
    health, current_catalog, _ = made(driver, clock)
    health.take(answers(A, B))
    health.take(answers(A))
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: False}
    clock.now += HealthRules().forgotten
    health.take(answers(A))
    assert healthy(current_catalog) == {A.uuid: True}


@pytest.mark.parametrize("fraction", [0.0, 0.2, 0.5, 0.999])
def test_a_time_that_is_read_back_is_written_as_it_was(driver: Silent, fraction: float) -> None:
    clock = Time()
    health, _, _ = made(driver, clock)
    health.take(answers(A, B))
    stamp = health.stamp(clock.now + fraction)
    clock.now += 100.3
    later = HealthMonitor(
        driver,
        CurrentCatalog(Catalog.of(CARDS, MemoryUnit.GiB)),
        Record(),
        rules=HealthRules(),
        clock=clock,
        wall=at(clock),
    )
    later.take(answers(A, B))
    later.adopt([sick(A, last_transition_time=stamp, returns_at=later.stamp(clock.now + 60))])
    assert later.stamp(later.verdict(A.uuid).since) == stamp


def at(clock: Time) -> Callable[[], float]:
    """The wall clock of the second start: the two clocks never agree to the microsecond."""
    return lambda: 1e9 + clock() - 1e-4


def test_a_new_card_is_offered_at_once(driver: Silent) -> None:
    health, current_catalog, _ = made(driver, Time())
    health.take(answers(A, B, card(2)))
    assert len(healthy(current_catalog)) == 3


def test_a_card_for_which_there_are_no_device_ids_left_does_not_hide_how_the_others_are(driver: Silent) -> None:
    health, current_catalog, _ = made(driver, Time())
    huge = Card(uuid=CardUUID("GPU-huge"), index=2, model=A.model, memory=MiB(MAX_PER_RESOURCE * 1024))
    health.take(answers(A, B, huge))
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: True}
    health.take(answers(A, huge))
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: False}


def test_a_catalog_that_does_not_change_is_not_published_again(driver: Silent) -> None:
    health, current_catalog, _ = made(driver, Time())
    before = current_catalog.catalog
    for _ in range(3):
        health.take(answers(A, B))
    assert current_catalog.catalog is before


def test_one_failure_of_the_driver_costs_nobody_anything(driver: Silent) -> None:
    health, current_catalog, _ = made(driver, Time())
    health.take(answers(A, B))
    health.take(Failed("not now"))
    health.take(answers(A, B))
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: True}


_hurt = st.one_of(
    st.just(
        Readings((HealthReading(index=A.index, card=None, silence=Silence.LOST), HealthReading(index=B.index, card=B)))
    ),
    st.just(
        Readings((HealthReading(index=A.index, card=None, silence=Silence.ERROR), HealthReading(index=B.index, card=B)))
    ),
    st.just(Readings((HealthReading(index=A.index, card=A, repair_failed=True), HealthReading(index=B.index, card=B)))),
    st.just(answers(B)),
    st.just(answers(A, B)),
    st.just(answers(B, card(2))),
    st.builds(CardEvent, st.just(A.uuid), st.just(EventKind.XID), st.integers(1, 200)),
    st.just(CardEvent(A.uuid, EventKind.UNCORRECTED)),
    st.just(CardEvent(CardUUID("GPU-nobody-knows"), EventKind.XID, xid=79)),
    st.just(Failed("for a moment")),
    st.none(),
)


@given(st.lists(st.tuples(st.floats(0, 700), _hurt), max_size=25))
def test_whatever_happens_to_one_card_another_that_answers_stays_healthy(
    steps: list[tuple[float, Report | None]],
) -> None:
    clock, driver = Time(), Silent()
    driver.hanging = A.uuid
    health, current_catalog, record = made(driver, clock)
    for pause, report in steps:
        clock.now += pause
        health.take(report)
        if isinstance(report, Failed):
            health.take(answers(A, B))  # once is no sickness
        assert healthy(current_catalog)[B.uuid]
    assert B.uuid not in dict(record.turns)
    for _ in range(2):
        clock.now += HealthRules().replace + HealthRules().watched_most
        health.take(answers(A, B))
    assert healthy(current_catalog) | {A.uuid: True} == healthy(current_catalog)


def sick(card: Card, **fields: Any) -> ExtendedResource:
    wanted = from_card(card, NODE)
    known = ExtendedResourceStatus(phase="Unhealthy", reason="Xid119", message="m", **fields)
    return ExtendedResource(metadata=wanted.metadata, spec=wanted.spec, status=known)


def test_what_stands_in_the_objects_is_believed_once_and_not_after_a_reboot(driver: Silent) -> None:
    clock = Time()
    health, current_catalog, _ = made(driver, clock)
    health.take(answers(A, B))
    since, until = health.stamp(clock.now - 60), health.stamp(clock.now + 60)
    before_boot = health.stamp(-60)
    health.adopt(
        [
            sick(A, last_transition_time=since, returns_at=until),
            sick(B, last_transition_time=before_boot, returns_at=until),
        ]
    )
    assert healthy(current_catalog) == {A.uuid: False, B.uuid: True}
    clock.now += 61
    health.take(answers(A, B))
    health.adopt([sick(A, last_transition_time=since, returns_at=health.stamp(clock.now + 60))])
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: True}, "our own words, read back late"


def test_hostile_objects_are_passed_over(driver: Silent, caplog: pytest.LogCaptureFixture) -> None:
    health, current_catalog, _ = made(driver, Time())
    silent = HealthReading(index=7, card=None, silence=Silence.LOST)
    health.take(Readings((*answers(A, B).cards, silent)))
    broken = from_card(card(7, -1), NODE)
    with caplog.at_level(logging.WARNING):
        health.adopt(
            [
                ExtendedResource(metadata=broken.metadata, spec=broken.spec),
                sick(B, last_transition_time="yesterday", returns_at="tomorrow"),
            ]
        )
    assert healthy(current_catalog) == {A.uuid: True, B.uuid: True}
    assert "card object ignored" in caplog.text
