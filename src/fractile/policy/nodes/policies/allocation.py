"""kube-scheduler's scores as policies: CPU, memory and GPUs with equal weight, ignoring single devices."""

from collections.abc import Callable, Sequence

from fractile.policy.nodes import kubernetes
from fractile.policy.nodes.kubernetes import Resource, Rounding
from fractile.policy.nodes.policy import Policy, ScoringContext, by_node
from fractile.policy.nodes.view import WHOLE_GPU, Ints, TaskDemand, View, total_left

_NO_CPU = 100  # what counts for a container without a request, thousandths
_NO_MEMORY = 200  # MiB

Scorer = Callable[[Sequence[Resource], Rounding], Ints]


def resources(view: View, ask: TaskDemand) -> tuple[Resource, ...]:
    """The resources as kube-scheduler counts them; GPUs count only for a pod that requests some, as in its scores."""
    cpu = Resource(view.cpu - view.cpu_left + (ask.cpu or _NO_CPU), view.cpu)
    memory = Resource(view.memory - view.memory_left + (ask.memory or _NO_MEMORY), view.memory)
    if not ask.gpus:
        return cpu, memory
    capacity = view.gpus * WHOLE_GPU
    return cpu, memory, Resource(capacity - total_left(view) + ask.total, capacity)


def policy(score: Scorer, rounding: Rounding) -> Policy:
    """The row of the table for one scorer."""

    def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
        return score(resources(view, ask), rounding)

    return Policy(by_node(values), memory=True)


def ratio(resources: Sequence[Resource], rounding: Rounding) -> Ints:
    """RequestedToCapacityRatio with the shape of bin packing: fuller is better."""
    return kubernetes.requested_to_capacity_ratio(resources, rounding=rounding)
