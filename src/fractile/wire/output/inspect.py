"""``fractile inspect -o json|yaml``: the cards of a cluster and their holders, version fractile.dev/v1alpha1.

Every field is always present, so scripts need no defaults. Memory is in MiB (2^20 bytes), shares are in percent. Each
field is explained in docs/reference/inspect.md; the golden file is tests/wire/golden/inspection.json.
"""

import msgspec

from fractile.errors import WireError
from fractile.wire.fractile.extended_resource import API_VERSION

KIND = "Inspection"

_SPELLED = {"Mib": "MiB", "Id": "ID"}


def _camel(name: str) -> str:
    """``pci_bus_id`` -> ``pciBusID``: units and initials keep their capitals."""
    first, *rest = name.split("_")
    return first + "".join(_SPELLED.get(word.capitalize(), word.capitalize()) for word in rest)


class _Struct(msgspec.Struct, frozen=True, rename=_camel):
    pass


class Amounts(_Struct, frozen=True):
    """Sums over cards. Free memory counts healthy cards only, since nothing is placed on others."""

    cards: int
    memory_mib: int
    allocated_mib: int
    free_mib: int
    allocated_percent: float  # of memory_mib, one decimal; may exceed 100 when a card shrank under its pods


class ContainerShare(_Struct, frozen=True):
    """What one container of a pod holds on this card."""

    name: str
    role: str  # init, sidecar or app; "" for a pod that was deleted
    memory_mib: int
    cores_percent: int


class CardHolder(_Struct, frozen=True):
    """A pod on a card, with its peak there: max(each init container + sidecars before it, sidecars + apps). ``phase``
    is Deleted for a deleted pod whose processes still hold it; its unknown names are ""."""

    namespace: str
    name: str
    uid: str
    phase: str
    memory_mib: int
    cores_percent: int
    containers: tuple[ContainerShare, ...]


class CardReport(_Struct, frozen=True):
    """One card. ``free_mib`` is 0 for an unhealthy card."""

    uuid: str
    index: int
    model: str
    pci_bus_id: str
    healthy: bool
    memory_mib: int
    allocated_mib: int
    free_mib: int
    allocated_percent: float
    allocated_cores_percent: int
    pods: tuple[CardHolder, ...]


class NodeReport(_Struct, frozen=True):
    """One node, cards ordered by index."""

    name: str
    totals: Amounts
    cards: tuple[CardReport, ...]


class WaitingContainer(_Struct, frozen=True):
    """The request of one container of a waiting pod: ``amount`` of ``resource`` in its units, or ``count`` cards."""

    container: str
    role: str
    resource: str
    amount: int
    count: int
    memory_mib: int  # on each card; 0 for whole cards
    exclusive: bool
    cores_percent: int = 0  # of each card's time; 100 for whole cards, 0 for no request
    memory_percent: int = 0  # of each card's memory, if requested as a percentage
    device_class: str = ""  # the requested class; what it gives is known when the pod is placed


class WaitingPodReport(_Struct, frozen=True):
    """A pod that asks for a GPU and is not bound to a node. ``refusal`` is set if its request is invalid."""

    namespace: str
    name: str
    uid: str
    created: str
    requests: tuple[WaitingContainer, ...]
    refusal: str


class Problem(_Struct, frozen=True):
    """Something that the numbers above leave out or that needs attention."""

    kind: str  # Pod or ExtendedResource
    namespace: str
    name: str
    uid: str
    node: str
    reason: str


class Inspection(_Struct, frozen=True, kw_only=True):
    """The whole report."""

    api_version: str = API_VERSION
    kind: str = KIND
    memory_unit: str  # what one unit of aliyun.com/gpu-mem is worth: MiB or GiB
    totals: Amounts
    nodes: tuple[NodeReport, ...]
    waiting: tuple[WaitingPodReport, ...]
    problems: tuple[Problem, ...]


_decoder = msgspec.json.Decoder(Inspection)


def encode(inspection: Inspection) -> str:
    """The JSON text, indented, without a final newline."""
    return msgspec.json.format(msgspec.json.encode(inspection), indent=2).decode()


def encode_yaml(inspection: Inspection) -> str:
    """The same content as YAML."""
    import yaml  # imported late: only -o yaml needs it

    return yaml.safe_dump(msgspec.to_builtins(inspection), sort_keys=False, allow_unicode=True)


def decode(text: str | bytes) -> Inspection:
    """Decode the report; WireError on anything but this version."""
    try:
        found = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"this is not a report of fractile inspect: {e}") from None
    if (found.api_version, found.kind) != (API_VERSION, KIND):
        raise WireError(f"this is {found.kind} {found.api_version}; expected {KIND} {API_VERSION}")
    return found
