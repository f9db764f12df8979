"""Infer the options that all agents and the control plane share from the objects of a cluster's agents.

The control plane gets these options as flags; commands and reports, which only read the API server, infer them here.
"""

from collections.abc import Iterable

from fractile.dialects import aliyun, table
from fractile.errors import WireError
from fractile.model.card import Card
from fractile.model.units import MemoryUnit, NodeName
from fractile.wire import quantity
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import Node


def memory_unit(nodes: Iterable[Node], cards: Iterable[tuple[NodeName, Card]]) -> MemoryUnit:
    """The cluster's unit of memory, inferred from what its nodes advertise: in GiB a node counts about 1/1000 of its
    MiB.

    The unit is an option of the agents and is written in no object; only a node's capacity reflects it. A cluster whose
    nodes advertise nothing has nothing to convert.
    """
    memory: dict[str, int] = {}
    for node, card in cards:
        memory[node] = memory.get(node, 0) + card.memory
    votes = {MemoryUnit.MiB: 0, MemoryUnit.GiB: 0}
    for node in nodes:
        units = _capacity(node)
        if units and node.metadata.name in memory:
            # Half way between the two on a logarithmic scale; a card more or less changes the count far less.
            votes[MemoryUnit.GiB if units * 32 < memory[node.metadata.name] else MemoryUnit.MiB] += 1
    return MemoryUnit.GiB if votes[MemoryUnit.GiB] > votes[MemoryUnit.MiB] else MemoryUnit.MiB


def _capacity(node: Node) -> int:
    try:
        return quantity.whole_number((node.status.capacity or {}).get(aliyun.MEMORY, 0))
    except WireError:
        return 0


def served(resources: Iterable[ExtendedResource]) -> frozenset[str]:
    """The families of names that at least one agent serves. Pods that ask through other families are not Fractile's.

    Like the unit of memory, this option is the same on all agents and on the control plane.
    """
    said = {extended_resource.dialects(resource.metadata) for resource in resources}
    # Agents of earlier versions do not report their families.
    return (
        frozenset[str]().union(*(table.NAMES if names is None else names & table.NAMES for names in said))
        or table.NAMES
    )
