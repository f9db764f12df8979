"""Gates that nobody removes: the replicas that do not lead remove them, and leave a leader at its work."""

import asyncio

import msgspec
import pytest

from fractile.globalplacement import gates as module
from fractile.globalplacement.counts import DecisionTally, QueueDepths
from fractile.globalplacement.gates import LONGEST, SILENCE, GateSweeper
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone
from fractile.wire.kubernetes import queued
from fractile.wire.kubernetes.objects import Gate, ObjectMeta, Pod, PodSpec
from tests.builders import Clock
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.main.plane import until


def pod(name: str, *, gate: bool = True) -> Pod:
    gates = [Gate(name=queued.GATE)] if gate else None
    return Pod(
        metadata=ObjectMeta(name=name, namespace="default", uid=f"uid-{name}"), spec=PodSpec(scheduling_gates=gates)
    )


@pytest.fixture
async def server():
    async with FakeApiServer() as made:
        yield made


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def tally() -> DecisionTally:
    return DecisionTally()


@pytest.fixture
async def sweeper(server: FakeApiServer, clock: Clock, tally: DecisionTally):
    async with KubeClient(server.credentials()) as client:
        yield GateSweeper(client, clock, tally)


def due(sweeper: GateSweeper) -> list[str]:
    return [p.metadata.name for p in sweeper.due()]


async def test_a_young_gate_is_left(sweeper: GateSweeper, clock: Clock) -> None:
    clock.now += 100
    sweeper.changed(pod("a"))
    clock.now += SILENCE - 0.1
    assert due(sweeper) == []


async def test_when_no_gate_goes_the_old_ones_are_due(sweeper: GateSweeper, clock: Clock) -> None:
    sweeper.changed(pod("a"))
    clock.now += 2
    sweeper.changed(pod("b"))
    clock.now += SILENCE - 1
    assert due(sweeper) == ["a"]
    clock.now += 1.1
    assert due(sweeper) == ["a", "b"]


async def test_as_long_as_gates_go_the_others_wait_their_turn_but_not_for_ever(
    sweeper: GateSweeper, clock: Clock
) -> None:
    sweeper.changed(pod("old"))
    for i in range(int(LONGEST / 2) - 1):
        sweeper.changed(pod(f"p{i}"))
        clock.now += 2
        sweeper.changed(pod(f"p{i}", gate=False))
        assert due(sweeper) == []
    clock.now += 2.1
    sweeper.changed(pod("last"))
    sweeper.changed(pod("last", gate=False))
    assert due(sweeper) == ["old"]


def test_a_gate_that_is_left_is_gone_within_four_seconds() -> None:
    assert module.SILENCE + 2 * module.LOOK <= 4


async def test_a_deletion_says_nothing_of_the_leader(sweeper: GateSweeper, clock: Clock) -> None:
    sweeper.changed(pod("a"))
    sweeper.changed(pod("b"))
    clock.now += SILENCE + 0.1
    sweeper.gone(Gone("default", "b", "uid-b"))
    assert due(sweeper) == ["a"]


async def test_gates_of_others_are_not_looked_at(sweeper: GateSweeper, clock: Clock) -> None:
    other = Pod(metadata=ObjectMeta(name="o", uid="o"), spec=PodSpec(scheduling_gates=[Gate(name="example.com/x")]))
    sweeper.changed(other)
    clock.now += LONGEST + 1
    assert due(sweeper) == []


async def test_what_is_bound_has_no_gate_to_remove_and_says_nothing_of_the_leader(
    sweeper: GateSweeper, clock: Clock
) -> None:
    for name in ("a", "b"):
        sweeper.changed(pod(name))
    clock.now += SILENCE + 0.1
    bound = msgspec.structs.replace(pod("b"), spec=PodSpec(scheduling_gates=[Gate(name=queued.GATE)], node_name="n1"))
    sweeper.changed(bound)
    assert due(sweeper) == ["a"]


async def test_a_replica_that_leads_needs_no_second_watch_and_has_its_own_again_after(
    server: FakeApiServer, sweeper: GateSweeper, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    synced = asyncio.Event()
    sweeping = asyncio.create_task(sweeper.run())
    shown = asyncio.create_task(sweeper.shown(synced))
    await until(lambda: server.watching() == 1)  # the other watch shows nothing yet
    synced.set()
    await until(lambda: server.watching() == 0)
    sweeper.changed(pod("a"))
    clock.now += SILENCE + 1
    await until(lambda: server.writes() == [f"PATCH {paths.pod('default', 'a')}"])
    shown.cancel()
    await until(lambda: server.watching() == 1)
    assert due(sweeper) == [], "a was never there"
    sweeping.cancel()
    await asyncio.wait([shown, sweeping], timeout=10)


async def test_they_are_removed_and_a_failure_is_repeated(
    server: FakeApiServer, sweeper: GateSweeper, clock: Clock, tally: DecisionTally, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK", 0.01)
    for name in ("a", "b"):
        spec = {"containers": [], "schedulingGates": [{"name": queued.GATE}, {"name": "example.com/x"}]}
        server.create(paths.pods("default"), {"metadata": {"name": name, "namespace": "default"}, "spec": spec})
    server.inject(Fault(method="PATCH", path="/api/v1/namespaces/default/pods/a", status=403))

    def gates(name: str) -> list[Gate] | None:
        return msgspec.convert(server.get(paths.pod("default", name)), Pod).spec.scheduling_gates

    task = asyncio.create_task(sweeper.run())
    try:
        await until(lambda: any(r.method == "GET" and "watch" in r.query for r in server.requests))
        assert len(gates("a") or ()) == 2
        clock.now += SILENCE + 1
        await until(lambda: gates("a") == gates("b") == [Gate(name="example.com/x")])
        await until(lambda: tally.figures(QueueDepths()).gates == {"leader": 0, "sweeper": 2})
    finally:
        task.cancel()
        await asyncio.wait([task])
