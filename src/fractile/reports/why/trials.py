"""Whether the filter accepts the pod after a change. Unlike the planner, which proposes the changes, the filter knows
quotas, sharing rules and classes."""

from collections.abc import Sequence

import msgspec

from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest, Selector
from fractile.reports.why.cluster import ClusterView
from fractile.sim.snapshot.cluster_snapshot import Machine
from fractile.wire.kubernetes.objects import Container, ResourceRequirements
from fractile.wire.kubernetes.why_objects import ObservedPod
from fractile.wire.output.plan import PodChange

ONE_MORE_NODE = "one-more-node"
_DROP_MODEL = "drop-model"
_OTHER_AMOUNTS = ("smaller-part", "fewer-gpus")


def refused_after(
    change: PodChange, cluster: ClusterView, pod: ObservedPod, shapes: Sequence[tuple[str, Machine]]
) -> str:
    """Why the filter still refuses the pod after the change; "" if it does not. ``shapes``: nodes that may be added."""
    request = _changed(change, cluster, pod)
    if isinstance(request, Refusal):
        return request.message
    if request is None:
        return (
            "its amounts cannot be checked against quotas and the rules of how cards may be cut"
            if cluster.bounded
            else ""
        )
    if change.change == ONE_MORE_NODE:
        return cluster.refused_on_new(request, dict(shapes)[change.node])
    return cluster.refused_on(request, change.node)


def _changed(change: PodChange, cluster: ClusterView, pod: ObservedPod) -> PodRequest | Refusal | None:
    """The request after the change; None where it is unknown."""
    if not isinstance(cluster.request, PodRequest):
        return None
    if change.change == _DROP_MODEL:
        free = tuple(map(_of_any_model, cluster.request.containers))
        return msgspec.structs.replace(cluster.request, containers=free)
    if change.change not in _OTHER_AMOUNTS:
        return cluster.request
    gpus = cluster.request.gpus
    if change.amounts and len(gpus) == 1:
        return cluster.request_of(_rewritten(pod, gpus[0], change.amounts))
    return None


def _of_any_model(asked: ContainerRequest) -> ContainerRequest:
    """The request for any model of card; a class still restricts it to the class's cards."""
    selector = Selector(members=asked.request.selector.members)
    return msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, selector=selector))


def _rewritten(pod: ObservedPod, asked: ContainerRequest, amounts: dict[str, int]) -> ObservedPod:
    """The pod with these amounts in the container that makes the request."""

    def written(containers: Sequence[Container] | None) -> list[Container]:
        return [_with(c, amounts) if c.name == asked.container else c for c in containers or ()]

    spec = msgspec.structs.replace(
        pod.spec, containers=written(pod.spec.containers), init_containers=written(pod.spec.init_containers)
    )
    return msgspec.structs.replace(pod, spec=spec)


def _with(container: Container, amounts: dict[str, int]) -> Container:
    named = container.resources or ResourceRequirements()
    requests = {r: v for r, v in (named.requests or {}).items() if r not in amounts}
    limits = {r: v for r, v in (named.limits or {}).items() if r not in amounts}
    limits |= {r: str(n) for r, n in amounts.items() if n}
    return msgspec.structs.replace(container, resources=ResourceRequirements(limits=limits, requests=requests))
