"""Step 3: how good each fitting node is, 0 .. 10. Reads the ledger, changes nothing.

Fill one node before the next (most allocated): the share of the node's GPU memory that would be in use with the pod
on it. kube-scheduler multiplies by the extender's weight and adds its own scores.
"""

from fractile.ledger import scan
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.wire.extender import HostPriority

MAX_SCORE = 10


def score_nodes(request: PodRequest | Refusal | None, names: list[str], ledger: Ledger) -> list[HostPriority]:
    """A score for every name asked; nodes without cards and pods without a request score 0."""
    if not isinstance(request, PodRequest):
        return [HostPriority(name, 0) for name in names]
    arrays = ledger.arrays
    columns = arrays.find_all(names, len(names))
    asked = scan.need_of(request).total
    total = arrays.node_memory[columns]
    used = total - arrays.node_free[columns] + asked
    # Rounded to the nearest step, and never above the top: a pod that no longer fits must not score more than one
    # that fills the node.
    steps = (2 * MAX_SCORE * used + total) // (2 * total).clip(min=1)
    scores = steps.clip(0, MAX_SCORE) * (columns >= 0) * (total > 0)
    return [HostPriority(name, score) for name, score in zip(names, scores.tolist(), strict=True)]
