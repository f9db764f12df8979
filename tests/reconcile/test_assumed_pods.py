"""What becomes of assumptions whose Binding nobody has heard of."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from fractile.errors import ApiError
from fractile.kube import paths
from fractile.ledger.ledger import EntryState
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.reconcile import assumed_pods
from fractile.reconcile.assumed_pods import EXPIRY, AssumedPods
from fractile.reconcile.faults import Faults
from fractile.watch.event_handlers import PodHandlers
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from tests.builders import CARD_MEMORY, on_card
from tests.fakes.apiserver import Fault
from tests.main.plane import Plane, plane, until

FULL = CARD_MEMORY
EIGHT = on_card(0, 8138)


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        yield made


@pytest.fixture
def pod(p: Plane) -> Pod:
    """A pod that waits, assumed on card 0 of n1 long ago."""
    found = p.submit("p")
    assert p.ledger.assume(PodUID(found.metadata.uid), EIGHT) is None
    p.clock.now += EXPIRY
    return found


async def resolve(p: Plane) -> None:
    for uid in p.ledger.overdue(EXPIRY):
        await p.assumed.resolve(uid)


async def bind_behind_our_back(p: Plane, pod: Pod, node: str = "n1", text: str = "") -> None:
    annotations = {placement.ANNOTATION: text} if text else {}
    await p.client.bind(namespace="default", name="p", uid=pod.metadata.uid, node=node, annotations=annotations)


async def test_a_binding_that_arrived_after_all_is_bound(p: Plane, pod: Pod) -> None:
    await bind_behind_our_back(p, pod, text=placement.encode(EIGHT))
    await resolve(p)
    entry = p.entry(pod)
    assert entry is not None
    assert entry.state is EntryState.BOUND
    assert p.free() == [FULL - 8138, FULL]
    assert p.ledger.overdue(EXPIRY) == []


async def test_an_answer_from_before_another_write_decides_nothing(p: Plane, pod: Pod) -> None:
    """While the API server says "not bound", kube-scheduler has asked again, and the second Binding is on its way."""
    p.server.inject(Fault(method="GET", path="/pods/p", delay=0.2))
    asked = asyncio.create_task(resolve(p))
    await asyncio.sleep(0.1)
    p.ledger.sent(PodUID(pod.metadata.uid))
    await asked
    assert p.free() == [FULL - 8138, FULL]
    assert p.ledger.overdue(EXPIRY) == []
    p.clock.now += EXPIRY
    await resolve(p)
    assert p.free() == [FULL, FULL]


async def test_a_binding_that_never_arrived_gives_its_cards_back(p: Plane, pod: Pod) -> None:
    await resolve(p)
    assert p.entry(pod) is None
    assert p.free() == [FULL, FULL]
    assert p.waiting.find(PodUID(pod.metadata.uid)) is not None


async def test_a_pod_deleted_meanwhile_gives_its_cards_back_and_waits_no_more(p: Plane, pod: Pod) -> None:
    p.server.delete(paths.pod("default", "p"))
    await resolve(p)
    assert p.free() == [FULL, FULL]
    assert len(p.waiting) == 0


async def test_a_pod_recreated_meanwhile_is_another_pod(p: Plane, pod: Pod) -> None:
    p.server.delete(paths.pod("default", "p"))
    p.create("p")
    await resolve(p)
    assert p.free() == [FULL, FULL]
    assert len(p.waiting) == 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(path="/pods/p", status=500, times=99), id="500"),
        pytest.param(Fault(path="/pods/p", status=403, times=99), id="403"),
        pytest.param(Fault(path="/pods/p", drop="before", times=99), id="no answer"),
        pytest.param(Fault(path="/pods/p", status=200, body=b"<html>", times=99), id="no API server"),
    ],
)
async def test_capacity_is_never_given_away_on_a_guess(p: Plane, pod: Pod, fault: Fault) -> None:
    p.server.inject(fault)
    await resolve(p)
    assert p.free() == [FULL - 8138, FULL]
    assert p.ledger.overdue(EXPIRY) == []  # asked again after another period
    p.server.heal()
    p.clock.now += EXPIRY
    await resolve(p)
    assert p.free() == [FULL, FULL]


async def test_a_pod_bound_elsewhere_by_another_gives_its_cards_back(p: Plane, pod: Pod) -> None:
    await bind_behind_our_back(p, pod, "n2")
    await resolve(p)
    assert p.entry(pod) is None
    assert (p.free("n1"), p.free("n2")) == ([FULL, FULL], [FULL, FULL])


async def test_a_pod_bound_here_by_another_keeps_its_cards_and_is_settled(p: Plane, pod: Pod) -> None:
    await bind_behind_our_back(p, pod)
    await resolve(p)
    assert p.free() == [FULL - 8138, FULL]
    assert p.ledger.overdue(EXPIRY) == []
    p.clock.now += EXPIRY
    assert p.ledger.overdue(EXPIRY) == []


async def test_a_pod_that_the_watch_never_showed_is_asked_about_as_well(p: Plane) -> None:
    late = p.create("late")
    p.server.inject(
        Fault(method="GET", path="/pods/late"),  # what the pod is: answered
        Fault(method="POST", path="/binding", drop="after"),
        Fault(method="GET", path="/pods/late", status=500, times=5),  # what became of it: not answered
    )
    with pytest.raises(ApiError):
        await p.binder.bind(BindingArgs("late", "default", late.metadata.uid, "n1"))
    p.clock.now += EXPIRY
    await resolve(p)
    entry = p.entry(late)
    assert entry is not None
    assert entry.state is EntryState.BOUND
    assert p.free() == [FULL - 8138, FULL]


async def test_only_overdue_assumptions_are_asked_about(p: Plane) -> None:
    found = p.submit("p")
    assert p.ledger.assume(PodUID(found.metadata.uid), EIGHT) is None
    await resolve(p)
    assert p.server.requests == []
    assert p.entry(found) is not None


async def test_a_pod_that_was_read_and_has_gone_unseen_waits_no_more(p: Plane) -> None:
    """The answer came after the list that no longer had the pod, so no watch will ever tell."""
    found = p.create()
    p.handlers.looked(found)
    p.server.delete(paths.pod("default", "p"))
    p.clock.now += EXPIRY
    for uid, read in p.handlers.unseen(EXPIRY):
        await p.assumed.look_again(uid, read)
    assert p.waiting.find(PodUID(found.metadata.uid)) is None
    assert p.handlers.unseen(0) == []


async def test_a_pod_that_was_read_and_whose_name_another_has_now_is_gone(p: Plane) -> None:
    found = p.create()
    p.handlers.looked(found)
    p.server.delete(paths.pod("default", "p"))
    p.create()
    p.clock.now += EXPIRY
    for uid, read in p.handlers.unseen(EXPIRY):
        await p.assumed.look_again(uid, read)
    assert p.waiting.find(PodUID(found.metadata.uid)) is None


async def test_a_pod_that_was_read_and_is_there_waits_on_and_is_asked_for_later(p: Plane) -> None:
    found = p.create()
    p.handlers.looked(found)
    p.clock.now += EXPIRY
    ((uid, read),) = p.handlers.unseen(EXPIRY)
    await p.assumed.look_again(uid, read)
    assert p.waiting.find(uid) is not None
    assert p.handlers.unseen(EXPIRY) == []
    p.clock.now += EXPIRY
    assert [u for u, _ in p.handlers.unseen(EXPIRY)] == [uid]


async def test_without_an_answer_a_pod_that_was_read_stays_known(p: Plane) -> None:
    p.handlers.looked(p.create())
    p.clock.now += EXPIRY
    ((uid, read),) = p.handlers.unseen(EXPIRY)
    p.server.inject(Fault(method="GET", status=403))
    await p.assumed.look_again(uid, read)
    assert p.waiting.find(uid) is not None


async def test_it_looks_for_overdue_assumptions_by_itself(p: Plane, pod: Pod, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumed_pods, "_PERIOD", 0.01)
    work = asyncio.create_task(p.assumed.run())
    try:
        await until(lambda: p.entry(pod) is None)
        later = p.submit("later")
        assert p.ledger.assume(PodUID(later.metadata.uid), EIGHT) is None
        await asyncio.sleep(0.1)
        assert p.entry(later) is not None, "one that is not overdue"
        p.clock.now += EXPIRY
        await until(lambda: p.entry(later) is None)
    finally:
        work.cancel()


async def test_a_write_that_goes_out_while_others_are_read_starts_its_time_again(
    p: Plane, pod: Pod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds are overdue at once, and each is read for itself."""
    second = p.submit("second")
    assert p.ledger.assume(PodUID(second.metadata.uid), on_card(1, 8138)) is None
    p.clock.now += EXPIRY
    p.server.inject(Fault(method="GET", path="/pods/p", delay=0.3))
    monkeypatch.setattr(assumed_pods, "_PERIOD", 0.01)
    work = asyncio.create_task(p.assumed.run())
    await asyncio.sleep(0.1)
    p.ledger.sent(PodUID(second.metadata.uid))
    await until(lambda: p.entry(pod) is None)
    await asyncio.sleep(0.1)
    work.cancel()
    assert p.entry(second) is not None


