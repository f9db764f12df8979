"""Devices whose node is away: their agents cannot report it, so the control plane does, until the node is back.

A device is ``Lost`` with the reason ``NodeLost`` once its node has been not ready, or absent, for longer than a kubelet
restart takes. One that was ``Unhealthy`` stays so: its reason is more useful, and nothing is placed on it either way.
An agent on such a node leaves the phase alone (``agent.devices.availability``). When the node is ready again, the phase
is derived from the agent's last report of the device, so that all replicas write the same.
"""

from fractile.errors import WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.units import NodeName
from fractile.wire.fractile.extended_resource import (
    API_VERSION,
    AVAILABLE,
    BOUND,
    KIND,
    LOST,
    NODE_LOST,
    PARTLY_BOUND,
    UNHEALTHY,
    ExtendedResource,
)
from fractile.wire.quantity import parse

GRACE = 15.0  # seconds; on top of the 40 to 50 after which Kubernetes marks a silent node as not ready
GONE_GRACE = 60.0  # for a node that does not exist: Kubernetes itself soon deletes the objects that it owns
FIELD_MANAGER = "fractile-control-plane"

_WHOLE = 100  # percent of a card's cores


def is_lost(phase: str, *, away: float, grace: float = GRACE) -> bool | None:
    """Whether a device should be marked lost because of its node; None: it stays as it is.

    ``phase``: as ``classes.table`` stores it. ``away``: for how many seconds the node has been away.
    """
    if away > grace:
        return None if phase in (LOST, NODE_LOST, UNHEALTHY) else True
    return False if phase == NODE_LOST and not away else None


async def say_lost(client: KubeClient, name: str, *, node: NodeName, stamp: str) -> None:
    """Mark a device lost. ``stamp``: since when, in the API's time format."""
    message = f"node {node} is not ready or gone; its devices take no pods until it is back"
    status = {"phase": LOST, "reason": NODE_LOST, "message": message, "lastTransitionTime": stamp}
    await _apply(client, name, status)


async def say_back(client: KubeClient, name: str, *, stamp: str) -> None:
    """Undo ``say_lost``; a card that is lost for another reason stays lost."""
    resource = await client.get(paths.extended_resource(name), ExtendedResource)
    status = resource.status
    if status.phase != LOST or status.reason != NODE_LOST:
        return
    # The empty texts remove those written with Lost.
    back = {"phase": phase_by_use(resource), "reason": "", "message": "", "lastTransitionTime": stamp}
    await _apply(client, name, back)


def phase_by_use(resource: ExtendedResource) -> str:
    """The phase of a healthy device, derived from the use that its agent last reported."""
    spec, used = resource.spec, resource.status.used
    if used is None or not used.slices:
        return AVAILABLE
    if not spec.memory:
        return BOUND if used.slices >= spec.shares else PARTLY_BOUND
    return BOUND if used.cores >= _WHOLE or _bytes(used.memory) >= _bytes(spec.memory) else PARTLY_BOUND


async def _apply(client: KubeClient, name: str, status: dict[str, str]) -> None:
    body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "status": status}
    await client.apply(f"{paths.extended_resource(name)}/status", body, field_manager=FIELD_MANAGER)


def _bytes(quantity: str) -> int:
    try:
        return int(parse(quantity))
    except WireError:
        return 0
