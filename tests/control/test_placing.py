"""Nodes that the control plane chooses over all nodes: nominations, reservations, and how they end."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from random import Random

import pytest

from fractile.control import placing as module
from fractile.control.reservations import LONGEST, PATIENCE
from fractile.control.tally import Standing
from fractile.kube import paths
from fractile.ledger.ledger import State
from fractile.model.quota import Limit, NamespaceQuota, Quota
from fractile.model.units import PodUID
from fractile.wire import queued
from tests.builders import CARD_MEMORY, container, in_use
from tests.control.placing_world import World, world
from tests.control.plane import plane, until
from tests.fakes.apiserver import Fault

FULL = CARD_MEMORY


@pytest.fixture
async def w(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[World, None]:
    monkeypatch.setattr(module, "_TICK", 0.01)
    async with world() as made:
        yield made


@asynccontextmanager
async def running(w: World) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(w.placing.run())
    yield
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled(), task.exception()


# ── the choice, and what is written ──────────────────────────────────────────────────────────────────────────────────


async def test_a_pod_is_nominated_to_the_best_of_all_nodes_and_its_cards_are_kept(w: World) -> None:
    in_use(w.p.ledger, "n2", 4000)
    w.submit()
    assert await w.place() == "n2"
    entry = w.p.ledger.entry(w.uid())
    assert entry is not None
    assert (entry.state, entry.placement.node) == (State.ASSUMED, "n2")
    assert w.p.writes() == ["PATCH /api/v1/namespaces/default/pods/p/status"]
    assert (w.counted(), w.placing.standing.reserved) == ({"decision:reserved": 1, "decision:nominated": 1}, 1)


async def test_the_time_to_the_nomination_counts_from_when_the_pod_was_first_seen(w: World) -> None:
    w.submit()
    w.p.clock.now += 2
    w.see()
    w.p.clock.now += 2
    await w.place()
    assert w.tally.figures(Standing()).seconds.total == 4


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
    async with world(everybody=False) as w:
        w.submit("p")
        w.submit("q", annotations={queued.ANNOTATION: "true"})
        w.namespaces["default"] = "true"
        w.submit("r")
        w.submit("s", annotations={queued.ANNOTATION: "false"})
        w.submit("t", annotations={queued.ANNOTATION: "perhaps"})
        assert [await w.place(name) for name in "pqrst"] == ["", "n1", "n1", "", "n1"]


async def test_a_pod_that_brings_the_gate_asks_for_it_by_that() -> None:
    async with world(everybody=False) as w:
        w.submit(gate=True)
        assert (await w.place(), w.gated()) == ("n1", False)


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
    assert (entry.state, entry.placement) == (State.BOUND, kept.placement)
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
    one = NamespaceQuota(limits=(Limit("Tesla-V100", 100),))
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
        w.p.feed.gone(PodUID("filler-n2-1"))
        w.placing.freed()
        await until(lambda: w.nominated() == "n2")


# ── the race with kube-scheduler ─────────────────────────────────────────────────────────────────────────────────────


async def overtaken(w: World, *names: str) -> None:
    """kube-scheduler takes these pods while one nomination after the other is being written."""
    for name in names:
        w.submit(name, container(memory=10))
        front = w.placing.front
        before = front.taken
        w.placing.begun(w.uid(name), "n1")
        front.written(before)


async def test_who_kube_scheduler_is_about_to_take_is_left_to_it_and_those_behind_are_nominated(w: World) -> None:
    await overtaken(w, *(f"o{i}" for i in range(8)))
    reach = w.placing.front.reach
    assert reach > 0
    names = [f"p{i}" for i in range(reach + 2)]
    for name in names:
        w.submit(name, container(memory=10))
        await w.place(name)
    assert [bool(w.nominated(name)) for name in names] == [False] * reach + [True] * 2
    assert all(w.placing.node(w.uid(name)) for name in names), "cards are kept in the order in which they came"


async def test_who_was_left_to_kube_scheduler_and_is_not_taken_is_nominated_after_all(w: World) -> None:
    await overtaken(w, *(f"o{i}" for i in range(8)))
    w.submit()
    assert await w.place() == ""
    w.placing.look_again()
    assert await w.place() == ""
    w.p.clock.now += 1.1
    w.placing.look_again()
    assert await w.place() == "n1"


async def test_who_was_left_to_kube_scheduler_and_taken_is_not_nominated(w: World) -> None:
    await overtaken(w, *(f"o{i}" for i in range(8)))
    w.submit()
    await w.place()
    assert await w.bind("p", "n1") == ""
    w.p.clock.now += 1.1
    w.placing.look_again()
    assert w.placing.standing.undecided == 9, "nobody but those who were never decided on"
    assert w.counted()["ended:taken"] == 1


async def test_a_pod_about_which_kube_scheduler_has_asked_is_not_nominated_unless_it_stays(w: World) -> None:
    w.submit()
    assert w.filter("p", "n1", "n2")
    assert (await w.place(), w.placing.node(w.uid())) == ("", "n1")
    w.p.clock.now += 1.1
    w.placing.look_again()
    assert await w.place() == "n1"


async def test_a_nomination_takes_until_the_watch_shows_it(w: World) -> None:
    for i in range(8):
        w.submit(f"o{i}", container(memory=10))
    for i in range(4):
        w.submit(f"p{i}", container(memory=10))
        assert await w.place(f"p{i}")
    assert w.placing.front.reach == 0
    for i in range(8):
        w.placing.begun(w.uid(f"o{i}"), "n1")
    for i in range(4):
        w.see(f"p{i}")
    reach = w.placing.front.reach
    assert reach > 0
    w.see("p0")  # once
    assert w.placing.front.reach == reach


async def test_a_gate_is_never_left_to_kube_scheduler(w: World) -> None:
    await overtaken(w, *(f"o{i}" for i in range(8)))
    w.submit(gate=True)
    assert await w.place() == "n1"


async def test_who_was_refused_is_not_among_those_that_are_about_to_be_taken(w: World) -> None:
    for node in ("n1", "n2"):
        in_use(w.p.ledger, node, FULL, FULL)
    w.submit("late", container(memory=FULL))
    assert await w.place("late") == ""
    await overtaken(w, *(f"o{i}" for i in range(8)))
    w.p.feed.gone(PodUID("filler-n2-1"))
    w.placing.freed()
    w.placing.look_again()
    assert await w.place("late") == "n2"


# ── a lead that begins ───────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_new_leader_keeps_what_the_one_before_has_nominated(w: World) -> None:
    w.create("young", container(memory=FULL))
    w.create("old", container(memory=FULL))
    meta = {"metadata": {"annotations": {queued.NOMINATED: "n2"}}, "status": {"nominatedNodeName": "n2"}}
    w.p.server.merge(f"{paths.pod('default', 'old')}/status", meta)
    w.see("young")
    w.see("old")
    written = len(w.p.writes())
    async with running(w):
        await until(lambda: w.nominated("young"))
        await until(lambda: w.counted() == {"decision:kept": 1, "decision:reserved": 1, "decision:nominated": 1})
    assert w.placing.node(w.uid("old")) == "n2"
    assert not [line for line in w.p.writes()[written:] if "/pods/old" in line]


async def test_a_gate_that_the_leader_before_left_is_removed(w: World) -> None:
    w.submit(gate=True)
    async with running(w):
        await until(lambda: not w.gated())
    assert w.nominated() == "n1"


async def test_who_leads_no_more_writes_nothing_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK", 0.01)
    left = 100.0
    async with plane(("n1",), fence=lambda: left) as p:
        w = World(p)
        w.node("n1")
        w.submit("a")
        assert await w.place("a") == "n1"
        left = 0.0
        w.submit("b", gate=True)
        assert await w.place("b") == ""
        assert w.placing.node(w.uid("b")) is None
        async with running(w):  # the loop lives until the term is ended
            w.placing.missed(w.uid("a"))
            w.see("a")
            p.clock.now += 3
            await asyncio.sleep(0.1)
        assert (w.nominated("a"), w.gated("b")) == ("n1", True)


# ── whatever happens ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_happens_nothing_is_promised_twice_and_nothing_leaks(seed: int) -> None:
    """Pods come, are nominated, asked about, bound there or elsewhere, deleted; time passes."""
    rng = Random(seed)
    async with world(("n1", "n2", "n3")) as w:
        alive: list[str] = []
        for step in range(60):
            name = rng.choice(alive) if alive else ""
            match rng.choice(("come", "come", "place", "place", "ask", "bind", "bind elsewhere", "delete", "wait")):
                case "come":
                    alive.append(f"p{step}")
                    w.submit(f"p{step}", container(memory=rng.choice((3000, 8000, FULL))), gate=rng.random() < 0.3)
                case "place" if name:
                    await w.place(name)
                    w.see(name)
                case "ask" if name and not w.stored(name).spec.node_name:
                    w.filter(name, *rng.sample(("n1", "n2", "n3"), 2))
                case "bind" | "bind elsewhere" as how if name and not w.gated(name):
                    node = w.placing.node(w.uid(name)) if how == "bind" else rng.choice(("n1", "n2", "n3"))
                    await w.bind(name, node or "n1")
                    w.see(name)
                case "delete" if name:
                    delete(w, name)
                    alive.remove(name)
                case _:
                    w.p.clock.now += rng.choice((1, PATIENCE + 1, LONGEST))
                    w.placing.look_again()
            assert w.p.ledger.audit() == []
            assumed = {uid for uid, entry in w.p.ledger.entries() if entry.state is State.ASSUMED}
            assert assumed == {w.uid(n) for n in alive if w.placing.node(w.uid(n))}
            assert all(free >= 0 for node in ("n1", "n2", "n3") for free in w.p.free(node))
            assert reserved(w.counted()) == ended(w.counted()) + len(w.reservations)
        for name in alive:
            delete(w, name)
        assert all(w.p.free(node) == [FULL, FULL] for node in ("n1", "n2", "n3"))
        assert len(w.reservations) == 0
        assert w.engine.room(64_000, 262_144)[:3].all(), "CPU and memory of nodes are free again"


def reserved(counted: dict[str, int]) -> int:
    """Reservations that were made, or taken over from the leader before."""
    return counted.get("decision:reserved", 0) + counted.get("decision:kept", 0)


def ended(counted: dict[str, int]) -> int:
    return sum(n for key, n in counted.items() if key.startswith("ended:"))


def delete(w: World, name: str) -> None:
    uid = w.uid(name)
    w.p.server.delete(paths.pod("default", name))
    w.p.feed.gone(uid)
    w.nodes.pod_gone(uid)
    w.placing.pod_gone(uid)


# ── whether gates are set ────────────────────────────────────────────────────────────────────────────────────────────


async def test_gates_are_set_when_we_may_write_and_are_not_behind(w: World) -> None:
    assert not w.placing.prompt
    async with running(w):
        await until(lambda: w.placing.prompt)


@pytest.mark.parametrize("path", ["/status", "fractile-placement-trial"])
async def test_without_the_right_to_write_no_gates_are_set(w: World, path: str) -> None:
    trial = "/api/v1/namespaces/fractile-system/pods/fractile-placement-trial"
    w.p.server.inject(
        Fault(method="PATCH", path=f"{trial}{'/status' if path == '/status' else ''}", status=403, times=99)
    )
    async with running(w):
        await until(lambda: len(w.p.writes()) >= 2)
        await asyncio.sleep(0.05)
        assert not w.placing.prompt


async def test_no_gates_are_set_while_pods_wait_for_a_decision(w: World) -> None:
    async with running(w):
        await until(lambda: w.placing.prompt)
    w.submit()
    assert w.placing.prompt is False
