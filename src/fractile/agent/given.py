"""Which pods another device plugin gave cards to: those that ran on the node before Fractile served the resource.

Kubelet's checkpoint keeps every plugin's answer for as long as the pod is there, also when another plugin has taken the
resource over; ours mount the token directory. Nothing that a pod's owner can write is in it, so no pod can look older
than it is. Failure rule: closed; a checkpoint that cannot be read is None.
"""

from collections.abc import Iterable

from fractile.agent.books import mounted
from fractile.dialects import table
from fractile.dialects.dialect import Kind
from fractile.wire.kubelet_checkpoint import Recorded
from fractile.wire.resource_class import DEVICE_SLOT

_OF_NVIDIA = ("nvidia.com/gpu", "nvidia.com/mig-")  # also nvidia.com/gpu.shared; nvidia.com/ has network cards, too


def by_another(recorded: Iterable[Recorded] | None, uid: str) -> str | None:
    """The resource by which another device plugin gave a card to the pod with this UID; "" when none did."""
    if recorded is None:
        return None
    found = (e.resource for e in recorded if e.uid == uid and _of_cards(e.resource) and mounted(e) is None)
    return min(found, default="")


def _of_cards(resource: str) -> bool:
    """Whether its ids are parts of GPUs. Of other resources of ours our answer mounts nothing either."""
    if resource in table.RESOURCES:
        return resource != DEVICE_SLOT and table.kind(resource) is Kind.PRIMARY
    return resource.startswith(_OF_NVIDIA)
