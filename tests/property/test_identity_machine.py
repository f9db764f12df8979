"""A node under fire: whatever pods, kubelet, agent and API server do, limits page, card and owner belong together.

    rules        pods in any order ── containers and pods that end, also for good ── kubelet, agent and machine that
                 restart ── a lost checkpoint, also of a machine that restarts: then pods are admitted before the agent
                 is there ── an API server that is away, slow, refuses, forgets, or whose watches say nothing
    after each   whatever runs has exactly its pod's limits, on exactly the cards that kubelet gave it, and no card is
                 promised twice
    at the end   all faults are gone: every pod runs, or was lost by a rule of kubelet's that is named here

The agent is the real one, a process that is killed; kubelet, API server and control plane are played. A run that fails
prints its steps and a line to repeat them. ``FRACTILE_IDENTITY_EXAMPLES=500`` makes it long; else it takes half a
minute.
"""

import asyncio
import os
import random
from collections.abc import Coroutine, Generator
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fractile.model.placement import Charge, charges
from fractile.model.request import Role
from fractile.model.units import ContainerName
from fractile.region import directory
from fractile.wire.kubernetes.objects import Pod
from tests.agent.forked import Fork, Life, agents
from tests.agent.planner import CARDS, OTHERS, POD, Planner
from tests.agent.world import Asks, World, world
from tests.fakes.apiserver import Fault

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("FRACTILE_IDENTITY_EXAMPLES", "12"))
PATIENCE = 30.0  # seconds
UNCONFIRMED = "has not confirmed the change"  # kubelet's choice has no room: the pod waits until somebody deletes one
LOST = (  # what kubelet fails a pod for when the agent is not there, or devices are not those of before
    "no healthy devices present",
    "previously allocated devices are no longer healthy",
    "is stopped",
    "rpc error",
    "GetPreferredAllocation rpc failed",
    "cannot allocate unregistered device",
    "requested number of devices unavailable",
)
FAULTS = {
    "get refused": Fault(method="GET", path="/pods/", watch=False, status=500),
    "get throttled": Fault(method="GET", path="/pods/", watch=False, status=429, headers={"Retry-After": "0"}),
    "get slow": Fault(method="GET", path="/pods/", watch=False, delay=0.3),
    "get cut": Fault(method="GET", path="/pods/", watch=False, drop="before"),
    "patch conflict": Fault(method="PATCH", path="/pods/", status=409),
    "patch gone": Fault(method="PATCH", path="/pods/", drop="after"),
    "list refused": Fault(method="GET", path="/api/v1/pods", watch=False, status=500),
    "watch silent": Fault(path="/api/v1/pods", watch=True, silent=True),
    "watch cut": Fault(path="/api/v1/pods", watch=True, cut_after=150),
    "watch damaged": Fault(path="/api/v1/pods", watch=True, line=b"{"),
}
T = TypeVar("T")
_forks: list[Fork] = []


