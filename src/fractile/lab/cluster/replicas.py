"""Several control planes of a local cluster, as processes: each has its own ports behind the cluster's ports.

A single one has neither Lease nor proxy: a restart after a crash need not wait for the old lease to expire.
"""

from collections.abc import Iterator

import msgspec

from fractile.errors import SetupError
from fractile.lab.cluster import component, controlplane
from fractile.lab.cluster.component import Component, HttpProbe
from fractile.lab.cluster.controlplane import Secrets, fractile_control_plane, fractile_program
from fractile.lab.cluster.state import ClusterState, ReplicaPorts, taken_ports
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import network

MOST = 5
_GRACE = 3.0  # seconds between SIGTERM and SIGKILL
CONTROL_PLANE = "control-plane"
PROXY = "replica-proxy"
NAMES = (CONTROL_PLANE, *(f"{CONTROL_PLANE}-{number}" for number in range(1, MOST + 1)), PROXY)


def decide(place: ClusterLayout, state: ClusterState, count: int) -> ClusterState:
    """The state with ``count`` replicas. SetupError when that is impossible."""
    if not 1 <= count <= MOST:
        raise SetupError(f"--replicas {count} is not possible; give 1 to {MOST}")
    if state.image:
        raise SetupError("--replicas is for control planes that are processes; with --chart there are two")
    if count > 1 and not state.ports.webhook:
        raise SetupError(f"an earlier version began cluster {place.name}; take it down first")
    if count == 1:
        return msgspec.structs.replace(state, replicas=())
    lacking = max(0, count - len(state.replicas))
    found = iter(network.choose_ports(place.name, 2 * lacking, taken=taken_ports(place, state)))
    added = tuple(ReplicaPorts(next(found), next(found)) for _ in range(lacking))
    return msgspec.structs.replace(state, replicas=(*state.replicas, *added)[:count])


def names(state: ClusterState) -> list[str]:
    """The names of the components that ``components`` returns."""
    numbered = [f"{CONTROL_PLANE}-{number}" for number, _ in enumerate(state.replicas, start=1)]
    return [*numbered, PROXY] if numbered else [CONTROL_PLANE]


def stop_unwanted(place: ClusterLayout, before: ClusterState | None, wanted: ClusterState) -> None:
    """Stop surplus control planes, also those left by a killed `up`; stop all of them if they have to be restarted."""
    changed = before is not None and (before.policy, before.replicas) != (wanted.policy, wanted.replicas)
    for name in NAMES:
        if changed or name not in names(wanted):
            component.stop(place, name, grace=_GRACE)


def components(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> tuple[Component, ...]:
    """The components of Fractile's control plane: one process, or replicas and their proxy."""
    if not state.replicas:
        return (fractile_control_plane(place, state, secrets),)
    return (*_replicas(place, state, secrets), _proxy(state, secrets))


def _replicas(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> Iterator[Component]:
    for number, ports in enumerate(state.replicas, start=1):
        there = msgspec.structs.replace(
            state,
            ports=msgspec.structs.replace(state.ports, control_plane=ports.control_plane, webhook=ports.webhook),
        )
        one = fractile_control_plane(place, there, secrets)
        argv = tuple(a for a in one.argv if a != controlplane.NO_LEASE)
        alive = HttpProbe(f"https://127.0.0.1:{ports.control_plane}/healthz", secrets.ca)  # a standby is not ready
        yield msgspec.structs.replace(one, name=f"{CONTROL_PLANE}-{number}", argv=argv, probe=alive)


def _proxy(state: ClusterState, secrets: Secrets) -> Component:
    """The proxy to the leader; ready when the leader answers through it."""
    argv = (
        *fractile_program(),
        PROXY,
        f"--ca={secrets.ca}",
        f"--ports={state.ports.control_plane},{state.ports.webhook}",
        *(f"--replica={one.control_plane},{one.webhook}" for one in state.replicas),
    )
    probe = HttpProbe(f"https://127.0.0.1:{state.ports.control_plane}/readyz", secrets.ca)
    return Component(PROXY, argv, probe=probe)
