"""Nodes that the control plane chooses over all nodes: nominations, reservations, and how they end."""

import asyncio

from fractile.globalplacement.counts import QueueDepths
from fractile.globalplacement.reservations import LONGEST, PATIENCE
from fractile.ledger.ledger import EntryState
from fractile.model.quota import NamespaceQuota, Quota, QuotaLimit
from fractile.model.units import PodUID
from fractile.wire.kubernetes import queued
from tests.builders import CARD_MEMORY, container, in_use
from tests.fakes.apiserver import Fault
from tests.globalplacement.placing_world import World, delete, running, world
from tests.main.plane import until

FULL = CARD_MEMORY


# ── the choice, and what is written ──────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_is_nominated_to_the_best_of_all_nodes_and_its_cards_are_kept(w: World) -> None:
    in_use(w.p.ledger, "n2", 4000)
    w.submit()
    assert await w.place() == "n2"
    entry = w.p.ledger.entry(w.uid())
    assert entry is not None
    assert (entry.state, entry.placement.node) == (EntryState.ASSUMED, "n2")
    assert w.p.writes() == ["PATCH /api/v1/namespaces/default/pods/p/status"]
    assert (w.counted(), w.placing.standing.reserved) == ({"decision:reserved": 1, "decision:nominated": 1}, 1)


async def test_the_time_to_the_nomination_counts_from_when_the_pod_was_first_seen(w: World) -> None:
    w.submit()
    w.p.clock.now += 2
    w.see()
    w.p.clock.now += 2
    await w.place()
    assert w.tally.figures(QueueDepths()).seconds.total == 4


async def test_the_next_pod_sees_what_is_kept(w: World) -> None:
    for i in range(4):
        w.submit(f"p{i}", container(memory=FULL))
    assert [await w.place(f"p{i}") for i in range(4)] == ["n1", "n1", "n2", "n2"]
    w.submit("late", container(memory=1))
    assert await w.place("late") == ""
    assert (w.counted()["decision:no-room"], w.placing.standing.no_room) == (1, 1)


async def test_cpu_of_those_who_are_nominated_counts(w: World) -> None:
    w.node("n1", gives={"cpu": "3", "memory": "64Gi", "pods": "10"})
    for i in range(2):
        w.submit(f"p{i}", container(memory=100, requests={"cpu": "2"}))
    assert [await w.place(f"p{i}") for i in range(2)] == ["n1", "n2"]


async def test_a_gate_goes_after_the_nomination(w: World) -> None:
    w.submit(gate=True)
    assert await w.place() == "n1"
    assert not w.gated()
    assert w.p.writes() == [
        "PATCH /api/v1/namespaces/default/pods/p/status",
        "PATCH /api/v1/namespaces/default/pods/p",
    ]
    assert w.counted() == {"decision:reserved": 1, "decision:nominated": 1, "gate:leader": 1}


async def test_a_gate_goes_also_where_no_node_has_room(w: World) -> None:
    w.submit("p", container(memory=FULL + 1), gate=True)
    assert await w.place() == ""
    assert not w.gated()


async def test_a_gate_goes_also_where_the_nomination_is_refused(w: World) -> None:
    w.submit(gate=True)
    w.p.server.inject(Fault(method="PATCH", path="/api/v1/namespaces/default/pods/p/status", status=403))
    assert await w.place() == ""
    assert not w.gated()
    assert w.p.ledger.entry(w.uid()) is None
    assert w.counted() == {"decision:reserved": 1, "ended:unwritten": 1, "gate:leader": 1}


async def test_a_pod_with_gates_of_others_is_not_looked_at_before_they_are_gone(w: World) -> None:
    w.submit(gate=True, gates=[{"name": "example.com/other"}])
    assert await w.place() == ""
    assert w.gated()


async def test_who_does_not_ask_for_it_is_left_alone() -> None:
    async with world(every_pod=False) as w:
        w.submit("p")
        w.submit("q", annotations={queued.ANNOTATION: "true"})
        w.namespaces["default"] = "true"
        w.submit("r")
        w.submit("s", annotations={queued.ANNOTATION: "false"})
        w.submit("t", annotations={queued.ANNOTATION: "perhaps"})
        assert [await w.place(name) for name in "pqrst"] == ["", "n1", "n1", "", "n1"]


