"""Which pods the audit leaves alone although they use a card that they were not given. Pure, except for ``Spared``.

The pod and the labels of its namespace are read again before every eviction: a label may have been set since the pod
was warned. What the ledger gave to the pod is in its placement, which only the control plane writes: it counts even if
this node's record of it is lost. What another device plugin gave it before Fractile was installed is in kubelet's
record (``given``). A request alone is no right: kubelet admits a pod that asks for a resource that its node does not
have, and gives it nothing. Nor is a resource claim, which may ask for nothing (``claims``). Failure rule: closed. If
something cannot be read, the pod is not evicted now; the audit tries again later.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection

from fractile.agent.audit import claims, given
from fractile.agent.kubelet.kubelet_state import KubeletState
from fractile.agent.node.owners import ProcessOwner
from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.units import CardUUID
from fractile.policy.outside import DAMAGED
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.objects import ALLOWED, KubeStruct, Namespace, Node, ObjectMeta, ResourceRequirements
from fractile.wire.quantity import whole_number

SYSTEM = "fractile-system"

_MIRROR = "kubernetes.io/config.mirror"  # set by kubelet on static pods; kubelet does not run a user's pod that has it
_CRITICAL = 2_000_000_000  # that of system-cluster-critical; users may not set priorities this high
_CRITICAL_CLASSES = frozenset({"system-node-critical", "system-cluster-critical"})
_CALL = 5.0
_JUDGED = 64  # pods whose claims are partly read; more are not processed within a few minutes


class _Container(KubeStruct, frozen=True):
    resources: ResourceRequirements | None = None


class _Spec(KubeStruct, frozen=True):
    node_name: str = ""
    priority: int | None = None
    priority_class_name: str = ""
    resource_claims: claims.Named | None = None
    termination_grace_period_seconds: int | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None


class Subject(KubeStruct, frozen=True):
    """The fields of a pod on which the decision depends."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: claims.Claims = claims.Claims()


def why(pod: Subject, namespace: Namespace, others: Collection[str]) -> str:
    """The rest of a sentence that begins with the pod; "" when it may be evicted, unless its claims forbid it.
    ``others``: resources of ours that this node has from another device plugin."""
    meta, spec = pod.metadata, pod.spec
    if _MIRROR in (meta.annotations or {}):  # not by an owner of kind Node, which users can write themselves
        return "is static: kubelet runs it from a file"
    if spec.priority_class_name in _CRITICAL_CLASSES or (spec.priority or 0) >= _CRITICAL:
        return "is critical for its node or its cluster"
    if meta.namespace == SYSTEM:
        return f"is in namespace {SYSTEM}"
    if namespace.names_devices:
        return f"is in a namespace that has the label {ALLOWED}=allow"
    if held := sorted(asked(spec) & frozenset(others)):
        return f"holds {held[0]} of another device plugin"
    return ""


def asked(spec: _Spec) -> frozenset[str]:
    """The resources with device ids of which the pod requests more than zero."""
    requirements = (c.resources for c in (*(spec.containers or ()), *(spec.init_containers or ())))
    return frozenset(
        name
        for r in requirements
        if r is not None
        for name, amount in (r.limits or {}).items()
        if name in table.RESOURCES and table.kind(name) is not ResourceKind.AMOUNT and _some(amount)
    )


def holds(pod: Subject, card: CardUUID) -> bool:
    """Whether the ledger gave the pod a part of the card."""
    text = (pod.metadata.annotations or {}).get(placement.ANNOTATION)
    given = None if text is None else placement.recorded(text)
    if given is None or given.node != pod.spec.node_name:
        return False
    return any(s.card == card for c in given.containers for s in c.slices)


def _some(amount: object) -> bool:
    try:
        return whole_number(amount) > 0
    except WireError:
        return False


class Spared:
    """Reads from the API server, and kubelet's state by ``record``. ``served``: the resources that this agent serves.
    ``damaged``: whether programs of the pod may have started without the library because it was damaged on the node."""

    def __init__(
        self,
        client: KubeClient,
        served: Collection[str],
        record: Callable[[], Awaitable[KubeletState]],
        *,
        damaged: Callable[[str], bool] = lambda uid: False,
    ) -> None:
        self._damaged = damaged
        self._client = client
        self._record = record
        self._served = frozenset(served)
        self._known: dict[str, set[str]] = {}  # by pod UID: claims already read that give it no GPU

    async def why(
        self, owner: ProcessOwner, card: CardUUID | None = None, *, given_library: bool = False
    ) -> str | None:
        """Like the function ``why``; None: not known now. A pod that is gone may be evicted, which changes nothing.
        ``card``: the card of which the pod must hold nothing to be evicted. ``given_library``: its container must have
        been given the library, as an agent without a library does not."""
        if card is None and self._damaged(owner.uid):
            return DAMAGED
        try:
            async with asyncio.timeout(_CALL):
                pod = await self._pod(owner)
                if pod is None or pod.metadata.uid != owner.uid:
                    return ""
                namespace = await self._client.get(paths.namespace(owner.namespace), Namespace)
                others = await self._of_other_plugins(pod.spec)
                record = (await self._record()).recorded
                before = given.by_another(record, pod.metadata.uid)
            claim = await self._claim(pod)
        except (ApiError, Unreachable, WireError, TimeoutError):
            return None
        if card is not None and holds(pod, card):
            return f"holds a part of card {card}, by its placement"
        if before is None:
            return None
        if before:
            return f"was given {before} by another device plugin, before Fractile served it on this node"
        if given_library and not given.library(record, owner.uid, owner.container):
            return "was given no library, by kubelet's record"
        if claim:
            return f"has GPUs by the resource claim {claim}"
        return why(pod, namespace, others)

    async def grace(self, owner: ProcessOwner, *, most: int) -> int:
        """Seconds that the pod's processes have to end: the pod's own value, but at least 1, since with 0 the pod
        would be gone from the API server while its containers still run. Raises what reading the pod raises."""
        pod = await self._client.get(paths.pod(owner.namespace, owner.pod), Subject)
        own = pod.spec.termination_grace_period_seconds
        return most if own is None else max(1, min(own, most))

    async def _claim(self, pod: Subject) -> str:
        """The claim that gives it GPUs. All are reserved for the pod before it starts, so one that was read and gives
        it none need not be read again: with a slow API server the rest is read at the next attempt."""
        wanted = claims.names(pod.spec.resource_claims, pod.status)
        if not wanted:
            return ""
        uid = pod.metadata.uid
        known = self._known.pop(uid, set[str]())
        self._known[uid] = known
        if len(self._known) > _JUDGED:
            del self._known[next(iter(self._known))]
        async with asyncio.timeout(_CALL):
            found = await claims.held(self._client, pod.metadata.namespace, wanted, uid, known)
        self._known.pop(uid, None)
        return found

    async def _of_other_plugins(self, spec: _Spec) -> frozenset[str]:
        """The node's allocatable resources that the pod requests and this agent does not serve."""
        found = asked(spec) - self._served
        if not found:
            return found
        node = await self._client.get(paths.node(spec.node_name), Node)
        return frozenset(name for name in found if _some((node.status.allocatable or {}).get(name, "0")))

    async def _pod(self, owner: ProcessOwner) -> Subject | None:
        try:
            return await self._client.get(paths.pod(owner.namespace, owner.pod), Subject)
        except ApiError as e:
            if e.code == 404:
                return None
            raise
