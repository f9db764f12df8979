"""The state of a cluster that is decided once and kept: its spec, ports, networks, and whether its nodes are hollow.

Version 1, JSON, written atomically. It does not say which processes run: each process has its own record (see
processes.py), so no crash can make the two disagree.
"""

import contextlib
from ipaddress import IPv4Network

import msgspec

from fractile.errors import SetupError
from fractile.lab.cluster.spec import ClusterSpec, NodeSpec
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import network
from fractile.model.properties import Properties, shared

VERSION = 1


class Ports(msgspec.Struct, frozen=True):
    """Loopback ports, chosen once. ``webhook`` is 0 in a cluster of an earlier version, which has no webhook."""

    etcd: int
    etcd_peer: int
    apiserver: int
    controller_manager: int
    scheduler: int
    control_plane: int
    webhook: int = 0


class ReplicaPorts(msgspec.Struct, frozen=True):
    """Loopback ports of one of several control planes; the ports of ``Ports`` lead to them."""

    control_plane: int
    webhook: int


class LabNodeState(msgspec.Struct, frozen=True):
    """One node. ``index`` determines its folder, bridge and network, and never changes."""

    index: int
    spec: NodeSpec
    subnet: str

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def network(self) -> IPv4Network:
        return IPv4Network(self.subnet)

    @property
    def address(self) -> str:
        return str(network.gateway(self.network))


class ClusterState(msgspec.Struct, frozen=True):
    """``hollow``: why the nodes have no kubelet; empty when they have one. ``native``: the folder of the library and
    simgpu; empty when limits are not enforced. ``policy``: how nodes are chosen; empty: the default. ``image``: the
    image of the chart's pods; empty: Fractile runs as processes. ``replicas``: several control planes as processes;
    empty: only one."""

    version: int
    spec: ClusterSpec
    hollow: str
    fractile: bool
    ports: Ports
    nodes: tuple[LabNodeState, ...]
    programs: str
    native: str = ""
    image: str = ""
    policy: str = ""
    replicas: tuple[ReplicaPorts, ...] = ()

    def node(self, name: str) -> LabNodeState:
        """The node of that name; SetupError when there is none."""
        found = next((n for n in self.nodes if n.name == name), None)
        if found is None:
            raise SetupError(f"there is no node {name!r}; the nodes are {', '.join(n.name for n in self.nodes)}")
        return found


def _plain(value: object) -> object:
    """Encode our mappings, which msgspec does not know."""
    if isinstance(value, Properties):
        return dict(value)
    raise NotImplementedError(type(value))


def _properties(kind: type[object], value: object) -> object:
    if kind is Properties:
        return shared(msgspec.convert(value, dict[str, str]))
    raise NotImplementedError(kind)


_decoder = msgspec.json.Decoder(ClusterState, dec_hook=_properties)


def load(place: ClusterLayout) -> ClusterState | None:
    """The kept state; None when the cluster was never started. SetupError when this version cannot read it."""
    try:
        raw = place.state.read_bytes()
    except FileNotFoundError:
        return None
    try:
        state = _decoder.decode(raw)
    except msgspec.DecodeError as e:
        raise SetupError(_unreadable(place, str(e))) from None
    if state.version != VERSION:
        raise SetupError(_unreadable(place, f"it has version {state.version}, not {VERSION}"))
    return state


def save(place: ClusterLayout, state: ClusterState) -> None:
    place.write(place.state, msgspec.json.format(msgspec.json.encode(state, enc_hook=_plain)))


def first(place: ClusterLayout, spec: ClusterSpec, *, hollow: str, fractile: bool, programs: str) -> ClusterState:
    """The state of a new cluster: ports and networks that are free now."""
    taken = taken_ports(place)
    ports = Ports(*network.choose_ports(place.name, len(Ports.__struct_fields__), taken=taken))
    empty = ClusterState(VERSION, spec, hollow, fractile, ports, (), programs)
    return grown(place, empty, spec)


def grown(place: ClusterLayout, state: ClusterState, spec: ClusterSpec) -> ClusterState:
    """The state, extended by the nodes of ``spec`` that it lacks."""
    known = {n.name for n in state.nodes}
    new = [n for n in spec.nodes if n.name not in known]
    if not new:
        return state
    first_index = len(state.nodes)
    if state.hollow:
        subnets = ["127.0.0.0/8"] * len(new)
    else:
        kept = [n.network for one in (state, *_others(place)) if not one.hollow for n in one.nodes]
        taken = [*network.taken_networks(), *kept]
        subnets = [str(s) for s in network.choose_subnets(place.name, len(new), taken=taken)]
    added = tuple(
        LabNodeState(first_index + i, node, subnet) for i, (node, subnet) in enumerate(zip(new, subnets, strict=True))
    )
    return msgspec.structs.replace(state, nodes=state.nodes + added, spec=spec)


def taken_ports(place: ClusterLayout, *own: ClusterState) -> set[int]:
    """The ports of this user's other clusters and of ``own``."""
    some = [one for state in (*own, *_others(place)) for one in (state.ports, *state.replicas)]
    return {port for one in some for port in msgspec.structs.astuple(one)}


def check_same(place: ClusterLayout, state: ClusterState, wanted: ClusterSpec) -> None:
    """Raise SetupError if the existing cluster cannot be changed to ``wanted``; nodes may be added."""
    nodes = {n.name: n.spec for n in state.nodes}
    gone = nodes.keys() - {n.name for n in wanted.nodes}
    changed = [n.name for n in wanted.nodes if n.name in nodes and nodes[n.name] != n]
    if state.spec.unit != wanted.unit:
        difference = f"its memory unit is {state.spec.unit.name}"
    elif gone:
        difference = f"it also has {', '.join(sorted(gone))}"
    elif changed:
        difference = f"{', '.join(changed)} differ{'s' if len(changed) == 1 else ''}"
    else:
        return
    raise SetupError(
        f"cluster {place.name} exists and differs from what you ask for ({difference}); "
        f"run `fractile down --name {place.name}` first, or choose another --name"
    )


def _others(place: ClusterLayout) -> list[ClusterState]:
    """This user's other clusters, including those that do not run."""
    found: list[ClusterState] = []
    for file in place.root.parent.glob("*/state.json"):
        if file != place.state:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                found.append(_decoder.decode(file.read_bytes()))
    return found


def _unreadable(place: ClusterLayout, why: str) -> str:
    return f"{place.state} cannot be read ({why}); run `fractile down --name {place.name}` and start again"
