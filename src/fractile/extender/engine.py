"""Run the policies of ``policy.nodes.policies`` on the live cluster: the score of every node for one pod.

    ledger, CPU and memory ──> Live.view ──┐
    pods seen ──> mix ──> scoring ─────────┼──> a ScoreCache per policy in use ──> NodeScores, by column of the ledger
    the pod ──> wish ──> ask by card size ─┘

A ``ScoreCache`` keeps its scores, so a decision scores only nodes that changed since such a pod was last served; the
simulator does the same with the same code. Where the cluster has cards of several sizes, a pod that asks for MiB is a
different request on each size; each node's score is then the one for its own size.
"""

from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache
from typing import TypeVar

import msgspec
import numpy as np

from fractile.ledger.ledger import Ledger
from fractile.ledger.live import Live
from fractile.ledger.node_totals import NodeTotals
from fractile.model.pod_demand import PodDemand
from fractile.policy.nodes.asked import asked, expressible
from fractile.policy.nodes.candidates import lowest
from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.policies.table import find
from fractile.policy.nodes.policy import Policy, ScoringContext
from fractile.policy.nodes.prices import Prices, prices_of
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import (
    NEVER,
    NO_DEVICE,
    WHOLE_GPU,
    Flags,
    Ints,
    Scores,
    TaskDemand,
    View,
    feasible,
    roomy,
)

T = TypeVar("T")
_BOARDS = 4  # policies in use at a time; bounded because pods may name any policy
_CLASSES = 128  # kinds of pods whose scores a ``ScoreCache`` keeps: 16 bytes a node each
_WARM = 16  # kinds of pods per policy whose scores are precomputed when the expected pods change
_KINDS = 4  # kinds of pods whose scores are kept up to date in advance
_Key = tuple[str, PodDemand]
NOTHING_EXPECTED = Mix((), ())


class Coming(msgspec.Struct, frozen=True):
    """A pod that was just scored and will probably be bound to that node: ``device`` -1 for whole GPUs."""

    node: str
    ask: TaskDemand
    device: int


class NodeScores(msgspec.Struct, frozen=True):
    """By column of the ledger: the larger the better, NEVER where the policy sees no room; and the slot of the card for
    a part of one. ``size``: of the node's cards, for ``asked``. ``order``: the columns, the best first, ties by column,
    if it was computed in advance."""

    value: Ints
    device: Ints
    size: Ints
    wish: PodDemand
    order: Ints | None = None

    def coming(self, node: str, column: int) -> Coming | None:
        """The pod as it is to be expected on the node if it goes there."""
        ask = asked(self.wish, int(self.size[column]))
        return None if ask is None else Coming(node, ask, int(self.device[column]))


class Prepared:
    """Scores for another scoring context, computed on a copy of the nodes so that another thread may do it."""

    def __init__(
        self,
        origin: View,
        view: View,
        scoring: ScoringContext,
        policies: dict[str, Policy],
        asked: dict[str, list[TaskDemand]],
    ) -> None:
        self.origin = origin
        self.scoring = scoring
        self.score_caches = OrderedDict(
            (text, ScoreCache(view, policy, scoring, classes=_CLASSES)) for text, policy in policies.items()
        )
        self._asked = asked

    def warm(self) -> None:
        """Score all nodes for the most recent kinds of pods."""
        for text, score_cache in self.score_caches.items():
            for ask in self._asked[text]:
                score_cache.scores(ask, 0)


