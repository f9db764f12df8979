"""What kubelet does to pods that run when it starts while the device plugin is away. Pure.

It takes a container that runs for admitted, but an init container that is done does not run: where one asked for
devices, kubelet 1.36.3 wants them again, finds none that is healthy, and fails the pod, which it then kills
(kubernetes/kubernetes issues 124345, 138446; ``isContainerAlreadyRunning`` in pkg/kubelet/cm/devicemanager). Nobody but
kubelet could spare that pod: the agent that would have registered is not there. So it is told apart, as narrowly as it
can be: where the agent was there, the pod was killed by our fault.
"""

from collections.abc import Collection, Mapping

import msgspec

from fractile.model.request import Role
from tests.chaos.acts.faults import PROCESS, Kind
from tests.chaos.judging.snapshot import SeenPod

AFTER = 5.0  # seconds that an agent which is started may need on a busy machine until kubelet knows its devices


class Outage(msgspec.Struct, frozen=True):
    """A fault that was played; seconds since 1970."""

    target: str
    kind: Kind
    begin: float
    end: float


def lost(pod: SeenPod, denied: Mapping[str, float], outages: Collection[Outage]) -> bool:
    """Whether kubelet failed it for want of a plugin that had been taken away. ``denied``: see denials.py."""
    when = denied.get(pod.uid)
    return pod.finished and when is not None and _wants_again(pod) and _away(pod.spec.node_name or "", when, outages)


def _wants_again(pod: SeenPod) -> bool:
    return pod.request is not None and any(c.role is Role.INIT for c in pod.request.containers)


def _away(node: str, when: float, outages: Collection[Outage]) -> bool:
    agents = [o for o in outages if o.target == f"{node}/agent" and o.kind in PROCESS]
    return any(o.begin <= when <= o.end + AFTER for o in agents)
