"""Derives all components of a cluster from its state, and writes the files that they need."""

from collections.abc import Iterator
from datetime import datetime

import msgspec

from fractile.errors import SetupError
from fractile.lab.cluster import chart, controlplane, node, replicas
from fractile.lab.cluster.certificates import KeyPair
from fractile.lab.cluster.component import Component
from fractile.lab.cluster.controlplane import Secrets
from fractile.lab.cluster.state import ClusterState, LabNodeState
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine.programs import Programs


class NodePlan(msgspec.Struct, frozen=True):
    """The components of a node. A hollow node has no containerd, and its ``kubelet`` is simulated."""

    state: LabNodeState
    containerd: Component | None
    kubelet: Component
    agent: Component | None


class ClusterPlan(msgspec.Struct, frozen=True):
    """The components of a cluster. ``control_planes``: Fractile's, either one or several with their proxy. ``proxy``:
    leads to the control plane when it runs from the chart."""

    etcd: Component
    apiserver: Component
    controller_manager: Component
    scheduler: Component
    control_planes: tuple[Component, ...]
    proxy: Component | None
    secrets: Secrets
    nodes: tuple[NodePlan, ...]
    admin: KeyPair

    def components(self) -> Iterator[Component]:
        """All components, each after those that it depends on."""
        yield from (self.etcd, self.apiserver, self.controller_manager, self.scheduler)
        for one in self.nodes:
            yield from (c for c in (one.containerd, one.kubelet, one.agent) if c is not None)
        yield from self.control_planes
        yield from (c for c in (self.proxy,) if c is not None)

    def component(self, name: str) -> Component:
        """The component of that name; SetupError when there is none."""
        found = next((c for c in self.components() if c.name == name), None)
        if found is None:
            known = ", ".join(c.name for c in self.components())
            raise SetupError(f"there is no component {name!r}; the components are {known}")
        return found


def make(place: ClusterLayout, state: ClusterState, *, now: datetime) -> ClusterPlan:
    """Write the files that are missing or out of date, and return the components that should run."""
    programs = Programs.at(state.programs)
    secrets = controlplane.issue(place, state, now=now)
    config = controlplane.write_scheduler_config(place, state, secrets)
    return ClusterPlan(
        etcd=controlplane.etcd(place, state, secrets, programs),
        apiserver=controlplane.apiserver(place, state, secrets, programs),
        controller_manager=controlplane.controller_manager(state, secrets, programs),
        scheduler=controlplane.scheduler(state, secrets, programs, config),
        control_planes=replicas.components(place, state, secrets) if _as_processes(state) else (),
        proxy=chart.proxy(place, state, secrets) if state.image else None,
        secrets=secrets,
        nodes=tuple(_node(place, state, one, programs, now=now) for one in state.nodes),
        admin=secrets.admin,
    )


def _node(
    place: ClusterLayout, state: ClusterState, one: LabNodeState, programs: Programs, *, now: datetime
) -> NodePlan:
    files = node.write_files(place, state, one, now=now)
    return NodePlan(
        state=one,
        containerd=None if state.hollow else node.containerd(place, one, files),
        kubelet=node.hollow_node(place, one, files) if state.hollow else node.kubelet(place, one, files, programs),
        agent=node.agent(place, state, one, files) if _as_processes(state) else None,
    )


def _as_processes(state: ClusterState) -> bool:
    return state.fractile and not state.image