async def test_a_pod_that_brings_the_gate_asks_for_it_by_that() -> None:
    async with world(every_pod=False) as w:
        w.submit(gate=True)
        assert (await w.place(), w.gated()) == ("n1", False)


async def test_without_the_right_to_nominate_nobody_is_and_a_gate_that_was_left_goes() -> None:
    async with world(every_pod=False, no_pod=True) as w:
        w.namespaces["default"] = "true"
        w.submit("asks", annotations={queued.ANNOTATION: "true"})
        w.submit("gated", gate=True)
        assert [await w.place(name) for name in ("asks", "gated")] == ["", ""]
        assert not w.gated("gated")
        async with running(w):
            await asyncio.sleep(0.1)
        assert set(w.p.writes()) == {"PATCH /api/v1/namespaces/default/pods/gated"}
        assert not w.placing.prompt


async def test_the_policy_none_leaves_the_choice_to_kube_scheduler(w: World) -> None:
    w.submit(annotations={"fractile.dev/node-policy": "none"}, gate=True)
    assert await w.place() == ""
    assert not w.gated()


# ── what kube-scheduler makes of it ──────────────────────────────────────────────────────────────────────────────────


async def test_the_nominated_node_is_bound_with_the_cards_that_were_kept(w: World) -> None:
    w.submit()
    await w.place()
    kept = w.p.ledger.entry(w.uid())
    assert kept is not None
    assert w.filter("p", "n1") == ["n1"]
    assert await w.bind("p", "n1") == ""
    w.see()
    entry = w.p.ledger.entry(w.uid())
    assert entry is not None
    assert (entry.state, entry.placement) == (EntryState.BOUND, kept.placement)
    assert len(w.reservations) == 0
    assert w.p.ledger.audit() == []
    assert w.counted() == {"decision:reserved": 1, "decision:nominated": 1, "ended:taken": 1}


async def test_a_wrong_nomination_ends_with_the_question_about_other_nodes(w: World) -> None:
    w.submit()
    assert await w.place() == "n1"
    assert w.filter("p", "n2") == ["n2"]
    assert len(w.reservations) == 0
    assert w.p.ledger.entry(w.uid()) is None
    assert await w.bind("p", "n2") == ""
    assert w.stored().spec.node_name == "n2"
    assert w.counted() == {"decision:reserved": 1, "decision:nominated": 1, "ended:missed": 1}


async def test_what_is_kept_elsewhere_does_not_count_against_the_own_quota(w: World) -> None:
    one = NamespaceQuota(limits=(QuotaLimit("Tesla-V100", 100),))
    w.p.ledger.usage.limit(Quota({"default": one}))
    w.submit("p", container(memory=FULL))
    assert await w.place() == "n1"
    assert w.filter("p", "n2") == ["n2"]


async def test_a_bind_elsewhere_needs_no_look_at_the_api(w: World) -> None:
    w.submit()
    await w.place()
    before = len(w.p.server.requests)
    assert await w.bind("p", "n2") == ""
    assert [r.method for r in w.p.server.requests[before:]] == ["POST"]
    assert w.counted()["ended:elsewhere"] == 1
    entry = w.p.ledger.entry(w.uid())
    assert entry is not None
    assert entry.placement.node == "n2"


async def test_cards_that_went_meanwhile_are_chosen_anew(w: World) -> None:
    w.submit()
    await w.place()
    entry = w.p.ledger.entry(w.uid())
    assert entry is not None
    lost = entry.charges[0].card
    w.p.ledger.drop_card(lost)
    assert await w.bind("p", "n1") == ""
    entry = w.p.ledger.entry(w.uid())
    assert entry is not None
    assert entry.charges[0].card != lost
    assert w.counted()["ended:elsewhere"] == 1


async def test_preemption_begins_without_what_was_kept(w: World) -> None:
    w.submit()
    await w.place()
    body = b'{"Pod":{"metadata":{"name":"p","namespace":"default","uid":"%s"}},"NodeNameToMetaVictims":{}}'
    w.extender.preempt(body % w.uid().encode())
    assert w.p.ledger.entry(w.uid()) is None


async def test_our_nomination_keeps_no_room_as_one_by_preemption_does(w: World) -> None:
    w.submit()
    await w.place()
    w.see()
    assert w.p.nominations.nodes() == []


# ── how a reservation ends ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_deletion_gives_back_what_was_kept(w: World) -> None:
    w.submit("p", container(memory=FULL))
    await w.place()
    delete(w, "p")
    assert len(w.reservations) == 0
    assert w.p.free() == [FULL, FULL]
    assert w.counted()["ended:gone"] == 1


