"""``ExtendedResource`` objects (CRD fractile.dev/v1alpha1, cluster-scoped): one per card, written by its node's agent.

The name is the card's UUID in lower case. Memory is a quantity, so that selectors can compare it.
"""

import re
from collections.abc import Collection
from functools import lru_cache

import msgspec

from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.interconnect import MOST, ROW, Interconnect
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.objects import KubeStruct, ObjectMeta, OwnerReference
from fractile.wire.quantity import parse

GROUP = "fractile.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ExtendedResource"
PLURAL = "extendedresources"
NODE_LABEL = "fractile.dev/node"
DIALECTS_ANNOTATION = "fractile.dev/dialects"  # families of names that the agent serves; not there: all

# status.phase, S4's words
AVAILABLE = "Available"
PENDING = "Pending"  # the agent is away: pods that hold the card keep it, new ones are not placed on it
UNHEALTHY = "Unhealthy"

# status.isolation: whether the node's agent puts the library into containers
ENFORCED = "Enforced"
NOT_ENFORCED = "NotEnforced"

_MIB = 2**20
_MAX_INDEX = 4096  # cards of one node; keeps hostile numbers out of the ledger's arrays
_MAX_GENERATION = 99  # and the most lanes
_ROW = re.compile(ROW)


class InterconnectSpec(KubeStruct, frozen=True, kw_only=True):
    """``model.interconnect.Interconnect``; what the driver does not say is left out."""

    peers: str
    nvlink_generation: int = 0
    pcie_generation: int = 0
    pcie_lanes: int = 0
    numa_node: int = -1


class ExtendedResourceSpec(KubeStruct, frozen=True, kw_only=True):
    node_name: str
    device_id: str = msgspec.field(name="deviceID")
    index: int
    model: str
    memory: str
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    interconnect: InterconnectSpec | None = None


class ExtendedResourceStatus(KubeStruct, frozen=True):
    phase: str = AVAILABLE
    isolation: str = ""  # "" before an agent has said it
    reason: str = ""  # why the card is not healthy: one word, such as CardLost
    message: str = ""  # the same as a sentence
    last_transition_time: str = ""  # of the phase
    returns_at: str = ""  # when the card is healthy again if nothing else happens; "" while that depends on the card


class ExtendedResource(KubeStruct, frozen=True, kw_only=True):
    api_version: str = API_VERSION
    kind: str = KIND
    metadata: ObjectMeta
    spec: ExtendedResourceSpec
    status: ExtendedResourceStatus = ExtendedResourceStatus()


class ExtendedResourceApply(KubeStruct, frozen=True, kw_only=True):
    """What the agent applies; the status has its own subresource."""

    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ExtendedResourceSpec


def object_name(card: CardUUID) -> str:
    return card.lower()


def from_card(
    card: Card,
    node: NodeName,
    owner: OwnerReference | None = None,
    *,
    dialects: Collection[str] | None = None,
) -> ExtendedResourceApply:
    """The object that the agent of ``node`` applies for its card. ``dialects``: what it serves; None: unsaid."""
    return ExtendedResourceApply(
        api_version=API_VERSION,
        kind=KIND,
        metadata=ObjectMeta(
            name=object_name(card.uuid),
            labels={NODE_LABEL: node},
            annotations=None if dialects is None else {DIALECTS_ANNOTATION: ",".join(sorted(dialects))},
            owner_references=[owner] if owner else None,
        ),
        spec=ExtendedResourceSpec(
            node_name=node,
            device_id=card.uuid,
            index=card.index,
            model=card.model,
            memory=f"{card.memory}Mi",
            pci_bus_id=card.pci_bus_id,
            interconnect=_published(card.interconnect),
        ),
    )


def dialects(metadata: ObjectMeta) -> frozenset[str] | None:
    """The families of names through which the card is given out, as its agent says; None: all."""
    text = (metadata.annotations or {}).get(DIALECTS_ANNOTATION)
    return None if text is None else frozenset(text.split(","))


def to_card(resource: ExtendedResource) -> tuple[NodeName, Card]:
    """The card and its node; WireError when they make no sense: the objects may have been written by anybody."""
    spec = resource.spec
    size = parse(spec.memory)
    if not 0 <= size < 2**60:
        raise WireError(f"ExtendedResource {resource.metadata.name} has the impossible memory {spec.memory[:40]!r}")
    if not 0 <= spec.index < _MAX_INDEX:
        raise WireError(f"ExtendedResource {resource.metadata.name} has the impossible index {spec.index}")
    if not (spec.node_name and spec.device_id):
        raise WireError(f"ExtendedResource {resource.metadata.name} names no node or no device")
    return NodeName(spec.node_name), Card(
        uuid=CardUUID(spec.device_id),
        index=spec.index,
        model=spec.model,
        memory=MiB(int(size) // _MIB),
        pci_bus_id=spec.pci_bus_id,
        healthy=resource.status.phase not in (PENDING, UNHEALTHY),
        interconnect=None if spec.interconnect is None else _interconnect(spec.interconnect),
    )


def _published(found: Interconnect | None) -> InterconnectSpec | None:
    if found is None or len(found.peers) > MOST:  # the API server would refuse the card with it
        return None
    return InterconnectSpec(
        peers=found.peers,
        nvlink_generation=found.nvlink,
        pcie_generation=found.pcie,
        pcie_lanes=found.lanes,
        numa_node=found.numa,
    )


@lru_cache(maxsize=4096)  # nodes of one kind share theirs: 40,000 cards have a few dozen different ones
def _interconnect(spec: InterconnectSpec) -> Interconnect | None:
    """None when it makes no sense: a card is no worse for it, it only counts as far from all others."""
    numbers = (spec.nvlink_generation, spec.pcie_generation, spec.pcie_lanes)
    if not (_ROW.match(spec.peers) and len(spec.peers) <= MOST and all(0 <= n <= _MAX_GENERATION for n in numbers)):
        return None
    return Interconnect(
        spec.peers,
        nvlink=spec.nvlink_generation,
        pcie=spec.pcie_generation,
        lanes=spec.pcie_lanes,
        numa=spec.numa_node,
    )


decoder = msgspec.json.Decoder(ExtendedResource)
