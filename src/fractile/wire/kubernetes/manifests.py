"""Kubernetes manifests as the planner reads them, with more fields than in ``objects``, since it must find where a pod
could run; and the short form of a list of nodes.

    nodes:
      - {name: gpu, count: 4, cpu: 64, memory: 256Gi, gpus: 8, model: A100, card_memory: 80Gi}
"""

from typing import Any

import msgspec

from fractile.wire.kubernetes.objects import KubeStruct, Node, ObjectMeta, Pod, PodSpec


class Taint(KubeStruct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(KubeStruct, frozen=True):
    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


class PlannedNodeSpec(KubeStruct, frozen=True):
    unschedulable: bool = False
    taints: list[Taint] | None = None


class PlannedNode(Node, frozen=True):
    spec: PlannedNodeSpec = PlannedNodeSpec()


class Expression(KubeStruct, frozen=True):
    """An expression of a label selector or of a node selector."""

    key: str
    operator: str
    values: list[str] | None = None


class NodeTerm(KubeStruct, frozen=True):
    match_expressions: list[Expression] | None = None
    match_fields: list[Expression] | None = None


class NodeTerms(KubeStruct, frozen=True):
    node_selector_terms: list[NodeTerm] | None = None


class NodeAffinity(KubeStruct, frozen=True):
    required: NodeTerms | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class OtherAffinity(KubeStruct, frozen=True):
    """Affinity between pods: reported, but not used in plans."""

    required: list[Any] | None = msgspec.field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(KubeStruct, frozen=True):
    node_affinity: NodeAffinity | None = None
    pod_affinity: OtherAffinity | None = None
    pod_anti_affinity: OtherAffinity | None = None


class PlannedPodSpec(PodSpec, frozen=True):
    node_selector: dict[str, str] | None = None
    affinity: Affinity | None = None
    tolerations: list[Toleration] | None = None
    topology_spread_constraints: list[Any] | None = None
    overhead: dict[str, Any] | None = None


class PlannedPod(Pod, frozen=True):
    spec: PlannedPodSpec = PlannedPodSpec()


class Template(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: PlannedPodSpec = PlannedPodSpec()


class WorkloadSpec(KubeStruct, frozen=True):
    """The spec of a Deployment, ReplicaSet or StatefulSet, or of a Job, whose number of pods is ``parallelism``."""

    template: Template
    replicas: int | None = None
    parallelism: int | None = None


class Workload(KubeStruct, frozen=True):
    spec: WorkloadSpec
    metadata: ObjectMeta = ObjectMeta()


class LabelSelector(KubeStruct, frozen=True):
    match_labels: dict[str, str] | None = None
    match_expressions: list[Expression] | None = None


class DisruptionSpec(KubeStruct, frozen=True):
    selector: LabelSelector | None = None
    min_available: int | str | None = None
    max_unavailable: int | str | None = None


class DisruptionStatus(KubeStruct, frozen=True):
    disruptions_allowed: int = 0


class DisruptionBudget(KubeStruct, frozen=True):
    """``policy/v1`` PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DisruptionSpec = DisruptionSpec()
    status: DisruptionStatus | None = None


class NodesOfAKind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the short form: ``count`` nodes, numbered after the name if there are several."""

    name: str
    cpu: Any
    memory: Any
    count: int = 1
    gpus: int = 0
    model: str = ""
    card_memory: Any = 0
    labels: dict[str, str] | None = None


class ManifestNodes(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    nodes: list[NodesOfAKind]
