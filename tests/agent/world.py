"""A node in one process: fake API server, fake kubelet, and the real agent between them, over real sockets."""

import asyncio
import contextlib
import json
import random
import shutil
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fractile.agent.limits.library import LibraryVersion
from fractile.dialects import table
from fractile.kube import paths
from fractile.kube.credentials import load
from fractile.main import agent as agent_program
from fractile.main.node.options import AgentOptions
from fractile.main.tracing import Tracing
from fractile.model.card import Card
from fractile.model.offer import DeviceNode, Offer
from fractile.model.placement import Charge, ContainerPlacement, Placement, Slice, charges
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.sharing import MOST_SLICES
from fractile.model.units import WHOLE, CardUUID, ContainerName, MemoryUnit, MiB, NodeName, Percent
from fractile.nvml.simulated import SimulatedDriver
from fractile.policy.health import HealthRules
from fractile.region import directory
from fractile.region.page import ContainerLimits
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, resource_name
from fractile.wire.kubernetes.objects import Pod
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.kubelet import FakeKubelet

NODE = NodeName("n1")
GIB = 1024
MEM = "aliyun.com/gpu-mem"
COUNT = "aliyun.com/gpu-count"
CORE = "tencent.com/vcuda-core"
BLOCKS = "tencent.com/vcuda-memory"  # of 256 MiB
GPU = "nvidia.com/gpu"
SLOTS = 10  # ids of it that a card has
CLASSES = {"small": (2 * GIB, 0), "timed": (GIB, 20), "whole": (0, 100)}  # MiB and percent; 0 MiB: all of them


def card(number: int, memory: int = 16 * GIB) -> Card:
    uuid = CardUUID(f"GPU-{number:08x}-0000-4000-8000-000000000000")
    return Card(uuid, number, "Tesla-V100", MiB(memory), f"00000000:00:{number + 4:02x}.0")


def adapter(number: int, shares: int = 1) -> Offer:
    """An InfiniBand adapter, with its device file and a variable."""
    uuid = CardUUID(f"mlx5-{number}.n1")
    made = Card(uuid, number, "ConnectX-7", MiB(0), type="infiniband", shares=shares)
    file = f"/dev/infiniband/uverbs{number}"
    return Offer(made, (DeviceNode(file, file),), (), (("HCA", uuid),))


CARDS = [card(0), card(1)]
_RULES = HealthRules()


@dataclass(frozen=True)
class Asks:
    """One container of a pod for tests; ``more`` are further resources of the family."""

    name: str
    amount: int
    resource: str = MEM
    role: Role = Role.APP
    more: tuple[tuple[str, int], ...] = ()


def of_class(name: str, cls: str = "small", units: int = 1, *, devices: int = 0, role: Role = Role.APP) -> Asks:
    """A container that asks for units of a class of GPUs, and for devices of the class "ib" beside."""
    more = [(resource_name(cls), units)]
    more += [(DEVICE_SLOT, devices), (resource_name("ib"), devices)] if devices else []
    return Asks(name, units, GPU_SLOT, role, tuple(more))


def share(name: str, cores: int, blocks: int, *, role: Role = Role.APP) -> Asks:
    """A container that asks as gpu-manager's manifests do."""
    return Asks(name, cores, CORE, role, ((BLOCKS, blocks),))


