"""The specification of a local cluster: nodes with names, labels and cards, resolved from the command line or a file.

UUIDs that are not given are derived from cluster, node and index, so a restarted cluster has the same cards, which
kubelet's record and the pods' placements name.
"""

import uuid
from collections.abc import Iterator, Sequence

import msgspec

from fractile.dialects import table
from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.units import CardUUID, MemoryUnit, NodeName
from fractile.wire.files.cluster_file import CardGroup, ClusterFile, Link, NodeGroup, parse_cards

DEFAULT_NODES = 2
DEFAULT_CARDS = "2x Tesla-V100 16276MiB"
MAX_NODES = 64

_UUIDS = uuid.UUID("7f3d2c4e-52a1-4b0c-9d7e-0f6c1f0a9b11")  # our own name space for uuid5


class NodeSpec(msgspec.Struct, frozen=True):
    """The specification of one node."""

    name: NodeName
    labels: dict[str, str]
    cards: tuple[Card, ...]
    links: tuple[Link, ...] = ()
    devices: str = ""  # the content of the file from which its agent reads non-GPU devices


class ClusterSpec(msgspec.Struct, frozen=True):
    """The specification of one cluster."""

    unit: MemoryUnit
    nodes: tuple[NodeSpec, ...]


def from_options(
    cluster: str, *, nodes: int = DEFAULT_NODES, cards: str = DEFAULT_CARDS, unit: MemoryUnit = MemoryUnit.MiB
) -> ClusterSpec:
    """``nodes`` equal nodes node-1, node-2, ... ; WireError or SetupError when the options are invalid."""
    if not 1 <= nodes <= MAX_NODES:
        raise SetupError(f"--nodes {nodes} is not possible; give 1 to {MAX_NODES}")
    return _checked(_resolve(cluster, [NodeGroup(cards=parse_cards(cards), count=nodes)], unit))


def from_file(cluster: str, file: ClusterFile, *, unit: MemoryUnit | None = None) -> ClusterSpec:
    """The nodes of the file; ``unit``, when given, overrides the file's."""
    return _checked(_resolve(cluster, file.nodes, unit or file.unit or MemoryUnit.MiB))


def _resolve(cluster: str, groups: Sequence[NodeGroup], unit: MemoryUnit) -> ClusterSpec:
    nodes: list[NodeSpec] = []
    for group in groups:
        for copy in range(group.count):
            name = _node_name(group, copy, number=len(nodes) + 1)
            cards = tuple(_cards(cluster, name, group.cards, copy))
            nodes.append(NodeSpec(name, group.labels, cards, group.interconnect, group.device_file))
    return ClusterSpec(unit, tuple(nodes))


def _node_name(group: NodeGroup, copy: int, *, number: int) -> NodeName:
    if group.name is None:
        return NodeName(f"node-{number}")
    return NodeName(group.name if group.count == 1 else f"{group.name}-{copy + 1}")


def _cards(cluster: str, node: str, groups: Sequence[CardGroup], copy: int) -> Iterator[Card]:
    index = 0
    for group in groups:
        for k in range(group.count):
            derived = f"GPU-{uuid.uuid5(_UUIDS, f'{cluster}/{node}/{index}')}"
            given = group.uuids[copy * group.count + k] if group.uuids else derived
            yield Card(CardUUID(given), index, group.model, group.mib, f"00000000:{index + 1:02X}:00.0")
            index += 1


def _checked(spec: ClusterSpec) -> ClusterSpec:
    if len(spec.nodes) > MAX_NODES:
        raise SetupError(f"{len(spec.nodes)} nodes are too many for one machine; use at most {MAX_NODES}")
    _refuse_twins("node name", [n.name for n in spec.nodes])
    _refuse_twins("card UUID", [c.uuid.lower() for n in spec.nodes for c in n.cards])
    for node in spec.nodes:
        table.advertised(node.cards, spec.unit)  # refuses what the node's agent would refuse later
    return spec


def _refuse_twins(what: str, names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise SetupError(f"the {what} {name} is used twice; give each its own")
        seen.add(name)
