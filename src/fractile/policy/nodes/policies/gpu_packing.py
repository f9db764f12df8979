"""Used GPUs before free ones, free ones of used nodes before those of empty nodes (the FGD paper's GpuPacking)."""

import numpy as np

from fractile.policy.nodes.devices import tightest
from fractile.policy.nodes.policy import Policy, ScoringContext, by_node, level
from fractile.policy.nodes.view import WHOLE_GPU, Ints, TaskDemand, View


def values(view: View, ask: TaskDemand, scoring: ScoringContext) -> Ints:
    """51..100 on GPUs in use: less for each tenth that is free there. 34..49 with free GPUs: less for each of them.
    Below 34 on a node without pods on GPUs: less the more GPUs it has. Pods without GPUs: 0 everywhere."""
    if not ask.gpus:
        return level(view)
    free = (view.gpu_left == WHOLE_GPU).sum(axis=1)
    opens, left = _needed(view, ask)
    on_used = np.maximum(100 - left // 10 // 10, 50)
    on_free = np.maximum(50 - opens, 33)
    empty = np.maximum(33 - free, free)
    return np.where(free == view.gpus, empty, np.where(opens > 0, on_free, on_used))


def _needed(view: View, ask: TaskDemand) -> tuple[Ints, Ints]:
    """How many free GPUs the pod would open when it takes the fullest ones, and what is left on the one it shares."""
    if not ask.shares:
        return np.full(len(view.number), ask.gpus, np.int64), level(view)
    device = np.maximum(tightest(view, ask, 0), 0)
    left = view.gpu_left[np.arange(len(device)), device]
    return (left == WHOLE_GPU).astype(np.int64), left


POLICY = Policy(by_node(values))
