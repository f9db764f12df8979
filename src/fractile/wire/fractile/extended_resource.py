"""``ExtendedResource`` objects (CRD fractile.dev/v1alpha1, cluster-scoped): one per card or other device, written by
its node's agent.

The name is the device's id in lower case. Properties are quantities or strings, so that selectors can compare them.
"""

import re
import sys
from collections.abc import Collection
from functools import lru_cache
from itertools import islice

import msgspec

from fractile.errors import WireError
from fractile.model.card import GPU, Card
from fractile.model.interconnect import MOST, ROW, Interconnect
from fractile.model.placement import Charge
from fractile.model.properties import NONE, Properties, shared
from fractile.model.units import CardUUID, MiB, NodeName, Percent
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta, OwnerReference
from fractile.wire.quantity import parse

GROUP = "fractile.dev"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ExtendedResource"
PLURAL = "extendedresources"
NODE_LABEL = "fractile.dev/node"
DIALECTS_ANNOTATION = "fractile.dev/dialects"  # families of names that the agent serves; missing: all

# status.phase; the first words are Caicloud's (evidence/resource-class.md#objects)
AVAILABLE = "Available"
PARTLY_BOUND = "PartlyBound"
BOUND = "Bound"
PENDING = "Pending"  # the agent is away: pods keep the card, new pods are not placed on it
UNHEALTHY = "Unhealthy"
LOST = "Lost"  # the card or its node is gone
HEALTHY = frozenset({AVAILABLE, PARTLY_BOUND, BOUND})

NODE_LOST = "NodeLost"  # status.reason when the control plane writes Lost for a node that cannot

# status.isolation: whether the node's agent mounts the library into containers
ENFORCED = "Enforced"
NOT_ENFORCED = "NotEnforced"

_MIB = 2**20
_MAX_INDEX = 4096  # cards of one node; keeps hostile numbers out of the ledger's arrays
_MAX_GENERATION = 99  # and the most lanes
_CORES = 100  # percent of a card
_MAX_SHARES = 1000
_MAX_PROPERTIES = 64
_LONGEST = 253
_OWN = frozenset({"type", "model", "index", "nodeName"})  # properties that are fields of every card
_OWN_OF_GPU = _OWN | {"memory"}
_OWN_OF_WHOLE_GPU = _OWN_OF_GPU | {"cores"}
_SHORT = 40  # characters of a quantity
_ROW = re.compile(ROW)
_TYPE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


class InterconnectSpec(KubeStruct, frozen=True, kw_only=True):
    """``model.interconnect.Interconnect``; what the driver does not report is left out."""

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
    memory: str = ""
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    interconnect: InterconnectSpec | None = None
    type: str = GPU
    shares: int = 1
    properties: dict[str, str | int] | None = None


class BoundTo(KubeStruct, frozen=True):
    """A container that holds a part of the device; ``memory`` is a quantity, ``cores`` a percent."""

    namespace: str = ""
    pod: str = ""
    container: str = ""
    memory: str = ""
    cores: int = 0


class Used(KubeStruct, frozen=True):
    """What all holders hold, including those beyond the 64 that ``boundTo`` names; ``slices`` is their number."""

    memory: str = ""
    cores: int = 0
    slices: int = 0


class ExtendedResourceStatus(KubeStruct, frozen=True):
    phase: str = AVAILABLE
    bound_to: list[BoundTo] | None = None
    used: Used | None = None
    departed: Used | None = None  # the part of ``used`` that processes of deleted pods hold
    isolation: str = ""  # "" until an agent has reported it
    reason: str = ""  # why the card is unhealthy: one word, such as CardLost
    message: str = ""  # the same as a sentence
    last_transition_time: str = ""  # of the phase
    returns_at: str = ""  # when the card recovers if nothing else happens; "" while that depends on the card


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


def withheld(resource: ExtendedResource) -> Charge | None:
    """What must not be allocated of the card according to its agent, although no pod at the API server holds it. Never
    more than the card has, since the object is untrusted."""
    departed = resource.status.departed
    if departed is None or departed.slices <= 0 or resource.spec.type != GPU:
        return None
    memory, most = _mebibytes(departed.memory or "0") or MiB(0), _mebibytes(resource.spec.memory) or MiB(0)
    cores = Percent(min(max(departed.cores, 0), _CORES))
    return Charge(
        CardUUID(resource.spec.device_id),
        MiB(min(memory, most)),
        cores,
        coreless=not cores,
        slices=min(departed.slices, _MAX_SHARES),
    )


def object_name(card: CardUUID) -> str:
    """The object's name: without capital letters or underscores; ids that differ only in these are refused where they
    are read (``wire.files.device_file``)."""
    return card.lower().replace("_", "-")


def from_card(
    card: Card,
    node: NodeName,
    owner: OwnerReference | None = None,
    *,
    dialects: Collection[str] | None = None,
) -> ExtendedResourceApply:
    """The object that the agent of ``node`` applies for its card. ``dialects``: its families; None: not written."""
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
            memory=f"{card.memory}Mi" if card.memory or card.type == GPU else "",
            pci_bus_id=card.pci_bus_id,
            interconnect=_published(card.interconnect),
            type=card.type,
            shares=card.shares,
            properties=_properties(card, node),
        ),
    )