async def test_what_kube_scheduler_does_not_take_is_given_back_once(w: World) -> None:
    w.submit("p", container(memory=FULL))
    await w.place()
    w.see()
    w.p.clock.now += PATIENCE + 1
    w.placing.look_again()
    assert w.p.free() == [FULL, FULL]
    assert w.counted()["ended:expired"] == 1
    w.see()
    await w.place()  # it was nominated once, and goes the normal way
    assert len(w.reservations) == 0
    async with running(w):
        w.p.clock.now += 3
        await until(lambda: w.nominated() == "")
    assert queued.NOMINATED not in (w.stored().metadata.annotations or {})


async def test_cpu_that_was_kept_is_given_back_too(w: World) -> None:
    w.node("n1", gives={"cpu": "3", "memory": "64Gi", "pods": "10"})
    w.submit("p", container(memory=100, requests={"cpu": "2"}))
    assert await w.place() == "n1"
    assert not w.engine.room(2000, 0)[0]
    w.placing.missed(w.uid())
    assert w.engine.room(2000, 0)[0]


async def test_as_long_as_others_are_bound_they_wait_their_turn(w: World) -> None:
    for i in range(3):
        w.submit(f"p{i}")
        await w.place(f"p{i}")
    w.p.clock.now += PATIENCE - 1
    assert await w.bind("p0", "n1") == ""
    w.p.clock.now += 2
    w.placing.look_again()
    assert len(w.reservations) == 2
    w.p.clock.now += PATIENCE
    w.placing.look_again()
    assert len(w.reservations) == 0


async def test_nothing_is_kept_for_ever(w: World) -> None:
    for i in range(2):
        w.submit(f"p{i}", container(memory=100))
        await w.place(f"p{i}")
    w.p.clock.now += LONGEST + 1
    w.reservations.begun(w.uid("p1"), "n1")
    w.placing.look_again()
    assert w.placing.node(w.uid("p0")) is None


async def test_the_loop_that_doubts_assumptions_leaves_those_that_wait_their_turn(w: World) -> None:
    for i in range(2):
        w.submit(f"p{i}", container(memory=100))
        await w.place(f"p{i}")
    for _ in range(8):
        w.p.clock.now += 5
        w.reservations.begun(PodUID("nobody"), "n1")
        if w.placing.node(w.uid("p1")) is None:
            break
        w.placing.look_again()
        assert w.uid("p0") not in w.p.ledger.overdue(30)


# ── races ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_that_is_bound_before_the_nomination_arrives_is_not_nominated(w: World) -> None:
    w.submit()
    asked = w.stored()
    await w.p.client.bind(namespace="default", name="p", uid=asked.metadata.uid, node="n2", annotations={})
    assert await w.place() == ""
    assert len(w.reservations) == 0


async def test_a_pod_that_changed_meanwhile_is_nominated_as_it_is_now(w: World) -> None:
    w.submit()
    w.p.annotate({"a": "b"})
    assert await w.place() == ""
    w.see()
    async with running(w):
        await until(lambda: w.nominated() == "n1")


async def test_a_pod_whose_binding_is_on_its_way_is_left_alone(w: World) -> None:
    w.submit()
    assert await w.bind("p", "n2") == ""
    assert await w.place() == ""


async def test_the_priority_decides_then_the_order_in_which_they_came(w: World) -> None:
    for i, priority in enumerate((0, 5, 0, 5)):
        w.submit(f"p{i}", container(memory=FULL), spec={"priority": priority})
    w.submit("last", container(memory=FULL))
    async with running(w):
        await until(lambda: all(w.nominated(f"p{i}") for i in range(4)))
    assert [w.nominated(f"p{i}") for i in range(4)] == ["n2", "n1", "n2", "n1"]
    assert w.nominated("last") == ""


async def test_who_was_refused_is_nominated_when_there_is_room(w: World) -> None:
    for node in ("n1", "n2"):
        in_use(w.p.ledger, node, FULL, FULL)
    w.submit()
    async with running(w):
        await until(lambda: w.placing.prompt)
        assert w.nominated() == ""
        w.p.handlers.gone(PodUID("filler-n2-1"))
        w.placing.freed()
        await until(lambda: w.nominated() == "n2")
