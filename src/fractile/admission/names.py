"""What resource names mean to admission.

Names without a domain are Kubernetes' own. The API server refuses unknown ones in pods, templates and quotas, but only
after mutation: so ``nvidia.tesla.k80`` can be understood as the class of that name.
"""

from typing import Protocol

from fractile.dialects import nvidia
from fractile.model.device_class import DeviceClass
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, resource_name

KUBERNETES = frozenset({"cpu", "memory", "ephemeral-storage", "storage"})  # in containers, besides hugepages-*
QUOTA_PREFIX = "requests."  # the only form in which a quota counts an extended resource

HAMI_AMOUNTS = (nvidia.MEMORY, nvidia.PERCENTAGE, nvidia.CORES)  # each implies nvidia.com/gpu: 1


class ClassNames(Protocol):
    """The classes of the cluster."""

    def find(self, name: str) -> DeviceClass | None: ...


def is_bare(resource: str) -> bool:
    """Whether the name has no domain and Kubernetes does not know it."""
    return "/" not in resource and resource not in KUBERNETES and not resource.startswith("hugepages-")


def translated(resource: str, classes: ClassNames) -> str | None:
    """The resource that a bare name stands for; None when the name is not bare, or no class has that name."""
    return resource_name(resource) if is_bare(resource) and classes.find(resource) is not None else None


def slot_of(found: DeviceClass | None) -> str:
    """The resource whose ids containers get for the class. A class that does not exist is taken for one of GPUs."""
    return GPU_SLOT if found is None or found.device_type == "gpu" else DEVICE_SLOT
