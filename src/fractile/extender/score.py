"""Step 3: how good each fitting node is, 0 .. 10. Reads the ledger, changes nothing.

``binpack`` fills one node before the next (most allocated): the share of the node's GPU memory that would be in use
with the pod on it. ``spread`` is the share that would stay free. Other policies (``extender.engine``) score all nodes
together; here their scores become 10 for the best and its equals, and 0 .. 9 for the others by their distance.
kube-scheduler multiplies by the extender's weight and adds its own scores.
"""

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np

from fractile.extender.engine import Coming, NodeScores
from fractile.ledger import scan
from fractile.ledger.arrays import CardArrays, Ints
from fractile.ledger.ledger import Ledger
from fractile.model.card import DeviceKind
from fractile.model.request import PodRequest
from fractile.policy.cards import kinds
from fractile.policy.nodes.view import NEVER

MAX_SCORE = 10
BINPACK = "binpack"
SPREAD = "spread"
NONE = "none"  # kube-scheduler decides alone
POLICIES = (BINPACK, SPREAD, NONE)


class Ranking(msgspec.Struct, frozen=True):
    """A score for every requested name, in that order; the first of the best; and the MiB that the pod would take
    there, or what a policy expects it to take."""

    scores: Ints
    best: str = ""
    memory: int = 0
    coming: Coming | None = None


def spreads(request: PodRequest, cluster: str) -> bool:
    """Whether emptier nodes are better for the pod; an unknown policy means the cluster's."""
    own = next((c.request.node_policy for c in request.containers if c.request.node_policy in POLICIES), cluster)
    return own == SPREAD


def rank(
    request: PodRequest,
    names: Sequence[str],
    ledger: Ledger,
    expected: Iterable[tuple[str, int]] = (),
    policy: str = BINPACK,
) -> Ranking:
    """Score the nodes by their devices of the first kind that the pod asks for; those without score 0.

    ``expected`` are nodes and MiB of pods that were just scored and are not bound yet.
    """
    if not names or policy == NONE:
        return Ranking(np.zeros(len(names), np.int64))
    kind, part = kinds.parts(request)[0]
    if kind is DeviceKind.GPU:
        return _rank(part, names, ledger.arrays, expected, policy)
    return msgspec.structs.replace(_rank(part, names, ledger.arrays_of(kind), (), policy), memory=0)


def rank_by(standing: NodeScores, names: Sequence[str], ledger: Ledger) -> Ranking | None:
    """Score the nodes by a policy; None when it sees room on none of them."""
    columns = ledger.arrays.find_all(names, len(names))
    value = np.where(columns >= 0, standing.value[columns], NEVER)
    best = int(value.argmax())
    if value[best] == NEVER:
        return None
    return Ranking(scaled(value), names[best], coming=standing.coming(names[best], int(columns[best])))


def scaled(value: Ints) -> Ints:
    """10 for the largest value, less for all others in steps of equal size, 0 for NEVER."""
    there = value != NEVER
    most = int(value.max())
    least = int(value[there].min())
    step = (most - least) // MAX_SCORE + 1
    scores = np.minimum((np.where(there, value, least) - least) // step, MAX_SCORE - 1)
    return np.where(value == most, MAX_SCORE, scores) * there


def _rank(
    request: PodRequest, names: Sequence[str], arrays: CardArrays, expected: Iterable[tuple[str, int]], policy: str
) -> Ranking:
    columns = arrays.find_all(names, len(names))
    total = arrays.node_memory[columns]
    need = scan.need_of(request)
    per_card = total // arrays.cards[columns].clip(min=1)
    takes = need.total + need.whole * per_card + need.percent * per_card // 100
    used = total - arrays.node_free[columns] + takes + _coming(arrays, expected)[columns]
    # Rounded to the nearest step: with few steps equal nodes stay equal, and kube-scheduler's own scores decide.
    steps = (2 * MAX_SCORE * used + total) // (2 * total).clip(min=1)
    filled = steps.clip(0, MAX_SCORE)
    scores = (MAX_SCORE - filled if spreads(request, policy) else filled) * (columns >= 0)
    best = int(scores.argmax())
    return Ranking(scores, names[best], int(takes[best]))


def _coming(arrays: CardArrays, expected: Iterable[tuple[str, int]]) -> Ints:
    coming = np.zeros(len(arrays.names), np.int64)
    for node, memory in expected:
        column = arrays.find(node)
        if column >= 0:
            coming[column] += memory
    return coming
