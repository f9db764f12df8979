"""Nominations beside kube-scheduler's own decisions and after a change of the lead; when gates are set."""

import asyncio
from random import Random

import pytest

from fractile.globalplacement import placing as module
from fractile.globalplacement.reservations import LONGEST, PATIENCE
from fractile.kube import paths
from fractile.ledger.ledger import EntryState
from fractile.model.units import PodUID
from fractile.wire.kubernetes import queued
from tests.builders import CARD_MEMORY, container, in_use
from tests.fakes.apiserver import Fault
from tests.globalplacement.placing_world import World, delete, running, world
from tests.main.plane import plane, until

FULL = CARD_MEMORY


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


async def test_cards_reserved_while_a_bind_reads_its_pod_belong_to_the_bind(w: World) -> None:
    """kube-scheduler is ahead of our watch: the bind reads the pod, and the watch shows it meanwhile. Whatever ends the
    reservation then, the Binding is on its way."""
    w.create("p")
    w.p.server.inject(Fault(method="GET", path="/pods/p", delay=0.2), Fault(method="POST", path="/binding", delay=0.3))
    binding = asyncio.create_task(w.bind("p", "n1"))
    await asyncio.sleep(0.1)
    w.see("p")
    await w.place("p")
    await asyncio.sleep(0.2)
    w.placing.missed(w.uid("p"))
    entry = w.p.ledger.entry(w.uid("p"))
    assert entry is not None
    assert entry.sent
    assert await binding == ""
    assert w.placing.node(w.uid("p")) is None, "no reservation is left"
    assert w.p.ledger.entry(w.uid("p")) is not None


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
    w.p.handlers.gone(PodUID("filler-n2-1"))
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
            assumed = {uid for uid, entry in w.p.ledger.entries() if entry.state is EntryState.ASSUMED}
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