def dialects(metadata: ObjectMeta) -> frozenset[str] | None:
    """The families of names through which the card is allocated, according to its agent; None: all."""
    text = (metadata.annotations or {}).get(DIALECTS_ANNOTATION)
    return None if text is None else frozenset(text.split(","))


def to_card(resource: ExtendedResource) -> tuple[NodeName, Card]:
    """The card and its node; WireError when they are invalid, since the objects are untrusted."""
    spec = resource.spec
    size = _mebibytes(spec.memory) if spec.memory or spec.type == GPU else MiB(0)
    if size is None:
        raise WireError(f"ExtendedResource {resource.metadata.name} has the impossible memory {spec.memory[:40]!r}")
    if not 0 <= spec.index < _MAX_INDEX:
        raise WireError(f"ExtendedResource {resource.metadata.name} has the impossible index {spec.index}")
    if not (spec.node_name and spec.device_id):
        raise WireError(f"ExtendedResource {resource.metadata.name} names no node or no device")
    _agree(resource.metadata.name, spec)
    if not (_TYPE.fullmatch(spec.type) and 1 <= spec.shares <= _MAX_SHARES):
        raise WireError(f"ExtendedResource {resource.metadata.name} has an impossible type or number of shares")
    node = NodeName(sys.intern(spec.node_name))
    return node, Card(
        uuid=CardUUID(spec.device_id),
        index=spec.index,
        model=spec.model,
        memory=size,
        pci_bus_id=spec.pci_bus_id,
        healthy=resource.status.phase in HEALTHY,
        interconnect=None if spec.interconnect is None else _interconnect(spec.interconnect),
        type=sys.intern(spec.type),
        shares=spec.shares,
        properties=_shared(spec.properties or {}, gpu=spec.type == GPU),
        node=node,
    )


def _agree(name: str, spec: ExtendedResourceSpec) -> None:
    """Check that name, id and node agree. Object names are unique, so each device then has one object and one node.
    With a second name, or the id of another node's device, the same card would be in two places."""
    if name != object_name(CardUUID(spec.device_id)):
        raise WireError(
            f"ExtendedResource {name[:_LONGEST]} has the id {spec.device_id[:_LONGEST]!r}, which belongs to another "
            "name"
        )
    own, _, node = spec.device_id.partition(".")
    if not own or node != ("" if spec.type == GPU else spec.node_name):
        raise WireError(
            f"ExtendedResource {name} has the id {spec.device_id[:_LONGEST]!r}, which is not the id of a {spec.type} "
            f"of node {spec.node_name[:_LONGEST]}"
        )


def _mebibytes(text: str) -> MiB | None:
    """Whole MiB of a quantity; None when it is more than any card has. WireError when it is not a quantity."""
    return _read(text) if len(text) <= _SHORT else _read.__wrapped__(text)


@lru_cache(maxsize=1024)  # the cards of a cluster have a few sizes
def _read(text: str) -> MiB | None:
    size = parse(text)
    return MiB(int(size) // _MIB) if 0 <= size < 2**60 else None


def _properties(card: Card, node: NodeName) -> dict[str, str | int]:
    """The properties that selectors compare, without those for which the API server would refuse the object."""
    own: dict[str, str | int] = {"type": card.type, "model": card.model, "index": card.index, "nodeName": node}
    if card.memory:
        own["memory"] = f"{card.memory}Mi"
    if card.type == GPU:
        own["cores"] = _CORES
    more = {k: v for k, v in sorted(card.properties.items()) if k not in own and len(v) <= _LONGEST}
    return own | dict(islice(more.items(), _MAX_PROPERTIES - len(own)))


def _shared(properties: dict[str, str | int], *, gpu: bool) -> Properties:
    """The shared properties; empty when they cannot be ours."""
    if len(properties) > _MAX_PROPERTIES:
        return NONE
    whole = _OWN_OF_WHOLE_GPU if properties.get("cores") == _CORES else _OWN_OF_GPU
    own = whole if gpu else _OWN
    said = {k: str(v) for k, v in properties.items() if k not in own}
    return shared({k: v for k, v in said.items() if len(v) <= _LONGEST}) if said else NONE


def _published(found: Interconnect | None) -> InterconnectSpec | None:
    if found is None or len(found.peers) > MOST:  # the API server would refuse the object
        return None
    return InterconnectSpec(
        peers=found.peers,
        nvlink_generation=found.nvlink,
        pcie_generation=found.pcie,
        pcie_lanes=found.lanes,
        numa_node=found.numa,
    )


@lru_cache(maxsize=4096)  # shared by nodes of one kind: 40,000 cards have a few dozen different ones
def _interconnect(spec: InterconnectSpec) -> Interconnect | None:
    """None when it is invalid: the card stays usable and only counts as far from all others."""
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
