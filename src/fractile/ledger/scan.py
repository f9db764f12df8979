"""Which of many nodes can serve a pod: one numpy pass over all cards, then exact checks only where they are needed.

A ``Need`` is a necessary condition on a node; for the common pods (memory on one card, or whole cards) it is also
sufficient, and no node is looked at one by one. Shapes: arrays of CardArrays are (slots, columns), results (columns,).
"""

import msgspec
import numpy as np

from fractile.ledger.arrays import Bools, CardArrays, Ints
from fractile.model.request import PodRequest
from fractile.policy.cards import cards_needed, peak_memory, shares_one_card

_MAX = 2**41  # MiB; larger than any card, and sums and products of it stay inside int64


class Need(msgspec.Struct, frozen=True):
    """What a node must offer: ``one_card`` MiB free on one card, ``total`` MiB in all, ``whole`` unused cards."""

    one_card: int
    total: int
    whole: int
    exact: bool  # the condition is sufficient as well


def need_of(request: PodRequest) -> Need:
    by_memory = [c for c in request.containers if not c.request.exclusive]
    by_card = [c for c in request.containers if c.request.exclusive]
    peak = peak_memory(by_memory)
    together = not by_memory or shares_one_card(by_memory)
    largest = max((c.request.memory for c in by_memory), default=0)
    return Need(
        one_card=min(peak if together else largest, _MAX),
        total=min(peak, _MAX),
        whole=min(cards_needed(by_card), _MAX),
        exact=together and not (by_memory and by_card),
    )


def now(arrays: CardArrays, need: Need) -> Bools:
    """Nodes that meet the need with what is free."""
    return _meets(need, arrays.free, arrays.node_free, arrays.idle)


def ever(arrays: CardArrays, need: Need) -> Bools:
    """Nodes that would meet it if they were empty."""
    return _meets(need, arrays.memory, arrays.node_memory, arrays.memory > 0)


def best_first(arrays: CardArrays, columns: Ints, at_least: int) -> Ints:
    """The columns ordered for filling one node before the next: most used first, then by column.

    Only the first ``at_least`` are promised to be there, unless fewer were given.
    """
    used = (arrays.node_memory[columns] - arrays.node_free[columns]) / np.maximum(arrays.node_memory[columns], 1)
    if len(columns) > 4 * at_least:
        top = np.argpartition(-used, at_least)[:at_least]
        top.sort()
        columns, used = columns[top], used[top]
    return columns[np.argsort(-used, kind="stable")]


def _meets(need: Need, free: Ints, node_free: Ints, idle: Bools) -> Bools:
    meets = np.ones(free.shape[1], np.bool_)
    if need.one_card > 0:
        meets &= np.any(free >= need.one_card, axis=0)
    if need.total > need.one_card:
        meets &= node_free >= need.total
    if need.whole > 0:
        meets &= idle.sum(axis=0) >= need.whole
    return meets