class Engine:
    """One per ledger."""

    def __init__(self, ledger: Ledger, totals: NodeTotals, mix: Mix = NOTHING_EXPECTED) -> None:
        self._arrays = ledger.arrays
        self._live = Live(ledger.arrays, totals)
        self._mix = mix
        self._prices = prices_of(mix)
        self._scoring: ScoringContext | None = None
        self._score_caches: OrderedDict[str, ScoreCache] = OrderedDict()  # the one used last at the end
        self._kept: OrderedDict[_Key, NodeScores] = OrderedDict()  # valid until something changes
        self._since: set[int] = set()  # rows that changed since the last ``prepare``
        self._served: OrderedDict[_Key, None] = OrderedDict()  # the most recent kinds of pods

    @property
    def mix(self) -> Mix:
        """The expected pods."""
        return self._mix

    @property
    def usual_size(self) -> int:
        """MiB of the most common card size; 0 without cards."""
        self._follow()
        live = self._live
        return max(live.sizes, key=lambda size: (int(live.view.gpus[live.size == size].sum()), size), default=0)

    def prepare(self, mix: Mix, prices: Prices) -> "Prepared":
        """Scores for other expected pods, at these prices, to be computed elsewhere (``Prepared.warm``): a tenth of a
        second for each kind of pods on 5,000 nodes."""
        self._follow()
        self._mix, self._prices = mix, prices
        asked = {text: score_cache.asked()[-_WARM:] for text, score_cache in self._score_caches.items()}
        policies = {text: policy for text in asked if (policy := known(text)) is not None}
        self._since = set()
        return Prepared(self._live.view, _copied(self._live.view), self._scoring_now(), policies, asked)

    def expect(self, prepared: "Prepared") -> None:
        """Use the prepared scores from now on."""
        self._follow()
        if prepared.origin is not self._live.view:
            self._begin()
            return
        self._scoring = prepared.scoring
        self._kept.clear()
        self._score_caches = prepared.score_caches
        for score_cache in self._score_caches.values():
            score_cache.move(self._live.view)
            for row in self._since:
                score_cache.changed(row)

    def outdated(self) -> bool:
        """Whether GPUs came or went, so that the scarcity and the largest node that the scores use are out of date."""
        self._follow()
        return self._scoring is not None and not _same(self._scoring, self._scoring_now())

    def standing(self, policy: str, wish: PodDemand, *, draw: int, coming: Sequence[Coming] = ()) -> NodeScores | None:
        """The policy's scores of all nodes; None where it has no opinion: it is unknown, there are no cards, or the pod
        asks for no card or for parts of several. ``draw``: for policies that draw lots."""
        found = known(policy)
        self._follow()
        if found is None or not self._live.sizes or not wish.asks:
            return None
        key = policy, wish
        kept = None if coming else self._kept.get(key)
        if kept is not None:
            return kept
        by_size = {size: ask for size in self._live.sizes if (ask := asked(wish, size)) is not None}
        if not by_size or not all(map(expressible, by_size.values())):
            return None
        scores = self._scores(policy, found, by_size, draw)
        if coming:
            scores = self._with(coming, found, by_size, draw, scores)
        standing = NodeScores(scores.value, scores.device, self._live.size, wish)
        if not (coming or found.fresh):
            _put_last(self._kept, key, standing, _KINDS)
            _put_last(self._served, key, None, _KINDS)
        return standing

    def room(self, cpu: int, memory: int) -> Flags:
        """By column: whether CPU (thousandths), memory (MiB) and the number of pods leave room for one more."""
        self._follow()
        view = self._live.view
        return (view.cpu_left >= cpu) & (view.memory_left >= memory) & (view.slots_left > 0)

    def catch_up(self) -> None:
        """Update the scores for the most recent kinds of pods while no call waits for them."""
        for policy, wish in list(self._served):
            standing = self.standing(policy, wish, draw=0)
            if standing is not None and standing.order is None:
                order = np.argsort(-standing.value, kind="stable")
                self._kept[policy, wish] = msgspec.structs.replace(standing, order=order)

    def _scores(self, text: str, policy: Policy, by_size: dict[int, TaskDemand], draw: int) -> Scores:
        score_cache = self._score_cache(text, policy)
        asks = list(dict.fromkeys(by_size.values()))
        if len(asks) == 1 and len(by_size) == len(self._live.sizes):
            return score_cache.scores(asks[0], draw)
        value = np.full(len(self._live.size), NEVER, np.int64)
        device = np.full(len(self._live.size), NO_DEVICE, np.int64)
        for ask in asks:
            scores = score_cache.scores(ask, draw)
            mine = np.isin(self._live.size, [size for size, one in by_size.items() if one == ask])
            value[mine], device[mine] = scores.value[mine], scores.device[mine]
        return Scores(value, device)

    def _with(
        self, coming: Sequence[Coming], policy: Policy, by_size: dict[int, TaskDemand], draw: int, scores: Scores
    ) -> Scores:
        """The scores as they will be once the pods on their way have arrived."""
        columns = {c.node: column for c in coming if (column := self._arrays.find(c.node)) >= 0}
        rows = np.array(sorted(set(columns.values())), np.int64)
        view = self._live.view.take(rows)
        for one in coming:
            if one.node in columns:
                _take(view, int(np.searchsorted(rows, columns[one.node])), one)
        value, device = scores.value.copy(), scores.device.copy()
        scoring = msgspec.structs.replace(self._current(), draw=draw)
        for size, ask in by_size.items():
            mine = np.flatnonzero(self._live.size[rows] == size)
            part = view.take(mine)
            fresh = policy.score(part, ask, scoring)
            value[rows[mine]] = np.where(feasible(part, ask) & roomy(part, ask), fresh.value, NEVER)
            device[rows[mine]] = fresh.device
        return Scores(value, device)

    def _follow(self) -> None:
        changed = self._live.follow()
        if changed is None or self._scoring is None:
            self._begin()
            return
        rows: list[int] = changed.tolist()
        if rows:
            self._kept.clear()
            self._since.update(rows)
        for score_cache in self._score_caches.values():
            for row in rows:
                score_cache.changed(row)

    def _begin(self) -> None:
        """Discard results that belong to another view or to other expected pods."""
        self._scoring = self._scoring_now()
        self._score_caches.clear()
        self._kept.clear()

    def _scoring_now(self) -> ScoringContext:
        return scoring_of(self._live.view, self._mix, leaving=True, prices=self._prices)

    def _current(self) -> ScoringContext:
        assert self._scoring is not None, "the view was not followed"
        return self._scoring

    def _score_cache(self, text: str, policy: Policy) -> ScoreCache:
        score_cache = self._score_caches.pop(text, None)
        if score_cache is None:
            if len(self._score_caches) >= _BOARDS:
                self._score_caches.popitem(last=False)
            score_cache = ScoreCache(self._live.view, policy, self._current(), classes=_CLASSES)
        self._score_caches[text] = score_cache
        return score_cache


