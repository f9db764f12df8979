"""What kubelet does to pods that run when it starts while the device plugin is away. Pure.

It takes a container that runs for admitted, but an init container that is done does not run: where one asked for
devices, kubelet 1.36.3 wants them again, finds none that is healthy, and fails the pod, which it then kills
(kubernetes/kubernetes issues 124345, 138446; ``isContainerAlreadyRunning`` in pkg/kubelet/cm/devicemanager). Nobody but
kubelet could spare that pod: the agent that would have registered is not there. So it is told apart, as narrowly as it
can be: where the agent was there, the pod was killed by our fault.
"""

from collections.abc import Collection

import msgspec

from fractile.model.request import Role
from tests.chaos.faults import PROCESS, Kind
from tests.chaos.snapshot import SeenPod

WITHIN = 10.0  # seconds between a kubelet's start and its first admissions, and those of an agent's start, under load
_SENTENCES = ("cannot allocate unhealthy devices", "cannot allocate unregistered device")


class Outage(msgspec.Struct, frozen=True):
    """A fault that was played: seconds of the round's clock."""

    target: str
    kind: Kind
    begin: float
    end: float


def lost(pod: SeenPod, outages: Collection[Outage]) -> bool:
    """Whether kubelet failed it for want of a plugin that had been taken away."""
    if not pod.finished or pod.status.reason != "UnexpectedAdmissionError":
        return False
    if not any(sentence in (pod.status.message or "") for sentence in _SENTENCES):
        return False
    return _wants_again(pod) and _both_away(pod.spec.node_name or "", outages)


def _wants_again(pod: SeenPod) -> bool:
    return pod.request is not None and any(c.role is Role.INIT for c in pod.request.containers)


def _both_away(node: str, outages: Collection[Outage]) -> bool:
    kubelets = [o for o in outages if o.target == f"{node}/kubelet" and o.kind in (Kind.KILL, Kind.RESTART)]
    agents = [o for o in outages if o.target == f"{node}/agent" and o.kind in PROCESS]
    return any(a.begin <= k.end + WITHIN and k.begin <= a.end + WITHIN for k in kubelets for a in agents)
