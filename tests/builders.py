"""Small builders of the things that tests talk about. Every argument has a plain default; pass what the test is about.

pod("p", container(memory=8138))                          a pod as the API server shows it
request(by_memory(8138))                                  what a dialect makes of it
node_state("n1", 12207, 8138, 4069, 16276)                a node's cards by what is free on them
ledger = cluster({"n1": [card("n1", 0), card("n1", 1)]})  a ledger that knows these cards
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from fractile.dialects import nvidia, tencent
from fractile.dialects.aliyun import COUNT, MEMORY
from fractile.ledger.ledger import Ledger
from fractile.ledger.precedence import Rank
from fractile.model.card import Card
from fractile.model.interconnect import Interconnect
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import ContainerRequest, PodRequest, Request, Role, Selector
from fractile.model.units import WHOLE, CardUUID, ContainerName, MiB, NodeName, Percent, PodUID
from fractile.policy.cards.state import CardState, NodeState
from fractile.wire.fractile.extended_resource import ExtendedResource, ExtendedResourceSpec, ExtendedResourceStatus
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, resource_name
from fractile.wire.kubernetes.objects import Container, ObjectMeta, Pod, PodSpec, PodStatus, ResourceRequirements

CARD_MEMORY = 16_276  # MiB; a Tesla V100 of the worked examples


# ── what the API server shows ────────────────────────────────────────────────────────────────────────────────────────


def container(
    name: str = "main",
    *,
    memory: object = None,
    count: object = None,
    sidecar: bool = False,
    limits: Mapping[str, object] | None = None,
    requests: Mapping[str, object] | None = None,
) -> Container:
    """A container; ``memory`` and ``count`` are amounts of aliyun.com/gpu-mem and aliyun.com/gpu-count."""
    asked: dict[str, Any] = dict(limits or {})
    if memory is not None:
        asked[MEMORY] = memory
    if count is not None:
        asked[COUNT] = count
    resources = ResourceRequirements(limits=asked or None, requests=dict(requests) if requests else None)
    return Container(name=name, resources=resources, restart_policy="Always" if sidecar else None)


def pod(
    name: str = "p",
    *containers: Container,
    init: Sequence[Container] = (),
    namespace: str = "default",
    uid: str = "",
    node: str = "",
    phase: str = "Pending",
    created: str = "2026-01-01T00:00:00Z",
    annotations: Mapping[str, str] | None = None,
) -> Pod:
    """A pod; without containers it has one that asks for 8138 units of memory. Its UID is ``uid-<name>``."""
    return Pod(
        metadata=ObjectMeta(
            name=name,
            namespace=namespace,
            uid=uid or f"uid-{name}",
            creation_timestamp=created,
            annotations=dict(annotations) if annotations else None,
        ),
        spec=PodSpec(
            node_name=node,
            containers=list(containers or (container(memory=8138),)),
            init_containers=list(init) or None,
        ),
        status=PodStatus(phase=phase),
    )


def resource(card: Card, node: str = "n1", *, name: str = "", phase: str = "Available") -> ExtendedResource:
    """The object that an agent would have written for the card."""
    return ExtendedResource(
        metadata=ObjectMeta(name=name or card.uuid.lower()),
        spec=ExtendedResourceSpec(
            node_name=node,
            device_id=card.uuid,
            index=card.index,
            model=card.model,
            memory=f"{card.memory}Mi",
            pci_bus_id=card.pci_bus_id,
        ),
        status=ExtendedResourceStatus(phase=phase),
    )


# ── what the core knows ──────────────────────────────────────────────────────────────────────────────────────────────


def card_uuid(node: str, index: int) -> CardUUID:
    return CardUUID(f"GPU-{node}-{index}")


def card(
    node: str = "n1", index: int = 0, *, memory: int = CARD_MEMORY, model: str = "Tesla-V100", healthy: bool = True
) -> Card:
    return Card(uuid=card_uuid(node, index), index=index, model=model, memory=MiB(memory), healthy=healthy)


def device(
    node: str = "n1", index: int = 0, *, kind: str = "infiniband", shares: int = 1, healthy: bool = True
) -> Card:
    """A non-GPU device."""
    uuid = CardUUID(f"{kind}-{index}.{node}")
    return Card(uuid, index, "ConnectX-6", MiB(0), healthy=healthy, type=kind, shares=shares)


def cards(node: str = "n1", count: int = 2, *, memory: int = CARD_MEMORY) -> list[Card]:
    return [card(node, i, memory=memory) for i in range(count)]


def by_memory(memory: int = 8138, name: str = "main", *, role: Role = Role.APP) -> ContainerRequest:
    """A container's request for that many MiB of one card."""
    return ContainerRequest(ContainerName(name), role, Request(memory=MiB(memory)), MEMORY, memory)


