"""Which of many nodes can serve a pod: a numpy pass over all nodes, then exact checks only where they are needed.

A ``Need`` is a necessary condition on a node; for the common pods (parts of one card, or whole cards) it is also
sufficient, so that no node is checked individually. Memory and unused cards are judged by the nodes' digests,
everything else by a pass over all cards. Results have the shape (columns,).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec
import numpy as np

from fractile.ledger.arrays import Bools, CardArrays, CardLayer, Ints
from fractile.ledger.layers import KeptLayer
from fractile.model.request import ANY, ContainerRequest, PodRequest, Role, Selector
from fractile.model.units import WHOLE, MiB
from fractile.policy.cards.parts import Peak, SharedCard, card_numbers, parts_of, peak
from fractile.wire.fractile.placement import MAX_SLICES

_MAX = 2**41  # MiB; larger than any card. Larger amounts are capped, so that sums and products fit in int64
_MAX_CARDS = 2**13  # more than a node can report
_ALIKE = 256  # container tuples whose need is cached
_HEADS = 4  # read this many times the wanted number of columns first


class Cards(msgspec.Struct, frozen=True):
    """A need that only a check of every card can judge: ``count`` admitted cards, each with so much free.

    Memory is ``memory`` MiB plus ``percent`` of the card's memory; ``whole``: unused cards.
    """

    count: int = 1
    memory: int = 0
    percent: int = 0
    cores: int = 0
    coreless: bool = False
    slots: int = 0
    whole: bool = False
    selector: Selector = ANY


class Need(msgspec.Struct, frozen=True):
    """What a node must offer: ``one_card`` MiB free on one card, ``total`` MiB in all, ``whole`` unused cards.

    ``percent``: what the pod takes in addition, in percent of a card's memory; it decides nothing.
    """

    one_card: int
    total: int
    whole: int
    exact: bool  # the condition is sufficient as well
    cards: tuple[Cards, ...] = ()
    percent: int = 0


def need_of(request: PodRequest) -> Need:
    """The pod's need of cards. All its requests must be for GPUs, or be represented as such
    (``policy.cards.kinds``)."""
    containers = request.containers
    # Pods of a workload share one cached result. Members of a class change too often to be cached.
    return _alike(containers) if all(c.request.selector.members is None for c in containers) else _need_of(containers)


def _need_of(containers: tuple[ContainerRequest, ...]) -> Need:
    if any(c.request.count > MAX_SLICES for c in containers):
        return Need(0, 0, _MAX_CARDS, exact=True)
    parts = parts_of(containers, card_numbers(containers))
    shared = [p for p in parts if not p.whole]
    whole = [p for p in parts if p.whole]
    peaks = [peak(p.containers, MiB(0)) for p in shared]
    total, percent = _sums([c for c in containers if not c.request.exclusive])
    return Need(
        one_card=min(max((p.memory for p in peaks), default=0), _MAX),
        total=min(total, _MAX),
        whole=len(whole),
        exact=_exact(shared, whole),
        cards=_special_cards(shared, peaks, whole) if _special(parts) else (),
        percent=percent,
    )


_alike = lru_cache(maxsize=_ALIKE)(_need_of)


def _special_cards(
    shared: Sequence[SharedCard], peaks: Sequence[Peak], whole: Sequence[SharedCard]
) -> tuple[Cards, ...]:
    found = (*map(_cards, shared, peaks), *_whole(whole))
    return found if len(found) == 1 else tuple(dict.fromkeys(found))


def _sums(containers: Sequence[ContainerRequest]) -> tuple[int, int]:
    """Peak of the total memory, in MiB and in percent of a card."""
    memory = percent = most_memory = most_percent = 0
    for c in containers:
        now = memory + c.request.memory * c.request.count, percent + c.request.memory_percent * c.request.count
        most_memory, most_percent = max(most_memory, now[0]), max(most_percent, now[1])
        if c.role is not Role.INIT:
            memory, percent = now
    return most_memory, most_percent


def _exact(shared: Sequence[SharedCard], whole: Sequence[SharedCard]) -> bool:
    """Whether the cards of the pod can be judged one by one."""
    parts = [*shared, *whole]
    if len(parts) == 1 and len(parts[0].containers) == 1:
        return True
    containers = {c for p in (*shared, *whole) for c in p.containers}
    if (shared and whole) or len({c.request.selector for c in containers}) > 1:
        return False
    if whole:
        return all(c.request.exclusive for c in containers)
    return len(containers) == 1 or (len(shared) == 1 and not any(c.request.memory_percent for c in containers))


def _special(parts: Sequence[SharedCard]) -> bool:
    """Whether the digest of a node cannot judge the parts."""
    if any(p.containers == q.containers for p, q in pairwise(p for p in parts if not p.whole)):
        return True
    return any(
        c.request.memory_percent
        or (c.request.cores and not c.request.exclusive)
        or (c.request.slots and not c.request.exclusive)  # an unused card has all of its slots
        or c.request.selector != ANY
        for p in parts
        for c in p.containers
    )


def _cards(part: SharedCard, need: Peak) -> Cards:
    first = part.containers[0].request
    percent = max(c.request.memory_percent for c in part.containers)
    return Cards(
        count=first.count if len(part.containers) == 1 else 1,
        # Containers that do not run at the same time: neither counts nor amounts add up.
        memory=min(need.memory, _MAX) if len(part.containers) == 1 or not percent else 0,
        percent=percent,
        cores=min(need.cores, _MAX),
        coreless=need.coreless,
        slots=min(need.slots, _MAX),
        selector=first.selector,
    )


def _whole(parts: Sequence[SharedCard]) -> Iterator[Cards]:
    """The unused cards for all whole parts with the same selector together."""
    counts = Counter(p.containers[0].request.selector for p in parts)
    return (Cards(count=count, whole=True, selector=selector) for selector, count in counts.items())


def now(arrays: CardArrays, need: Need) -> Bools:
    """Nodes that meet the need with what is free now."""
    digests = tuple(map(_digest, need.cards))
    if len(digests) == 1 and digests[0] is not None and need.total <= need.one_card:
        return digests[0] >= _least(need.cards[0])  # the digest of all cards is a weaker condition
    meets = _meets(need, arrays.most_free, arrays.node_free, arrays.unused)
    for cards, digest in zip(need.cards, digests, strict=True):
        if digest is not None:
            meets &= digest >= _least(cards)
            continue
        room = arrays.idle[:, : arrays.width] if cards.whole else _room(arrays, cards)
        meets[: arrays.width] &= _count(room & _admitted(arrays, cards.selector), cards.count)
    return meets


def ever(arrays: CardArrays, need: Need) -> Bools:
    """Nodes that would meet the need if they were empty."""
    meets = _meets(need, arrays.largest, arrays.node_memory, arrays.cards)
    for cards in need.cards:
        memory = arrays.memory[:, : arrays.width]
        large = (memory >= _memory(arrays, cards)) & (memory > 0)
        if cards.cores + cards.coreless > WHOLE:
            large[:] = False
        meets[: arrays.width] &= _count(large & _admitted(arrays, cards.selector), cards.count)
    return meets


def _least(cards: Cards) -> int:
    """The least value of the digest that meets the need."""
    return cards.count if cards.whole else cards.memory


def _digest(cards: Cards) -> Ints | None:
    """The digest, by node, that decides the need, if its cards are a kept layer."""
    members = cards.selector.members
    if not isinstance(members, KeptLayer) or cards.selector is not members.selector:
        return None
    if cards.whole:
        return members.unused
    plain = cards.count == 1 and cards.memory and not (cards.cores or cards.percent or cards.slots)
    return members.usable if plain else None


def _room(arrays: CardArrays, cards: Cards) -> Bools:
    """Cells up to ``width`` where the need fits; a cell without a card has -1 free, so nothing fits there."""
    width = arrays.width
    room: Bools
    if cards.cores or cards.percent or not cards.memory:
        free_cores = arrays.spare_cores[:, :width]
        if cards.coreless:
            free_cores = arrays.free_cores[:, :width] - 1
        room = (arrays.free[:, :width] >= _memory(arrays, cards)) & (free_cores >= cards.cores)
    else:
        room = arrays.usable[:, :width] >= cards.memory
    return room & (arrays.free_slots[:, :width] >= cards.slots) if cards.slots else room


def _memory(arrays: CardArrays, cards: Cards) -> Ints | int:
    if not cards.percent:
        return cards.memory
    memory: Ints = arrays.memory[:, : arrays.width]
    return memory * cards.percent // 100 + cards.memory


def _count(cards: Bools, count: int) -> Bools:
    if count == 1:
        some: Bools = np.logical_or.reduce(cards, axis=0)
        return some
    found: Ints = cards.sum(axis=0)
    return found >= count


def _admitted(arrays: CardArrays, selector: Selector) -> Bools | np.bool_:
    """Cells up to ``width`` that the selector admits; just True when it admits all."""
    width = arrays.width
    if selector == ANY:
        return np.True_
    if isinstance(selector.members, KeptLayer) and selector is selector.members.selector:
        return selector.members.mask[:, :width]
    admitted: Bools = np.ones((len(arrays.memory), width), np.bool_)
    if selector.models or selector.not_models:
        of_model = np.fromiter(map(selector.admits_model, arrays.models), np.bool_, len(arrays.models))
        admitted = of_model[arrays.model[:, :width]] if arrays.models else ~admitted
    if isinstance(selector.members, CardLayer):
        admitted &= selector.members.mask[:, :width]
    elif selector.members is not None:
        for uuid, cell in arrays.cells.items():
            admitted[cell] &= uuid in selector.members
    if selector.cards:
        named = np.zeros(admitted.shape, np.bool_)
        for cell in filter(None, map(arrays.cells.get, selector.cards)):
            named[cell] = True
        admitted &= named
    for cell in filter(None, map(arrays.cells.get, selector.not_cards)):
        admitted[cell] = False
    return admitted


def carried(meets: Bools, source: CardArrays, target: CardArrays) -> Bools:
    """Nodes given as columns of ``source``, as columns of ``target``."""
    names = [name for column in meets.nonzero()[0].tolist() if (name := source.names[column]) is not None]
    columns = target.find_all(names, len(names))
    found = np.zeros(len(target.names), np.bool_)
    found[columns[columns >= 0]] = True
    return found


def best_first(arrays: CardArrays, columns: Ints, most: int, *, emptiest: bool = False) -> Ints:
    """At most ``most`` of the columns: the fullest first, to fill one node before the next, or the emptiest first; ties
    by column.

    Fullness is compared in 1/1000, which avoids sorting 5,000 nodes to find the best 200: a quarter of the time.
    """
    fullness = 1000 - arrays.fullness[columns] if emptiest else arrays.fullness[columns]
    if len(columns) > most:
        at_least = np.bincount(fullness, minlength=1001)[::-1].cumsum()  # i: how many are at 1000 - i or above
        limit = 1000 - int(at_least.searchsorted(most))
        above = (fullness > limit).nonzero()[0]
        chosen = np.concatenate((above, (fullness == limit).nonzero()[0][: most - len(above)]))
        columns, fullness = columns[chosen], fullness[chosen]
    return columns[np.argsort(-fullness, kind="stable")]


def first_in_order(order: Ints, wanted: Bools, most: int) -> Ints:
    """At most ``most`` of the wanted columns, in a known order of which usually only the head is read."""
    head = _HEADS * most
    found: Ints = order[:head]
    found = found[wanted[found]]
    if len(found) < most and head < len(order):
        found = order[wanted[order]]
    return found[:most]


def largest_first(value: Ints, columns: Ints, most: int) -> Ints:
    """At most ``most`` of the columns: those with the largest value first, ties by column."""
    mine = value[columns]
    if len(columns) > most:
        limit = np.partition(mine, len(mine) - most)[len(mine) - most]
        above = (mine > limit).nonzero()[0]
        chosen = np.concatenate((above, (mine == limit).nonzero()[0][: most - len(above)]))
        columns, mine = columns[chosen], mine[chosen]
    return columns[np.lexsort((columns, -mine))]


def _meets(need: Need, on_one: Ints, in_all: Ints, whole: Ints) -> Bools:
    meets = on_one >= need.one_card
    if need.whole > 0:
        meets &= whole >= need.whole
    if need.total > need.one_card:
        meets &= in_all >= need.total
    return meets
