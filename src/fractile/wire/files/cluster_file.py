"""``cluster.yaml``, version 1: the nodes and cards of a local cluster; and the short form '2x Tesla-V100 16276MiB'.

    version: 1
    memoryUnit: MiB
    nodes:
      - name: big
        labels: {pool: training}
        cards:
          - {model: Tesla-V100, memory: 16276Mi, count: 2}
        interconnect:
          - {between: [0, 1], type: NV2}

People write it by hand, so every error names the file, the field and the remedy. docs/reference/cluster-file.md
describes it.
"""

import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import yaml

from fractile.errors import WireError
from fractile.model.units import MemoryUnit, MiB, NodeName
from fractile.wire.files import device_file
from fractile.wire.quantity import parse

VERSION = 1
MAX_CARDS = 64  # of one node: more than any machine has
MAX_NODES = 64

_MIB = 2**20
_Count = Annotated[int, msgspec.Meta(ge=1, le=MAX_CARDS)]
_NodeCount = Annotated[int, msgspec.Meta(ge=1, le=MAX_NODES)]
_Index = Annotated[int, msgspec.Meta(ge=0, lt=MAX_CARDS)]
_Model = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
_UUID = Annotated[str, msgspec.Meta(pattern=r"^GPU-[A-Za-z0-9-]{1,48}$")]
# With "-64" and "fractile:agent:" still a valid common name of X.509, at most 64 characters (RFC 5280).
_NodeName = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,43}[a-z0-9])?$")]
_LabelKey = Annotated[
    str,
    msgspec.Meta(pattern=r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?$"),
]
_LabelValue = Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?$")]
_LinkType = Annotated[str, msgspec.Meta(pattern=r"^(PIX|PXB|PHB|NODE|SYS|NV[1-9][0-9]?)$")]  # as nvidia-smi topo -m


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parts of the file: a misspelt field is refused, not ignored."""


class CardGroup(_Part, frozen=True, kw_only=True):
    """``count`` equal cards. ``memory`` is a quantity (16276Mi, 16Gi) or a number of MiB."""

    model: _Model
    memory: int | str
    count: _Count = 1
    uuids: tuple[_UUID, ...] = ()

    @property
    def mib(self) -> MiB:
        """The memory of each card; WireError when it is not a whole number of MiB."""
        return _memory(self.memory)


class Link(_Part, frozen=True, kw_only=True):
    """How two cards of a node are connected, in the words of ``nvidia-smi topo -m``."""

    between: tuple[_Index, _Index]
    type: _LinkType


class NodeGroup(_Part, frozen=True, kw_only=True):
    """``count`` equal nodes: ``name`` itself for one node, else name-1, name-2 and so on."""

    cards: tuple[CardGroup, ...]
    name: _NodeName | None = None
    count: _NodeCount = 1
    labels: dict[_LabelKey, _LabelValue] = {}
    interconnect: tuple[Link, ...] = ()
    devices: tuple[dict[str, Any], ...] = ()  # non-GPU ones, as in ``device_file``

    @property
    def device_file(self) -> str:
        """The device file for its nodes' agents; empty without devices."""
        return msgspec.json.encode({"version": 1, "devices": self.devices}).decode() if self.devices else ""


class ClusterFile(_Part, frozen=True, kw_only=True):
    """The whole file. ``memory_unit`` None leaves the choice to the command line."""

    version: Literal[1]
    nodes: Annotated[tuple[NodeGroup, ...], msgspec.Meta(min_length=1, max_length=MAX_NODES)]
    memory_unit: Literal["MiB", "GiB"] | None = None

    @property
    def unit(self) -> MemoryUnit | None:
        return MemoryUnit[self.memory_unit] if self.memory_unit else None


def decode(text: str | bytes, *, source: str) -> ClusterFile:
    """Decode the file; WireError names ``source``, the field and the remedy."""
    try:
        document: object = yaml.safe_load(text)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as e:
        raise WireError(f"{source} is not YAML: {_yaml_problem(e)}; see examples/cluster.yaml") from None
    try:
        file = msgspec.convert(document, ClusterFile)
    except (msgspec.ValidationError, UnicodeError, RecursionError) as e:
        raise WireError(f"{source}: {_field_problem(str(e))}") from None
    for n, node in enumerate(file.nodes):
        _check_node(node, f"{source}: nodes[{n}]")
    return file


def matrix(cards: int, links: Sequence[Link]) -> list[str]:
    """The rows of ``nvidia-smi topo -m`` for ``cards`` cards; pairs without a link are on one NUMA node."""
    words = [["X" if a == b else "NODE" for b in range(cards)] for a in range(cards)]
    for link in links:
        a, b = link.between
        words[a][b] = words[b][a] = link.type
    return [" ".join(row) for row in words]


def parse_cards(text: str) -> tuple[CardGroup, ...]:
    """Parse '2x Tesla-V100 16276MiB, 1x NVIDIA A10 24GiB'; WireError when a part has another form."""
    groups = tuple(_parse_group(part) for part in text.split(","))
    if sum(g.count for g in groups) > MAX_CARDS:
        raise WireError(f"{text!r} are more than the {MAX_CARDS} cards that a node may have")
    return groups


_GROUP = re.compile(r"(?:(\d{1,4})\s*[xX×]\s*)?(\S.*?)\s+(\d{1,9})\s*(MiB|Mi|GiB|Gi)", re.ASCII)


def _parse_group(part: str) -> CardGroup:
    match = _GROUP.fullmatch(part.strip())
    if match is None:
        raise WireError(f"{part.strip()!r} does not describe cards; write for instance '2x Tesla-V100 16276MiB'")
    count, model, amount, unit = match.groups()
    memory = int(amount) * (1024 if unit.startswith("G") else 1)
    if not 1 <= int(count or 1) <= MAX_CARDS:
        raise WireError(f"{part.strip()!r} asks for {count} cards; a node may have 1 to {MAX_CARDS}")
    if len(model) > 128:
        raise WireError(f"{model[:40]!r}... is too long for a model name; use at most 128 characters")
    group = CardGroup(model=model, memory=memory, count=int(count or 1))
    _memory(group.memory)
    return group


def _check_node(node: NodeGroup, where: str) -> None:
    _check_devices(node, where)
    total = sum(group.count for group in node.cards)
    if total > MAX_CARDS:
        raise WireError(f"{where}.cards: {total} cards are more than the {MAX_CARDS} that a node may have")
    for g, group in enumerate(node.cards):
        _check_cards(group, node.count, f"{where}.cards[{g}]")
    for i, link in enumerate(node.interconnect):
        if max(link.between) >= total or link.between[0] == link.between[1]:
            raise WireError(
                f"{where}.interconnect[{i}].between: {list(link.between)} must name two different cards, "
                f"counted from 0 to {total - 1}"
            )


def _check_devices(node: NodeGroup, where: str) -> None:
    try:
        if node.devices:
            device_file.decode(node.device_file, where, node=NodeName(node.name or ""))
    except (RecursionError, TypeError, ValueError):
        raise WireError(f"{where}.devices: this is not a list of devices; see docs/use/classes.md") from None


def _check_cards(group: CardGroup, nodes: int, where: str) -> None:
    try:
        _memory(group.memory)
    except WireError as e:
        raise WireError(f"{where}.memory: {e}") from None
    wanted = group.count * nodes
    if group.uuids and len(group.uuids) != wanted:
        raise WireError(
            f"{where}.uuids: {len(group.uuids)} are given for {wanted} cards; give one for each, or leave them out"
        )


def _memory(value: int | str) -> MiB:
    try:
        exact = parse(value) / _MIB if isinstance(value, str) else value
    except WireError:
        exact = None
    if exact is None or int(exact) != exact or not 1 <= exact < 2**30:
        raise WireError(
            f"{value!r} is not the size of a card in whole MiB; write a quantity such as 16276Mi, or MiB: 16276"
        )
    return MiB(int(exact))


def _yaml_problem(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or "cannot be read"
    return f"line {mark.line + 1}: {problem}" if mark else str(problem)


_REMEDIES = (
    ("unknown field", "remove it, or see docs/reference/cluster-file.md for the known fields"),
    ("missing required", "add it"),
    ("matching regex", "see docs/reference/cluster-file.md for its form"),
    ("Invalid enum value", "see docs/reference/cluster-file.md for the known values"),
)


def _field_problem(text: str) -> str:
    """Reorder msgspec's "Expected `int`, got `str` - at `$.nodes[0].count`" (or "`key` in `$.nodes[0].labels`")."""
    problem, _, path = text.partition(" - at ")
    field = path.replace("`", "").replace("$", "").replace(" .", " ").removeprefix(".") or "the file"
    remedy = next((r for sign, r in _REMEDIES if sign in problem), "correct it; see docs/reference/cluster-file.md")
    return f"{field}: {problem[:1].lower()}{problem[1:]}; {remedy}"