async def test_the_log_says_whose_assumption_has_expired_where_and_why(
    p: Plane, pod: Pod, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    await resolve(p)
    assert caplog.messages == [f"assumption expired uid={pod.metadata.uid} node=n1 reason=not bound"]


async def test_the_log_says_that_a_pod_no_longer_waits(p: Plane, caplog: pytest.LogCaptureFixture) -> None:
    assert p.ledger.assume(PodUID("gone"), EIGHT) is None
    p.clock.now += EXPIRY
    caplog.set_level(logging.INFO)
    await resolve(p)
    assert caplog.messages == ["assumption expired uid=gone node=n1 reason=no longer waiting"]
    assert p.free() == [FULL, FULL]


async def test_it_asks_again_for_pods_read_once_by_itself(p: Plane, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assumed_pods, "_PERIOD", 0.01)
    found = p.create()
    p.handlers.looked(found)
    p.server.delete(paths.pod("default", "p"))
    p.clock.now += EXPIRY
    work = asyncio.create_task(p.assumed.run())
    try:
        await until(lambda: p.waiting.find(PodUID(found.metadata.uid)) is None)
    finally:
        work.cancel()


# ── errors of ours ───────────────────────────────────────────────────────────────────────────────────────────────────


@asynccontextmanager
async def at_work_with_a_broken_node(
    p: Plane, monkeypatch: pytest.MonkeyPatch
) -> AsyncGenerator[tuple[PodHandlers, Faults]]:
    """It runs with handlers in which an error of ours comes up whenever something becomes free on n1."""

    def freed(node: NodeName) -> None:
        if node == "n1":
            raise RecursionError("too deep")

    monkeypatch.setattr(assumed_pods, "_PERIOD", 0.01)
    faults = Faults()
    handlers = PodHandlers(
        ledger=p.ledger,
        waiting=p.waiting,
        unit=MemoryUnit.MiB,
        warn=p.warn,
        freed=freed,
        needs_repair=p.repair.request,
    )
    work = AssumedPods(ledger=p.ledger, waiting=p.waiting, handlers=handlers, client=p.client, faults=faults)
    running = asyncio.create_task(work.run())
    try:
        yield handlers, faults
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_an_overdue_pod_that_brings_out_an_error_is_named_and_keeps_no_other_from_its_answer(
    p: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, honest = p.submit("odd"), p.submit("honest")
    async with at_work_with_a_broken_node(p, monkeypatch) as (_, faults):
        assert p.ledger.assume(PodUID(odd.metadata.uid), EIGHT) is None
        assert p.ledger.assume(PodUID(honest.metadata.uid), on_card(0, 8138, node="n2")) is None
        p.clock.now += EXPIRY
        await until(lambda: p.entry(honest) is None)
    assert faults.counts == {"doubt": 1}
    told = [m for m in caplog.messages if m.startswith("fault ")]
    assert told == [f"fault task=doubt object='/{odd.metadata.uid}' reason=RecursionError('too deep')"]


async def test_a_pod_read_once_that_brings_out_an_error_is_named_and_keeps_no_other_from_its_answer(
    p: Plane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with at_work_with_a_broken_node(p, monkeypatch) as (handlers, faults):
        for name, node in (("odd", "n1"), ("honest", "n2")):
            found = p.create(name)
            annotations = {placement.ANNOTATION: placement.encode(on_card(0, 8138, node=node))}
            uid = found.metadata.uid
            await p.client.bind(namespace="default", name=name, uid=uid, node=node, annotations=annotations)
            handlers.looked(p.stored(name))
            p.server.delete(paths.pod("default", name))
        assert (p.free("n1"), p.free("n2")) == ([FULL - 8138, FULL], [FULL - 8138, FULL])
        p.clock.now += EXPIRY
        await until(lambda: p.free("n2") == [FULL, FULL])
    assert faults.counts == {"doubt": 1}
    told = [m for m in caplog.messages if m.startswith("fault ")]
    assert told == ["fault task=doubt object='default/odd' reason=RecursionError('too deep')"]
