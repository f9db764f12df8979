"""What device plugins gave to pods: cards, by another plugin before Fractile served the resource; the library, by ours.

Kubelet's checkpoint keeps every plugin's answer as long as the pod exists, even after another plugin has taken over the
resource; our answers mount the token directory. A pod's owner cannot write anything in it, so no pod can look older
than it is. Failure rule: closed; a checkpoint that cannot be read is None.
"""

from collections.abc import Iterable

from fractile.agent.kubelet.kubelet_state import mounted, mounted_at
from fractile.agent.limits.library import PRELOADED
from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind
from fractile.wire.foreign.kubelet_checkpoint import Recorded
from fractile.wire.fractile.resource_class import DEVICE_SLOT

_OF_NVIDIA = ("nvidia.com/gpu", "nvidia.com/mig-")  # also nvidia.com/gpu.shared; nvidia.com/ has network cards, too


def by_another(recorded: Iterable[Recorded] | None, uid: str) -> str | None:
    """The resource by which another device plugin gave a card to the pod with this UID; "" when none did."""
    if recorded is None:
        return None
    found = (e.resource for e in recorded if e.uid == uid and _of_cards(e.resource) and mounted(e) is None)
    return min(found, default="")


def library(recorded: Iterable[Recorded] | None, uid: str, container: str) -> bool:
    """Whether that container was given the mount that makes its programs load the library."""
    of_it = (e for e in recorded or () if e.uid == uid and e.container == container)
    return any(PRELOADED in mounted_at(entry) for entry in of_it)


def _of_cards(resource: str) -> bool:
    """Whether its ids are parts of GPUs. For our other resources our answer mounts nothing either."""
    if resource in table.RESOURCES:
        return resource != DEVICE_SLOT and table.kind(resource) is ResourceKind.PRIMARY
    return resource.startswith(_OF_NVIDIA)
