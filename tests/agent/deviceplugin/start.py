"""A container that is about to start: PreStart alone, between a fake API server and kubelet's books.

async with start() as s:
    pod = s.bind(Asks("main", 4), on={"main": [A]})
    s.holds(pod, "main", ids(A, 4))      # as kubelet writes it down before it asks
    assert await s.check(ids(A, 4)) is None
"""

import asyncio
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fractile.agent.deviceplugin.assigned import Assigned
from fractile.agent.deviceplugin.prestart import PreStart
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.api import podresources_pb2 as pr
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.kubelet.owner import Denied
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.limits_writer import LimitsWriter
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.debug.trace_steps import TraceStep
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.card import Card
from fractile.model.offer import Offer
from fractile.model.units import ContainerName, MemoryUnit, PodUID
from fractile.region import directory
from fractile.region.page import ContainerLimits
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile.device_ids import device_id
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, MEM, NODE, Asks, World, credentials
from tests.builders import Clock
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import FakeKubelet


def ids(card: Card, count: int, first: int = 0) -> frozenset[str]:
    """So many ids of the card."""
    return frozenset(device_id(card.uuid, k) for k in range(first, first + count))


class Start:
    """A node without a running agent. Its clock moves only while somebody sleeps."""

    def __init__(self, world: World, client: KubeClient) -> None:
        self.world = world
        self.client = client
        self.clock = Clock()
        self.pods = NodePods(client, node=NODE, unit=world.unit, clock=self.clock)
        self.journal = Journal(world.root / "slices", new_token=lambda: f"t{len(self._entries)}")
        self.current_catalog = CurrentCatalog(Catalog.of(world.cards, world.unit, others=world.others))
        self.assigned = Assigned(self.pods)
        self.slept: list[float] = []
        self.asleep: Callable[[int], None] = lambda count: None  # told how often somebody has slept by then
        self.granted = 0  # how often the neighbours were told
        self.ready: list[PodUID] = []
        self.steps: list[TraceStep] = []
        self.listed: list[pr.PodResources] = []
        self._entries: list[Recorded] = []
        self._checkpoint = world.root / "checkpoint"
        self.socket = world.root / "pod-resources.sock"

    def prestart(self, **parts: Any) -> PreStart:
        """``parts``: what the agent's wiring gives it besides."""
        kubelet = Kubelet(self.socket, self._checkpoint)
        granter = LimitsWriter(self.journal, self.current_catalog)
        return PreStart(
            kubelet,
            self.pods,
            granter,
            self.assigned,
            self.current_catalog,
            clock=self.clock,
            sleep=self._sleep,
            **parts,
        )

    async def check(self, held: Set[str], resource: str = MEM) -> Denied | None:
        """Kubelet's call for the container that holds these ids, to an agent with all that can be told."""
        return await self.prestart(granted=self._tell, ready=self._write, trace=self.steps.append).check(
            resource, frozenset(held)
        )

    def bind(self, *asks: Asks, on: dict[str, list[Card]] | None, name: str = "") -> Pod:
        """A pod of the node, bound with this placement, that the node's view has."""
        pod = self.world.bind(*asks, on=on, name=name)
        self.pods.changed(pod)
        return pod

    def four(self, change: dict[str, Any] | None = None) -> tuple[Pod, str]:
        """A pod with 4 GiB of the first card, as placed and as held, and the token of its container. ``change``: fields
        of its container."""
        first = self.world.cards[0]
        pod = self.bind(Asks("main", 4), on={"main": [first]})
        if change:
            self.alter(pod, containers=[self.world.server.get(self.path(pod))["spec"]["containers"][0] | change])
        return pod, self.holds(pod, "main", ids(first, 4))

    def alter(self, pod: Pod, **spec: Any) -> None:
        """Change fields of the pod's spec."""
        self.world.server.merge(self.path(pod), {"spec": spec})

    def moves(self, pod: Pod, *, after: int) -> None:
        """The control plane puts the pod's container on the first card when it has been waited for so often."""

        def move(count: int) -> None:
            if count == after:
                self.world.place(pod, {"main": [self.world.cards[0]]})

        self.asleep = move

    def path(self, pod: Pod) -> str:
        return paths.pod(pod.metadata.namespace, pod.metadata.name)

    def holds(
        self,
        pod: Pod,
        container: str,
        held: frozenset[str],
        resource: str = MEM,
        *,
        mounted: bool = True,
        besides: Sequence[dp.Mount] = (),
    ) -> str:
        """Allocate has given these ids to the container; the token of its directory."""
        token = self.journal.new_token()
        self.journal.create(token, resource, held)
        answer = dp.ContainerAllocateResponse()
        if mounted:
            answer.mounts.add(container_path=directory.MOUNT, host_path=str(self.journal.path(token)))
        answer.mounts.extend(besides)
        uid, name = PodUID(pod.metadata.uid), ContainerName(container)
        self._entries.append(Recorded(uid, name, resource, held, answer.SerializeToString()))
        self._checkpoint.write_bytes(kubelet_checkpoint.encode(self._entries, {}))
        return token

    def lose_checkpoint(self) -> None:
        self._checkpoint.write_text("{}")

    def list(self, pod: Pod, container: str, held: frozenset[str], resource: str = MEM) -> None:
        """Kubelet's list names the container from now on, where ``listing`` serves it."""
        entry = pr.PodResources(name=pod.metadata.name, namespace=pod.metadata.namespace)
        entry.containers.add(name=container).devices.add(resource_name=resource, device_ids=sorted(held))
        self.listed.append(entry)

    @asynccontextmanager
    async def listing(self) -> AsyncGenerator[None]:
        """Kubelet's pod-resources API answers."""

        async def answer(request: pr.ListPodResourcesRequest, context: rpc.Context) -> pr.ListPodResourcesResponse:
            return pr.ListPodResourcesResponse(pod_resources=self.listed)

        server = await rpc.serve(self.socket, rpc.unary(rpc.LIST, answer))
        try:
            yield
        finally:
            await server.stop(0)

    def limits(self, token: str) -> ContainerLimits | None:
        return self.journal.limits(token)

    def allowed(self, token: str) -> dict[str, int]:
        """MiB of each card that the token's limits allow; empty when there are none."""
        limits = self.limits(token)
        return {} if limits is None else {c.uuid: c.memory // 2**20 for c in limits.cards}

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.clock.now += seconds
        self.asleep(len(self.slept))

    def _tell(self) -> None:
        self.granted += 1

    async def _write(self, uid: PodUID) -> None:
        self.ready.append(uid)


@asynccontextmanager
async def start(
    *, cards: list[Card] | None = None, others: tuple[Offer, ...] = (), unit: MemoryUnit = MemoryUnit.GiB
) -> AsyncGenerator[Start]:
    root = Path(tempfile.mkdtemp(prefix="fr-"))  # pytest's own paths are too long for sockets
    try:
        async with FakeApiServer() as server:
            server.create(paths.nodes(), {"metadata": {"name": NODE}})
            kubelet = FakeKubelet(root, rng=random.Random(0))  # never started: its books are files here
            world = World(server, kubelet, root, unit, CARDS if cards is None else cards, others=others)
            async with KubeClient(credentials(world), sleep=_at_once) as client:
                yield Start(world, client)
    finally:
        shutil.rmtree(root)


@asynccontextmanager
async def start_with_events() -> AsyncGenerator[tuple[Start, EventRecorder]]:
    """With a recorder that sends its events to the API server."""
    async with start() as s:
        events = EventRecorder(s.client, "test")
        running = asyncio.create_task(events.run())
        try:
            yield s, events
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def _at_once(_: float) -> None:
    """The client repeats without waiting."""