def by_card(count: int = 1, name: str = "main", *, role: Role = Role.APP) -> ContainerRequest:
    """A container's request for whole cards."""
    return ContainerRequest(ContainerName(name), role, Request(count=count, cores=WHOLE, exclusive=True), COUNT, count)


def by_share(memory: int = 4096, cores: int = 30, name: str = "main", *, role: Role = Role.APP) -> ContainerRequest:
    """A container's request for so many MiB and percent of one card, through ids that are percents."""
    asked = Request(memory=MiB(memory), cores=Percent(cores), cores_limit=Percent(cores))
    return ContainerRequest(ContainerName(name), role, asked, tencent.CORE, cores)


def by_slots(
    count: int = 2,
    memory: int = 4096,
    cores: int = 0,
    name: str = "main",
    *,
    percent: int = 0,
    role: Role = Role.APP,
) -> ContainerRequest:
    """A container's request for so much of each of several cards, through ids that each stand for a card; ``percent``
    of its memory instead of MiB."""
    asked = Request(
        count=count,
        memory=MiB(memory),
        cores=Percent(cores),
        memory_percent=Percent(percent),
        cores_limit=Percent(cores),
        slots=1,
    )
    return ContainerRequest(ContainerName(name), role, asked, nvidia.GPU, count)


def by_class(
    name: str = "v100", units: int = 1, container: str = "main", *, slot: str = GPU_SLOT, role: Role = Role.APP
) -> ContainerRequest:
    """A container's request for units of a class, each of one device, before it is resolved."""
    asked = Request(count=units, device_class=name, shares=int(slot == DEVICE_SLOT))
    amounts = ((resource_name(name), units), (slot, units))
    return ContainerRequest(ContainerName(container), role, asked, slot, units, amounts)


def only(selector: Selector, asked: ContainerRequest) -> ContainerRequest:
    """The container's request, for the cards that the selector admits."""
    return structs.replace(asked, request=structs.replace(asked.request, selector=selector))


def request(*containers: ContainerRequest, name: str = "p", uid: str = "") -> PodRequest:
    return PodRequest(PodUID(uid or f"uid-{name}"), "default", name, "aliyun", containers or (by_memory(),))


def piece(card: str, memory: int = 8138, cores: int = 0, slots: int = 0) -> Slice:
    return Slice(CardUUID(card), MiB(memory), Percent(cores), slots)


def given(name: str, *slices: Slice, role: Role = Role.APP) -> ContainerPlacement:
    return ContainerPlacement(ContainerName(name), role, slices)


def placement(*containers: ContainerPlacement, node: str = "n1") -> Placement:
    """A placement; without containers: ``main`` holds 8138 MiB of the node's card 0."""
    return Placement(NodeName(node), containers or (given("main", piece(card_uuid(node, 0))),))


def on_card(index: int, memory: int, *, node: str = "n1") -> Placement:
    """The placement of a pod with one container ``main`` that holds memory of one card."""
    return placement(given("main", piece(card_uuid(node, index), memory)), node=node)


def card_state(
    index: int,
    free: int,
    *,
    node: str = "n1",
    memory: int = CARD_MEMORY,
    idle: bool | None = None,
    cores: int = 100,
    coreless: bool = False,
    model: str = "Tesla-V100",
    peers: str = "",
) -> CardState:
    """A card by what is free on it, ``cores`` in percent; idle when all of it is, unless said otherwise."""
    return CardState(
        uuid=card_uuid(node, index),
        index=index,
        model=model,
        memory=MiB(memory),
        free_memory=MiB(free),
        free_cores=Percent(cores),
        idle=free == memory and cores == 100 if idle is None else idle,
        coreless=coreless,
        interconnect=Interconnect(peers) if peers else None,
    )


def node_state(node: str = "n1", *free: int, memory: int = CARD_MEMORY) -> NodeState:
    """A node of equal cards by what is free on each."""
    return NodeState(NodeName(node), tuple(card_state(i, f, node=node, memory=memory) for i, f in enumerate(free)))


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def cluster(nodes: Mapping[str, Sequence[Card]], *, clock: Callable[[], float] | None = None) -> Ledger:
    """A ledger that knows these cards and no pods."""
    ledger = Ledger(clock or Clock())
    for node, held in nodes.items():
        for each in held:
            ledger.put_card(NodeName(node), each)
    return ledger


def in_use(ledger: Ledger, node: str, *memory: int) -> None:
    """Take that many MiB of the node's cards 0, 1, ... with one bound pod for each."""
    for index, amount in enumerate(memory):
        if amount:
            uid = PodUID(f"filler-{node}-{index}")
            refusal = ledger.observe(uid, on_card(index, amount, node=node), rank=Rank(0))
            assert refusal is None, refusal
