"""A pod whose node the control plane may choose itself (docs/use/global-placement.md): the fields that say where it
could run, and what is written for it.

The nomination stands twice, in one write: in ``status.nominatedNodeName``, which kube-scheduler reads, and in an
annotation, which tells ours from those that preemption makes. The API server takes annotations of a pod through its
status as well (kubernetes/kubernetes: pkg/registry/core/pod/strategy.go, podStatusStrategy).
"""

from typing import Any, cast

from fractile.wire.kubernetes.manifests import PlannedPodSpec
from fractile.wire.kubernetes.objects import KubeStruct, Pod

ANNOTATION = "fractile.dev/global-placement"  # of a pod or a namespace: "true" or "false"
GATE = "fractile.dev/placement"  # scheduling gate
NOMINATED = "fractile.dev/nominated-node"  # annotation: the node that we nominated


class Volume(KubeStruct, frozen=True):
    """Only the kinds that tie a pod to some nodes."""

    persistent_volume_claim: Any = None
    ephemeral: Any = None


class QueuedSpec(PlannedPodSpec, frozen=True):
    volumes: list[Volume] | None = None
    resource_claims: list[Any] | None = None


class QueuedPod(Pod, frozen=True):
    spec: QueuedSpec = QueuedSpec()


def gated(pod: Pod) -> bool:
    """Whether our gate holds it back."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def gated_by_others(pod: Pod) -> bool:
    return any(gate.name != GATE for gate in pod.spec.scheduling_gates or ())


def nominated_by_us(pod: Pod) -> str:
    """The node that we nominated, if that nomination still stands."""
    said = (pod.metadata.annotations or {}).get(NOMINATED, "")
    return said if said == pod.status.nominated_node_name else ""


def nomination(pod: Pod, node: str) -> dict[str, object]:
    """The patch of the status, for this incarnation of the pod; of one that kube-scheduler may have in its hands only
    as it was seen, so that no pod is nominated that is bound already."""
    meta: dict[str, object] = {"uid": pod.metadata.uid, "annotations": {NOMINATED: node}}
    if not gated(pod) and pod.metadata.resource_version:
        meta["resourceVersion"] = pod.metadata.resource_version
    return {"metadata": meta, "status": {"nominatedNodeName": node}}


def no_nomination(pod: Pod) -> dict[str, object]:
    """The patch of the status that takes ours back, if the pod is as it was seen."""
    meta: dict[str, object] = {"uid": pod.metadata.uid, "annotations": {NOMINATED: None}}
    if pod.metadata.resource_version:
        meta["resourceVersion"] = pod.metadata.resource_version
    return {"metadata": meta, "status": {"nominatedNodeName": None}}


def without_gate(pod: Pod) -> dict[str, object]:
    """The strategic merge patch that takes our gate away, and leaves those of others."""
    return {
        "metadata": {"uid": pod.metadata.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]},
    }


def without_gates(pod: Pod) -> dict[str, object]:
    """The merge patch that takes all gates away: of a pod that has ours alone, since gates are never added later. The
    API server need not merge lists by their keys for it."""
    return {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": None}}


def for_the_scheduler(pod: QueuedPod) -> str:
    """What the pod asks for that only kube-scheduler judges; empty when there is nothing."""
    spec = pod.spec
    affinity = spec.affinity
    others = [affinity.pod_affinity, affinity.pod_anti_affinity] if affinity else []
    if any(one and one.required for one in others):
        return "affinity between pods"
    if any(_strict(c) for c in spec.topology_spread_constraints or ()):
        return "topology spread"
    if any(v.persistent_volume_claim or v.ephemeral for v in spec.volumes or ()):
        return "volumes"
    if spec.resource_claims:
        return "resource claims"
    return ""


def _strict(constraint: object) -> bool:
    if not isinstance(constraint, dict):
        return False
    return cast("dict[str, object]", constraint).get("whenUnsatisfiable", "DoNotSchedule") == "DoNotSchedule"
