"""What pods request of what nodes offer, for every resource, Fractile's or not, added up as kube-scheduler does."""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction

import msgspec

from fractile.dialects import table
from fractile.dialects.nvidia import PRIORITY
from fractile.errors import WireError
from fractile.wire.fractile.resource_class import DEVICE_SLOT
from fractile.wire.kubernetes import pod_requests
from fractile.wire.kubernetes.pod_requests import PODS, Amounts, CountedNode, CountedPod, is_extended
from fractile.wire.output.allocation_report import AllocationReport, NodeAllocations, ResourceAllocation

_ZERO = Fraction(0)
_HUGE_PAGES = "hugepages-"
_WISHES = frozenset({PRIORITY})  # written as a resource, but not an amount of anything
_NAMED = 10  # nodes or pods that a sentence names
SORTS = ("node", "resource", "requested", "free", "utilization")


class Filter(msgspec.Struct, frozen=True):
    """What is shown, as shell globs; an empty tuple shows everything."""

    nodes: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    only_extended: bool = False

    def node(self, name: str) -> bool:
        return not self.nodes or any(fnmatchcase(name, glob) for glob in self.nodes)

    def resource(self, name: str) -> bool:
        if self.only_extended and not is_extended(name):
            return False
        return not self.resources or any(fnmatchcase(name, glob) for glob in self.resources)


class ResourceLine(msgspec.Struct, frozen=True):
    """One resource of one node, or its sum over ``nodes`` nodes."""

    resource: str
    requested: Fraction = _ZERO
    limit: Fraction = _ZERO
    capacity: Fraction = _ZERO
    allocatable: Fraction = _ZERO
    nodes: int = 1

    @property
    def free(self) -> Fraction:
        return self.allocatable - self.requested

    @property
    def used(self) -> Fraction | None:
        """The fraction that is requested; None where nothing is allocatable."""
        return self.requested / self.allocatable if self.allocatable else None

    def __add__(self, other: "ResourceLine") -> "ResourceLine":
        return ResourceLine(
            self.resource,
            self.requested + other.requested,
            self.limit + other.limit,
            self.capacity + other.capacity,
            self.allocatable + other.allocatable,
            self.nodes + other.nodes,
        )


class NodeLines(msgspec.Struct, frozen=True):
    """A node and its resources, sorted by name."""

    node: str
    pods: int
    lines: tuple[ResourceLine, ...]


class Allocations(msgspec.Struct, frozen=True):
    """``problems``: sentences about what could not be counted."""

    nodes: tuple[NodeLines, ...]
    problems: tuple[str, ...]

    @property
    def shares_cards(self) -> bool:
        """Whether several of the resources shown ask for the same cards."""
        names = {line.resource for node in self.nodes for line in node.lines}
        return sum(1 for name in names if name != DEVICE_SLOT and table.owner(name) is not None) > 1

    @property
    def totals(self) -> tuple[ResourceLine, ...]:
        """One line for each resource, sorted by name."""
        sums: dict[str, ResourceLine] = {}
        for node in self.nodes:
            for line in node.lines:
                sums[line.resource] = sums[line.resource] + line if line.resource in sums else line
        return tuple(sums[name] for name in sorted(sums))


class _Taken:
    """What the pods of one node take."""

    def __init__(self) -> None:
        self.pods = 0
        self.requested: Amounts = {}
        self.limit: Amounts = {}

    def add(self, pod: CountedPod) -> None:
        requested, limit = pod_requests.requests(pod), pod_requests.limits(pod)  # both before adding: either may raise
        self.pods += 1
        for sums, amounts in ((self.requested, requested | {PODS: Fraction(1)}), (self.limit, limit)):
            for name, amount in amounts.items():
                sums[name] = sums.get(name, _ZERO) + amount


def allocations(nodes: Iterable[CountedNode], pods: Iterable[CountedPod], shown: Filter) -> Allocations:
    """The allocations of the nodes shown, sorted by name."""
    problems: list[str] = []
    taken = _taken(pods, problems)
    known = sorted(nodes, key=lambda n: n.metadata.name)
    gone = sorted(taken.keys() - {node.metadata.name for node in known})
    if gone:
        problems.append(f"pods are bound to nodes that do not exist: {_listed(gone)}")
    found: list[NodeLines] = []
    for node in known:
        if shown.node(node.metadata.name):
            try:
                found.append(_node(node, taken.get(node.metadata.name, _Taken()), shown))
            except WireError as e:
                problems.append(f"node {node.metadata.name}: {e}")
    return Allocations(tuple(found), tuple(problems))


def _taken(pods: Iterable[CountedPod], problems: list[str]) -> dict[str, _Taken]:
    taken: dict[str, _Taken] = {}
    for pod in pods:
        if pod.holds:
            try:
                taken.setdefault(pod.spec.node_name, _Taken()).add(pod)
            except WireError as e:
                problems.append(f"pod {pod.metadata.namespace}/{pod.metadata.name} is not counted: {e}")
    return taken


def _node(node: CountedNode, taken: _Taken, shown: Filter) -> NodeLines:
    capacity = pod_requests.amounts(node.status.capacity)
    allocatable = pod_requests.amounts(node.given)
    names = capacity.keys() | allocatable.keys() | taken.requested.keys() | taken.limit.keys()
    lines = (
        ResourceLine(
            name,
            taken.requested.get(name, _ZERO),
            taken.limit.get(name, _ZERO),
            capacity.get(name, _ZERO),
            allocatable.get(name, _ZERO),
        )
        for name in sorted(names)
        if name not in _WISHES and shown.resource(name)
    )
    return NodeLines(node.metadata.name, taken.pods, tuple(line for line in lines if not _empty(line)))


def _empty(line: ResourceLine) -> bool:
    """Whether to hide the line: every node lists every size of huge pages, mostly as 0. Other zeros are shown."""
    return line.resource.startswith(_HUGE_PAGES) and not (line.capacity or line.requested or line.limit)


def _listed(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")


def report(found: Allocations) -> AllocationReport:
    """The same as a JSON report."""
    nodes = tuple(NodeAllocations(n.node, n.pods, tuple(_reported(line) for line in n.lines)) for n in found.nodes)
    return AllocationReport(
        nodes=nodes, totals=tuple(_reported(line) for line in found.totals), problems=found.problems
    )


def _reported(line: ResourceLine) -> ResourceAllocation:
    used = line.used
    return ResourceAllocation(
        resource=line.resource,
        extended=is_extended(line.resource),
        nodes=line.nodes,
        requested=pod_requests.quantity(line.requested),
        limit=pod_requests.quantity(line.limit),
        capacity=pod_requests.quantity(line.capacity),
        allocatable=pod_requests.quantity(line.allocatable),
        free=pod_requests.quantity(line.free),
        utilization_percent=None if used is None else float(round(used * 100, 1)),
    )
