"""A pod whose node the control plane may choose itself (docs/use/global-placement.md): the fields that say where it
could run, and the patches for it.

A nomination is written twice in one request: to ``status.nominatedNodeName``, which kube-scheduler reads, and to an
annotation, which distinguishes ours from those of preemption. The API server also accepts a pod's annotations through
its status (kubernetes/kubernetes: pkg/registry/core/pod/strategy.go, podStatusStrategy).
"""

from typing import Any, cast

from fractile.wire.kubernetes.manifests import PlannedPodSpec
from fractile.wire.kubernetes.objects import KubeStruct, Pod

ANNOTATION = "fractile.dev/global-placement"  # of a pod or a namespace: "true" or "false"
GATE = "fractile.dev/placement"  # scheduling gate
NOMINATED = "fractile.dev/nominated-node"  # annotation: our nominated node


class Volume(KubeStruct, frozen=True):
    """A volume, with only the kinds that tie a pod to certain nodes."""

    persistent_volume_claim: Any = None
    ephemeral: Any = None


class QueuedSpec(PlannedPodSpec, frozen=True):
    volumes: list[Volume] | None = None
    resource_claims: list[Any] | None = None


class QueuedPod(Pod, frozen=True):
    spec: QueuedSpec = QueuedSpec()


def gated(pod: Pod) -> bool:
    """Whether our gate holds the pod back."""
    return any(gate.name == GATE for gate in pod.spec.scheduling_gates or ())


def gated_by_others(pod: Pod) -> bool:
    return any(gate.name != GATE for gate in pod.spec.scheduling_gates or ())


def nominated_by_us(pod: Pod) -> str:
    """The node that we nominated, if that nomination is still in place; else ""."""
    said = (pod.metadata.annotations or {}).get(NOMINATED, "")
    return said if said == pod.status.nominated_node_name else ""


def nomination(pod: Pod, node: str) -> dict[str, object]:
    """The status patch that nominates a node, for this UID only; for a pod that kube-scheduler may be handling, also
    for this resourceVersion only, so that a pod that is already bound is not nominated."""
    meta: dict[str, object] = {"uid": pod.metadata.uid, "annotations": {NOMINATED: node}}
    if not gated(pod) and pod.metadata.resource_version:
        meta["resourceVersion"] = pod.metadata.resource_version
    return {"metadata": meta, "status": {"nominatedNodeName": node}}


def no_nomination(pod: Pod) -> dict[str, object]:
    """The status patch that withdraws our nomination, if the pod has not changed since."""
    meta: dict[str, object] = {"uid": pod.metadata.uid, "annotations": {NOMINATED: None}}
    if pod.metadata.resource_version:
        meta["resourceVersion"] = pod.metadata.resource_version
    return {"metadata": meta, "status": {"nominatedNodeName": None}}


def without_gate(pod: Pod) -> dict[str, object]:
    """The strategic merge patch that removes our gate and leaves other gates."""
    return {
        "metadata": {"uid": pod.metadata.uid},
        "spec": {"schedulingGates": [{"$patch": "delete", "name": GATE}]},
    }


def without_gates(pod: Pod) -> dict[str, object]:
    """The merge patch that removes all gates, for a pod that has only ours, since gates are never added later. It does
    not make the API server merge lists by key."""
    return {"metadata": {"uid": pod.metadata.uid}, "spec": {"schedulingGates": None}}


def for_the_scheduler(pod: QueuedPod) -> str:
    """A request of the pod that only kube-scheduler can judge; empty if there is none."""
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