class Node(RuleBasedStateMachine):
    """One node and its life. ``planner.pods`` are those that hold a placement."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        self.w: World
        self.agent: Life
        self.forgotten = False  # kubelet has lost its record once
        self.planner: Planner
        self.confirming: asyncio.Task[None]

    def do(self, work: Coroutine[object, object, T]) -> T:
        async def bounded() -> T:
            async with asyncio.timeout(PATIENCE * 2):
                return await work

        return self.runner.run(bounded())

    @initialize(seed=st.integers(0, 2**32 - 1))
    def start(self, seed: int) -> None:
        note(f"seed {seed}")
        self.do(self._start(seed))

    async def _start(self, seed: int) -> None:
        self.w = await self.stack.enter_async_context(world(cards=CARDS, seed=seed, agent=False, others=OTHERS))
        self.agent = _forks[0].start(self.w, wait=1.0)
        await self.w.ready()
        self.planner = Planner(self.w, random.Random(seed))
        self.confirming = asyncio.create_task(self.planner.confirm())

    # Pods

    @rule(asks=st.lists(POD, min_size=1, max_size=4), wait=st.sampled_from([0.0, 0.02, 0.2]))
    def pods_come(self, asks: list[tuple[Asks, ...]], wait: float) -> None:
        """Bound in one order, seen by kubelet in another."""
        bound = [pod for a in asks if (pod := self.planner.bind(a))]
        self.planner.rng.shuffle(bound)
        self.do(self._add(bound, wait))

    async def _add(self, pods: list[Pod], wait: float) -> None:
        for pod in pods:
            self.w.kubelet.add(pod)
        await asyncio.sleep(wait)

    @precondition(lambda self: bool(self.planner.pods))
    @rule(which=st.integers(0, 99), again=st.booleans())
    def a_pod_is_deleted(self, which: int, again: bool) -> None:
        """And, sometimes, made again under its name with another size, as a StatefulSet does after an update."""
        pod = self.planner.pods[which % len(self.planner.pods)]

        async def delete() -> None:
            self.planner.delete(pod)
            if again and (new := self.planner.bind((Asks("main", 1 + which % 3),), name=pod.metadata.name)):
                self.w.kubelet.add(new)

        self.do(delete())

    @precondition(lambda self: bool(self.planner.pods))
    @rule(which=st.integers(0, 99))
    def a_container_ends(self, which: int) -> None:
        pod = self.planner.pods[which % len(self.planner.pods)]
        names = [c.name for c in pod.spec.containers or ()]

        async def end() -> None:
            self.w.kubelet.end_container(pod, names[which % len(names)])

        self.do(end())

    @precondition(lambda self: bool(self.planner.pods))
    @rule(which=st.integers(0, 99))
    def a_container_ends_for_good(self, which: int) -> None:
        """The last one takes the pod along: it is done, its devices and its part of the cards are free."""
        pod = self.planner.pods[which % len(self.planner.pods)]
        names = [c.name for c in pod.spec.containers or ()]

        async def end() -> None:
            self.w.kubelet.end_container(pod, names[which % len(names)], for_good=True)
            fate = self.w.kubelet.fate(pod)
            if fate is not None and fate.phase == "Succeeded":
                self.planner.done(pod)

        self.do(end())

    @rule(asks=st.lists(POD, min_size=2, max_size=4), late=st.sampled_from([0.0, 0.5, 1.0]), end=st.booleans())
    def the_machine_restarts_without_kubelets_record(
        self, asks: list[tuple[Asks, ...]], late: float, end: bool
    ) -> None:
        """Kubelet does not know the resources when it admits the pods; some wait in an init container meanwhile."""
        self.forgotten = True

        async def reboot() -> None:
            self.agent.kill()
            await self.w.kubelet.stop()
            new = [pod for a in asks if (pod := self.planner.bind((Asks("wait", 0, role=Role.INIT), *a)))]
            for pod in new:
                self.w.kubelet.keep_busy(pod, "wait")
                self.w.kubelet.add(pod)
            await self.w.kubelet.reboot(forgets=True)
            await asyncio.sleep(late)
            await self._restart_agent()
            await asyncio.sleep(late if end else 0)
            for pod in new:
                self.w.kubelet.end_container(pod, "wait")

        self.do(reboot())

    @rule(seconds=st.sampled_from([0.02, 0.1, 0.5]))
    def time_passes(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    # Restarts

    @rule()
    def kubelet_restarts(self) -> None:
        self.do(self.w.kubelet.restart())

    @rule()
    def the_agent_restarts(self) -> None:
        self.do(self._restart_agent())

    async def _restart_agent(self) -> None:
        self.agent.kill()
        await self.agent.dead()
        self.agent = _forks[0].start(self.w, wait=1.0)

    @rule()
    def both_restart(self) -> None:
        async def both() -> None:
            await self.w.kubelet.stop()
            await self._restart_agent()
            self.w.kubelet.start()

        self.do(both())

    @rule()
    def the_machine_restarts(self) -> None:
        async def reboot() -> None:
            self.agent.kill()
            await self.w.kubelet.reboot()
            await self._restart_agent()

        self.do(reboot())

    @rule()
    def kubelet_loses_its_checkpoint(self) -> None:
        self.forgotten = True
        self.do(self.w.kubelet.lose_checkpoint())

    # The API server

    @rule(names=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=3), times=st.integers(1, 4))
    def the_api_server_misbehaves(self, names: list[str], times: int) -> None:
        for name in names:
            self.w.server.inject(replace(FAULTS[name], times=times))

    @rule(seconds=st.sampled_from([0.05, 0.3]))
    def the_api_server_is_away(self, seconds: float) -> None:
        async def away() -> None:
            await self.w.server.stop()
            await asyncio.sleep(seconds)
            await self.w.server.restart()

        self.do(away())

    @rule(compacted=st.booleans())
    def watches_break(self, compacted: bool) -> None:
        """With the history gone as well, the agent has to list (410)."""

        async def cut() -> None:
            if compacted:
                self.w.server.compact()
            await self.w.server.cut_connections()

        self.do(cut())

    # What always holds

    @invariant()
    def whatever_runs_has_its_own_limits_on_the_cards_that_it_was_given(self) -> None:
        if not hasattr(self, "planner"):
            return
        assert not self.confirming.done(), self.confirming
        assert self.agent.alive
        held: list[Charge] = []
        for pod in self.planner.pods:
            running = self._running(pod)
            if running:
                self.w.check_containers(pod, running)
                held += charges(self.w.placement(pod))
        for card in [*CARDS, *(o.device for o in OTHERS)]:
            assert self.planner.bears(card, [c for c in held if c.card == card.uuid]), (card.uuid, held)

    def _running(self, pod: Pod) -> frozenset[ContainerName]:
        """The started containers, less those that got no device at all: a kubelet that has lost its record does not
        know that a resource is a plugin's until the plugin has registered, and starts containers without it."""
        whole: dict[ContainerName, bool] = {}
        for asked in self.w.request(pod).containers:
            started = self.w.kubelet.started(pod, asked.container)
            if started is None:
                continue
            mark = "FRACTILE_DEVICES" in started.env if asked.request.shares else directory.MOUNT in started.mounts
            whole[asked.container] = whole.get(asked.container, True) and mark
            if not mark:
                assert self.forgotten, f"{asked.container} of {pod.metadata.name} runs without its devices"
                assert asked.request.shares or "NVIDIA_VISIBLE_DEVICES" not in started.env, started.env
        return frozenset(name for name, all_there in whole.items() if all_there)

    def teardown(self) -> None:
        try:
            if hasattr(self, "planner"):
                self.do(self._recover())
                self.whatever_runs_has_its_own_limits_on_the_cards_that_it_was_given()
        finally:
            self.runner.run(self._close())
            self.runner.close()

    async def _recover(self) -> None:
        """Faults end. Every pod runs, but for those that kubelet failed for good and those that have no room."""
        self.w.server.heal()
        await self.w.server.cut_connections()
        try:
            await self.w.ready()
        except TimeoutError:
            raise AssertionError(f"not registered: {self.w.kubelet.capacity()}\n{self._log()}") from None
        waiting: list[Pod] = []
        try:
            async with asyncio.timeout(PATIENCE):
                while waiting := [p for p in self.planner.pods if not self._ran(p)]:
                    for pod in waiting:
                        if self._lost(pod) or self._stuck(pod):
                            self.planner.delete(pod)
                    await asyncio.sleep(0.02)
        except TimeoutError:
            fates = [self.w.kubelet.fate(p) for p in waiting]
            raise AssertionError(f"neither run nor lost: {fates}\n{self._log()}") from None
        fresh = self.planner.bind((Asks("main", 1),))
        if fresh is not None:
            self.w.kubelet.add(fresh)
            await self.w.kubelet.phase(fresh, "Running", "Failed", "")

    def _log(self) -> str:
        return (self.w.root / "agent.log").read_text()[-4000:]

    def _ran(self, pod: Pod) -> bool:
        fate = self.w.kubelet.fate(pod)
        return fate is not None and fate.phase == "Running"

    def _lost(self, pod: Pod) -> bool:
        fate = self.w.kubelet.fate(pod)
        if fate is None or fate.phase != "Failed":
            return False
        assert any(reason in fate.message for reason in LOST), fate.message
        return True

    def _stuck(self, pod: Pod) -> bool:
        """Kubelet's choice has no room, or kubelet has forgotten what the pod holds: somebody must delete it."""
        fate = self.w.kubelet.fate(pod)
        return fate is not None and (UNCONFIRMED in fate.message or "no devices found allocated" in fate.message)

    async def _close(self) -> None:
        if hasattr(self, "confirming"):
            self.confirming.cancel()
            self.agent.kill()
            await asyncio.gather(self.confirming, return_exceptions=True)
        await self.stack.aclose()


@pytest.fixture(autouse=True)
def _forking() -> Generator[None]:
    with agents() as fork:
        _forks.append(fork)
        yield
        _forks.clear()


def test_limits_card_and_owner_belong_together_whatever_happens() -> None:
    run_state_machine_as_test(  # pyright: ignore[reportUnknownMemberType]
        Node,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=15,
            deadline=None,
            print_blob=True,
            database=None,
            phases=[Phase.generate, Phase.target],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much],
        ),
    )
