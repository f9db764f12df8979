"""Whether a resource claim explains that a pod uses a card: a GPU driver's device was allocated to it for this pod.

A claim in a manifest proves nothing: the role ``admin`` can create claims, and a claim may ask for no device, or for a
device of another kind. What counts is the claim's status, which kube-scheduler and drivers write: the devices, each
with its driver, and the pods for which they are reserved. Failure rule: errors of the API server go to the caller.
"""

from fractile.errors import ApiError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes.objects import KubeStruct

DRIVERS = frozenset({"gpu.nvidia.com"})  # that give a container cards which NVML knows

_VERSIONS = ("v1", "v1beta2", "v1beta1")  # since Kubernetes 1.34, 1.33, 1.32
_MOST = 32  # claims of a pod that are read, so that no pod can keep the agent busy


class _Named(KubeStruct, frozen=True):
    """``name`` within the pod; ``resource_claim_name``: of the object."""

    name: str = ""
    resource_claim_name: str | None = None


class _Extended(KubeStruct, frozen=True):
    resource_claim_name: str = ""


class Claims(KubeStruct, frozen=True):
    """The part of a pod's status that names the claims made for it: from templates, and for extended resources that a
    DeviceClass serves (DRAExtendedResource), which are not in the pod's specification."""

    resource_claim_statuses: list[_Named] | None = None
    extended_resource_claim_status: _Extended | None = None


class _Device(KubeStruct, frozen=True):
    driver: str = ""


class _Devices(KubeStruct, frozen=True):
    results: list[_Device] | None = None


class _Allocation(KubeStruct, frozen=True):
    devices: _Devices = _Devices()


class _Consumer(KubeStruct, frozen=True):
    uid: str = ""


class _Status(KubeStruct, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: list[_Consumer] | None = None


class _Claim(KubeStruct, frozen=True):
    status: _Status = _Status()


Named = list[_Named]


def names(claims: Named | None, status: Claims) -> list[str]:
    """The claim objects of a pod, at most ``_MOST``; that of its extended resources comes first."""
    made = {one.name: one.resource_claim_name for one in status.resource_claim_statuses or ()}
    extended = status.extended_resource_claim_status
    found = [
        extended.resource_claim_name if extended is not None else "",
        *(one.resource_claim_name or made.get(one.name) for one in claims or ()),
    ]
    return list(dict.fromkeys(name for name in found if name))[:_MOST]


def gives_gpus(claim: _Claim, uid: str) -> bool:
    """Whether a device of a GPU driver is allocated to the claim, for the pod with this UID."""
    status = claim.status
    devices = (status.allocation.devices.results if status.allocation is not None else None) or ()
    return any(one.uid == uid for one in status.reserved_for or ()) and any(d.driver in DRIVERS for d in devices)


async def held(client: KubeClient, namespace: str, wanted: list[str], uid: str, known: set[str]) -> str:
    """The name of the first of these claims that gives the pod GPUs; "" when none does. ``known``: claims that do not;
    those read here are added."""
    for name in wanted:
        if name in known:
            continue
        claim = await _read(client, namespace, name)
        if claim is not None and gives_gpus(claim, uid):
            return name
        known.add(name)
    return ""


async def _read(client: KubeClient, namespace: str, name: str) -> _Claim | None:
    """None: no version of the API has such a claim."""
    for version in _VERSIONS:
        try:
            return await client.get(paths.resource_claim(namespace, name, version), _Claim)
        except ApiError as e:
            if e.code != 404:
                raise
    return None
