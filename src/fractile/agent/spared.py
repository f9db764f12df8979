"""Which pods the audit leaves alone although they use a card that they were not given. Pure, but for ``Spared``.

The pod and the labels of its namespace are read again before every eviction: a label may have been set since the pod
was warned. Failure rule: closed. What cannot be read is not evicted now; the audit comes back to it.
"""

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from fractile.agent.owners import Owner
from fractile.dialects import table
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.objects import KubeStruct, Namespace, ObjectMeta, ResourceRequirements

ALLOWED = "fractile.dev/visible-devices"  # of a namespace, "allow": the same that the admission policy knows
SYSTEM = "fractile-system"

_MIRROR = "kubernetes.io/config.mirror"  # kubelet's mark of what it runs from a file
_CRITICAL = 2_000_000_000  # priorities that no user may give; system-cluster-critical
_CRITICAL_CLASSES = frozenset({"system-node-critical", "system-cluster-critical"})
_CALL = 5.0


class _Container(KubeStruct, frozen=True):
    resources: ResourceRequirements | None = None


class _Spec(KubeStruct, frozen=True):
    priority: int | None = None
    priority_class_name: str = ""
    resource_claims: list[Any] | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class Subject(KubeStruct, frozen=True):
    """A pod, as far as this is decided by it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()


def why(pod: Subject, namespace: Mapping[str, str], served: Collection[str]) -> str:
    """The rest of a sentence that begins with the pod; "" when it may be evicted. ``served``: this node's resources of
    ours; what a pod holds of others it has from another device plugin."""
    meta, spec = pod.metadata, pod.spec
    if _MIRROR in (meta.annotations or {}) or any(o.kind == "Node" for o in meta.owner_references or ()):
        return "is static: kubelet runs it from a file"
    if spec.priority_class_name in _CRITICAL_CLASSES or (spec.priority or 0) >= _CRITICAL:
        return "is critical for its node or its cluster"
    if meta.namespace == SYSTEM:
        return f"is of namespace {SYSTEM}"
    if namespace.get(ALLOWED) == "allow":
        return f"is of a namespace with the label {ALLOWED}=allow"
    if spec.resource_claims:
        return "has a resource claim"
    if others := sorted(r for r in _resources(spec) if r in table.RESOURCES and r not in served):
        return f"holds {others[0]} of another device plugin"
    return ""


def _resources(spec: _Spec) -> set[str]:
    requirements = (c.resources for c in (*(spec.containers or ()), *(spec.init_containers or ())))
    return {name for r in requirements if r is not None for name in (r.limits or {})}


class Spared:
    """Asks the API server. ``served``: the resources that this agent serves."""

    def __init__(self, client: KubeClient, served: Collection[str]) -> None:
        self._client = client
        self._served = served

    async def why(self, owner: Owner) -> str | None:
        """As ``why``; None: it cannot be said now. A pod that is gone may be evicted, which changes nothing."""
        try:
            async with asyncio.timeout(_CALL):
                pod = await self._pod(owner)
                namespace = await self._client.get(paths.namespace(owner.namespace), Namespace)
        except (ApiError, Unreachable, WireError, TimeoutError):
            return None
        if pod is None or pod.metadata.uid != owner.uid:
            return ""
        return why(pod, namespace.metadata.labels or {}, self._served)

    async def _pod(self, owner: Owner) -> Subject | None:
        try:
            return await self._client.get(paths.pod(owner.namespace, owner.pod), Subject)
        except ApiError as e:
            if e.code == 404:
                return None
            raise