def known(text: str) -> Policy | None:
    """The policy of that name, or sum of several; None if unknown."""
    return _known(text) if len(text) <= _LONGEST else None


_known = lru_cache(maxsize=256)(find)
_LONGEST = 200  # characters; names come from annotations


def _put_last(into: OrderedDict[_Key, T], key: _Key, value: T, most: int) -> None:
    into[key] = value
    into.move_to_end(key)
    if len(into) > most:
        into.popitem(last=False)


def _same(one: ScoringContext, other: ScoringContext) -> bool:
    return one.largest == other.largest and np.array_equal(one.scarcity, other.scarcity)


def _copied(view: View) -> View:
    return view.take(np.arange(len(view.number)))


def _take(view: View, row: int, coming: Coming) -> None:
    """Charge one node of a copy; a card's room does not fall below zero."""
    ask, left = coming.ask, view.gpu_left[row]
    view.cpu_left[row] -= ask.cpu
    view.memory_left[row] -= ask.memory
    view.slots_left[row] -= 1
    if ask.shares and coming.device != NO_DEVICE:
        left[coming.device] = (
            max(0, int(left[coming.device]) - ask.milli) if left[coming.device] > 0 else left[coming.device]
        )
    elif not ask.shares:
        left[lowest(left[None] == WHOLE_GPU, ask.gpus)[0]] = 0
    if ask.kind is not None:
        view.kinds[row, ask.kind] += 1
