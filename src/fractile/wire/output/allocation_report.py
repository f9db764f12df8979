"""``fractile allocations -o json|yaml``: what nodes offer of every resource and what pods take, fractile.dev/v1alpha1.

Every field is always present. Amounts are exact Kubernetes quantities: ``500m`` or whole numbers (CPUs, bytes,
devices); ``free`` is negative where more is requested than there is. docs/reference/allocations.md explains each field;
the golden file is tests/wire/golden/allocation-report.json.
"""

import msgspec

from fractile.errors import WireError
from fractile.wire.fractile.extended_resource import API_VERSION

KIND = "AllocationReport"


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class ResourceAllocation(_Struct, frozen=True, kw_only=True):
    """One resource of one node, or of all nodes shown. ``utilization_percent`` has one decimal and is null where
    nothing is allocatable. ``nodes``: how many nodes offer it or have requests for it."""

    resource: str
    extended: bool
    nodes: int = 1
    requested: str
    limit: str
    capacity: str
    allocatable: str
    free: str
    utilization_percent: float | None


class NodeAllocations(_Struct, frozen=True):
    """One node. ``pods``: the number of pods that count, bound and not ended."""

    node: str
    pods: int
    resources: tuple[ResourceAllocation, ...]


class AllocationReport(_Struct, frozen=True, kw_only=True):
    """The whole report; ``totals`` are over its nodes and resources."""

    api_version: str = API_VERSION
    kind: str = KIND
    nodes: tuple[NodeAllocations, ...]
    totals: tuple[ResourceAllocation, ...]
    problems: tuple[str, ...]


_decoder = msgspec.json.Decoder(AllocationReport)


def encode(report: AllocationReport) -> str:
    """The JSON text, indented, without a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def encode_yaml(report: AllocationReport) -> str:
    """The same content as YAML."""
    import yaml  # imported late: only -o yaml needs it

    return yaml.safe_dump(msgspec.to_builtins(report), sort_keys=False, allow_unicode=True)


def decode(text: str | bytes) -> AllocationReport:
    """Decode the report; WireError on anything but this version."""
    try:
        found = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"this is not a report of fractile allocations: {e}") from None
    if (found.api_version, found.kind) != (API_VERSION, KIND):
        raise WireError(f"this is {found.kind} {found.api_version}; expected {KIND} {API_VERSION}")
    return found