@dataclass
class World:
    """What a test of the agent touches."""

    server: FakeApiServer
    kubelet: FakeKubelet
    root: Path
    unit: MemoryUnit
    cards: list[Card]
    agent: asyncio.Task[None] | None = None
    made: int = 0
    others: tuple[Offer, ...] = ()
    rules: HealthRules = _RULES
    traces: Tracing | None = None
    faults: dict[CardUUID, dict[str, object]] = field(default_factory=dict[CardUUID, dict[str, object]])

    def hurt(self, card: Card, **faults: object) -> None:
        """Give a card these fields in the file of simulated cards; without any, it is well."""
        self.faults[card.uuid] = faults
        self.write_cards()

    def write_cards(self) -> Path:
        file = self.root / "cards.json"
        entries = [
            {"uuid": c.uuid, "index": c.index, "model": c.model, "memoryMiB": c.memory, "pciBusID": c.pci_bus_id}
            | self.faults.get(c.uuid, {})
            for c in self.cards
        ]
        file.with_suffix(".new").write_bytes(msgspec.json.encode(entries))
        return file.with_suffix(".new").rename(file)

    def start_agent(self, installed: LibraryVersion | None = None) -> None:
        self.agent = asyncio.create_task(self._agent(self.write_cards(), installed))

    async def _agent(self, cards: Path, installed: LibraryVersion | None) -> None:
        options = AgentOptions(
            node=NODE,
            kubeconfig=self.server.write_kubeconfig(self.root / "kubeconfig"),
            unit=self.unit,
            plugins=self.kubelet.plugin_directory,
            pod_resources=self.kubelet.pod_resources_socket,
            state=self.root / "state",
            installed=installed,
            rules=self.rules,
            look=0.1,
            others=self.others,
            traces=self.traces,
        )
        while await agent_program.run(SimulatedDriver(cards), options):
            pass

    async def stop_agent(self) -> None:
        if self.agent is not None:
            self.agent.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self.agent
            self.agent = None

    async def restart_agent(self) -> None:
        await self.stop_agent()
        for resource in (MEM, COUNT, CORE, BLOCKS, GPU, GPU_SLOT):  # kubelet notices the one after the other
            await self.kubelet.registered(resource, 0)
        self.start_agent()

    async def ready(self) -> None:
        """Until all resources are allocatable."""
        await self.kubelet.registered(MEM, sum(c.memory // self.unit for c in self.cards))
        await self.kubelet.registered(COUNT, len(self.cards))
        await self.kubelet.registered(CORE, 100 * len(self.cards))
        await self.kubelet.registered(BLOCKS, sum(c.memory // 256 for c in self.cards))
        await self.kubelet.registered(GPU, SLOTS * len(self.cards))
        await self.kubelet.registered(GPU_SLOT, MOST_SLICES * len(self.cards))
        await self._known(DEVICE_SLOT)
        await self.kubelet.registered(DEVICE_SLOT, sum(o.device.shares for o in self.others))

    async def _known(self, resource: str) -> None:
        """Until kubelet knows of the resource, of which there may be none."""
        async with asyncio.timeout(10):
            while resource not in self.kubelet.capacity():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def bind(self, *asks: Asks, on: dict[str, list[Card]] | None, name: str = "") -> Pod:
        """A pod bound to the node, with the placement that gives its containers these cards; None: no placement."""
        self.made += 1
        name = name or f"p{self.made}"
        made = self.server.create(paths.pods("default"), {"metadata": {"name": name}, "spec": _spec(asks)})
        pod = msgspec.convert(made, Pod, strict=False)
        if on is not None:
            self.place(pod, on)
        return self.pod(pod)

    def admit(self, *asks: Asks, on: dict[str, list[Card]] | None, name: str = "") -> Pod:
        """``bind``, and let kubelet see it."""
        pod = self.bind(*asks, on=on, name=name)
        self.kubelet.add(pod)
        return pod

    def place(self, pod: Pod, on: dict[str, list[Card]]) -> Placement:
        """Write the placement annotation, as the control plane does."""
        request = self.request(pod)
        slices: dict[ContainerName, tuple[Slice, ...]] = {}
        for c in request.containers:
            kind = [card for card in on[c.container] if (card.type == "gpu") is (not c.request.shares)]
            mine = tuple(_slice(c.request, card) for card in kind)
            slices[c.container] = slices.get(c.container, ()) + mine
        roles = {c.container: c.role for c in request.containers}
        given = Placement(NODE, tuple(ContainerPlacement(name, roles[name], mine) for name, mine in slices.items()))
        self.write_placement(pod, given)
        return given

    def write_placement(self, pod: Pod, given: Placement) -> None:
        annotations = table.placement_annotations(
            self.request(pod), given, cards=self.cards, unit=self.unit, now_ns=1
        ) | {placement.ANNOTATION: placement.encode(given)}
        self.annotate(pod, annotations)

    def annotate(self, pod: Pod, annotations: dict[str, str] | dict[str, None]) -> None:
        path = paths.pod(pod.metadata.namespace, pod.metadata.name)
        self.server.merge(path, {"metadata": {"annotations": annotations}})

    def delete(self, pod: Pod) -> None:
        self.kubelet.remove(pod)
        self.server.delete(paths.pod(pod.metadata.namespace, pod.metadata.name))

    def pod(self, pod: Pod) -> Pod:
        """As the API server has it."""
        found = self.server.get(paths.pod(pod.metadata.namespace, pod.metadata.name))
        return msgspec.convert(json.loads(json.dumps(found)), Pod)

    def request(self, pod: Pod) -> PodRequest:
        parsed = table.parse_pod(pod, self.unit)
        assert isinstance(parsed, PodRequest), parsed
        return parsed

    def placement(self, pod: Pod) -> Placement:
        return placement.decode(self.annotations(pod)[placement.ANNOTATION])

    def annotations(self, pod: Pod) -> dict[str, str]:
        return self.pod(pod).metadata.annotations or {}

    def env(self, pod: Pod, container: str) -> dict[str, str]:
        started = self.kubelet.started(pod, container)
        assert started is not None, f"{container} has not started"
        return started.env

    def limits(self, pod: Pod, container: str) -> ContainerLimits:
        """What the container sees of its limits."""
        started = self.kubelet.started(pod, container)
        assert started is not None, f"{container} has not started"
        found = directory.read(Path(started.mounts[directory.MOUNT]))
        assert found is not None, f"{container} has no limits"
        return found

    def tokens(self) -> list[str]:
        return sorted(p.name for p in (self.root / "state" / "slices").iterdir())

    def check(self, *pods: Pod) -> None:
        """The invariant: card, amount, limits and owner of every container of these running pods belong together."""
        held = [charge for pod in pods for charge in charges(self.placement(pod))]
        for pod in pods:
            self.check_containers(pod, frozenset(c.container for c in self.request(pod).containers))
        for card in self.cards:
            memory, cores = (sum(c.memory for c in held if c.card == card.uuid), _cores(held, card))
            assert memory <= card.memory, held
            assert cores <= 100, held

    def check_containers(self, pod: Pod, names: frozenset[ContainerName]) -> None:
        """The same for these containers alone, without the sums."""
        given = self.placement(pod)
        for asked in self.request(pod).containers:
            if asked.container not in names:
                continue
            if asked.request.shares:
                self._check_devices(pod, asked)
                continue
            seen = self.limits(pod, asked.container)
            assert (seen.pod_uid, seen.namespace, seen.pod, seen.container) == (
                pod.metadata.uid,
                pod.metadata.namespace,
                pod.metadata.name,
                asked.container,
            )
            slices = given.slices_for(asked)
            assert [(c.uuid, c.memory, c.cores) for c in seen.cards] == sorted(
                (s.card, s.memory * 2**20, s.cores) for s in slices
            )
            assert {c.context for c in seen.cards} == {256 * 2**20}  # what a simulated card says
            env = self.env(pod, asked.container)
            assert sorted(env["NVIDIA_VISIBLE_DEVICES"].split(",")) == sorted(s.card for s in slices)
            if asked.resource == MEM:
                assert env["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(asked.amount)
            if asked.resource == CORE:
                assert {c.cores_limit for c in seen.cards} == {asked.request.cores_limit}

    def _check_devices(self, pod: Pod, asked: ContainerRequest) -> None:
        """The devices that a container sees are those of its placement, each with what it needs besides."""
        env = self.env(pod, asked.container)
        mine = sorted(s.card for s in self.placement(pod).slices_for(asked))
        assert sorted(env["FRACTILE_DEVICES"].split(",")) == mine
        assert sorted(env["HCA"].split(",")) == mine


def _cores(held: list[Charge], card: Card) -> int:
    return sum(c.cores for c in held if c.card == card.uuid)


@asynccontextmanager
async def world(
    *,
    cards: list[Card] | None = None,
    unit: MemoryUnit = MemoryUnit.GiB,
    seed: int = 0,
    agent: bool = True,
    rules: HealthRules = _RULES,
    others: tuple[Offer, ...] = (),
) -> AsyncGenerator[World]:
    """A node with a running kubelet and, unless told otherwise, a registered agent."""
    root = Path(tempfile.mkdtemp(prefix="fr-"))  # pytest's own paths are too long for sockets
    try:
        async with FakeApiServer() as server, FakeKubelet(root, rng=random.Random(seed)) as kubelet:
            server.create(paths.nodes(), {"metadata": {"name": NODE}})
            made = World(server, kubelet, root, unit, CARDS if cards is None else cards, rules=rules, others=others)
            try:
                if agent:
                    made.start_agent()
                    await made.ready()
                yield made
            finally:
                await made.stop_agent()
    finally:
        await _remove(root)


async def _remove(root: Path) -> None:
    """A thread that the agent has left may still be writing a file there."""
    for _ in range(100):
        shutil.rmtree(root, ignore_errors=True)
        if not root.exists():  # noqa: ASYNC240
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{root} cannot be removed")


def credentials(world: World):
    return load(world.server.write_kubeconfig(world.root / "kubeconfig"))


def _spec(asks: tuple[Asks, ...]) -> dict[str, object]:
    init = [_container(a) for a in asks if a.role is not Role.APP]
    return {"nodeName": NODE, "initContainers": init, "containers": [_container(a) for a in asks if a.role is Role.APP]}


def _container(asks: Asks) -> dict[str, object]:
    made: dict[str, object] = {"name": asks.name}
    if asks.amount:
        amounts = ((asks.resource, asks.amount), *asks.more)
        made["resources"] = {"limits": {resource: str(amount) for resource, amount in amounts}}
    if asks.role is Role.SIDECAR:
        made["restartPolicy"] = "Always"
    return made


def _slice(asked: Request, card: Card) -> Slice:
    if asked.shares:
        return Slice(card.uuid, MiB(0), shares=asked.shares)
    if asked.device_class:
        memory, cores = CLASSES[asked.device_class.split(",")[-1]]
        return Slice(card.uuid, MiB(memory or card.memory), Percent(cores))
    return Slice(card.uuid, asked.memory_on(card.memory), WHOLE if asked.exclusive else asked.cores, asked.slots)


def name(text: str) -> ContainerName:
    return ContainerName(text)
