"""The policies of ``policy.score`` on the living cluster: what each makes of every node, for one pod.

    ledger, CPU and memory ──> Live.view ──┐
    pods seen ──> mix ──> situation ───────┼──> a board for each policy in use ──> Standing, by column of the ledger
    the pod ──> wish ──> ask by card size ─┘

A board keeps its scores, so a decision scores only nodes that changed since such a pod was last served: as the
simulator does, by the same code. Where cards of several sizes are in the cluster, a pod that asks for MiB is another
request on each size; nodes are then taken from the scores of their own size.
"""

import importlib
from collections import OrderedDict
from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np

from fractile.ledger.ledger import Ledger
from fractile.ledger.live import Live
from fractile.ledger.node_totals import NodeTotals
from fractile.model.wish import Wish
from fractile.policy.score.asked import asked, expressible
from fractile.policy.score.board import Board
from fractile.policy.score.candidates import lowest
from fractile.policy.score.fragmentation import forecast
from fractile.policy.score.mix import Mix
from fractile.policy.score.policy import Policy, Situation
from fractile.policy.score.prices import Prices, prices_of
from fractile.policy.score.scarcity import scarcity
from fractile.policy.score.table import find
from fractile.policy.score.view import NEVER, NO_DEVICE, WHOLE_GPU, Ask, Ints, Scores, View, feasible, largest_of, roomy

_BOARDS = 4  # policies in use at a time; pods may name what they like, so it is bounded
_CLASSES = 128  # kinds of pods that a board keeps scores of: 16 bytes a node each
NOTHING_EXPECTED = Mix((), ())


class Coming(msgspec.Struct, frozen=True):
    """A pod that was scored a moment ago and will probably be bound there: ``device`` -1 for whole GPUs."""

    node: str
    ask: Ask
    device: int


class Standing(msgspec.Struct, frozen=True):
    """By column of the ledger: the larger the better, NEVER where the policy sees no room; and the slot of the card for
    a part of one. ``size``: of the node's cards, for ``asked``."""

    value: Ints
    device: Ints
    size: Ints
    wish: Wish

    def coming(self, node: str, column: int) -> Coming:
        """What is to be expected on the node if the pod goes there."""
        return Coming(node, asked(self.wish, int(self.size[column])), int(self.device[column]))


class Engine:
    """One for a ledger. ``compiled``: with numba, which must be there."""

    def __init__(
        self, ledger: Ledger, totals: NodeTotals, mix: Mix = NOTHING_EXPECTED, *, compiled: bool = False
    ) -> None:
        self._arrays = ledger.arrays
        self._live = Live(ledger.arrays, totals)
        self._mix = mix
        self._prices = prices_of(mix)
        self._compiled = compiled
        self._situation: Situation | None = None
        self._boards: OrderedDict[str, Board] = OrderedDict()  # the one used last at the end

    @property
    def mix(self) -> Mix:
        """The pods that are expected."""
        return self._mix

    @property
    def sizes(self) -> tuple[int, ...]:
        """MiB of the cards that nodes count with, as they were when last looked at."""
        return self._live.sizes

    def expect(self, mix: Mix, prices: Prices) -> None:
        """Other pods are expected from now on, at these prices; scores begin anew."""
        self._follow()
        self._mix, self._prices = mix, prices
        self._begin()

    def outdated(self) -> bool:
        """Whether GPUs came or went, so that scarcity and the largest node are others than those that scores use."""
        self._follow()
        return self._situation is not None and not _same(self._situation, self._situation_now())

    def standing(self, policy: str, wish: Wish, *, draw: int, coming: Sequence[Coming] = ()) -> Standing | None:
        """What the policy makes of all nodes; None where it has no opinion: it is none, there are no cards, the pod
        asks for none, or for parts of several. ``draw``: for policies that draw lots."""
        found = known(policy, compiled=self._compiled)
        self._follow()
        live = self._live
        if found is None or not live.sizes or not wish.asks:
            return None
        by_size = {size: asked(wish, size) for size in live.sizes}
        if not all(map(expressible, by_size.values())):
            return None
        scores = self._scores(policy, found, by_size, draw)
        if coming:
            scores = self._with(coming, found, by_size, draw, scores)
        return Standing(scores.value, scores.device, live.size, wish)

    def _scores(self, text: str, policy: Policy, by_size: dict[int, Ask], draw: int) -> Scores:
        board = self._board(text, policy)
        asks = list(dict.fromkeys(by_size.values()))
        if len(asks) == 1:
            return board.scores(asks[0], draw)
        value = np.full(len(self._live.size), NEVER, np.int64)
        device = np.full(len(self._live.size), NO_DEVICE, np.int64)
        for ask in asks:
            scores = board.scores(ask, draw)
            mine = np.isin(self._live.size, [size for size, one in by_size.items() if one == ask])
            value[mine], device[mine] = scores.value[mine], scores.device[mine]
        return Scores(value, device)

    def _with(
        self, coming: Sequence[Coming], policy: Policy, by_size: dict[int, Ask], draw: int, scores: Scores
    ) -> Scores:
        """The scores as they will be when those who are on their way have arrived."""
        columns = {c.node: column for c in coming if (column := self._arrays.find(c.node)) >= 0}
        rows = np.array(sorted(set(columns.values())), np.int64)
        view = self._live.view.take(rows)
        for one in coming:
            if one.node in columns:
                _take(view, int(np.searchsorted(rows, columns[one.node])), one)
        value, device = scores.value.copy(), scores.device.copy()
        situation = msgspec.structs.replace(self._current(), draw=draw)
        for size, ask in by_size.items():
            mine = np.flatnonzero(self._live.size[rows] == size)
            part = view.take(mine)
            fresh = policy.score(part, ask, situation)
            value[rows[mine]] = np.where(feasible(part, ask) & roomy(part, ask), fresh.value, NEVER)
            device[rows[mine]] = fresh.device
        return Scores(value, device)

    def _follow(self) -> None:
        changed = self._live.follow()
        if changed is None or self._situation is None:
            self._begin()
            return
        rows: list[int] = changed.tolist()
        for board in self._boards.values():
            for row in rows:
                board.changed(row)

    def _begin(self) -> None:
        """All that was worked out belongs to another view, or to other pods."""
        self._situation = self._situation_now()
        self._boards.clear()

    def _situation_now(self) -> Situation:
        view, mix = self._live.view, self._mix
        expected = forecast(mix.commonest(), view.models)
        return Situation(expected, self._prices, scarcity(mix, view), largest_of(view))

    def _current(self) -> Situation:
        assert self._situation is not None, "the view was not followed"
        return self._situation

    def _board(self, text: str, policy: Policy) -> Board:
        board = self._boards.pop(text, None)
        if board is None:
            if len(self._boards) >= _BOARDS:
                self._boards.popitem(last=False)
            board = Board(self._live.view, policy, self._current(), classes=_CLASSES)
        self._boards[text] = board
        return board


@lru_cache(maxsize=256)
def known(text: str, *, compiled: bool = False) -> Policy | None:
    """The policy of that name, or sum of several; None when there is no such thing."""
    found = find(text) if len(text) <= _LONGEST else None
    if found is None or not compiled:
        return found
    faster: Policy = importlib.import_module("fractile.policy.score.compiled").compiled(text, found)
    return faster


_LONGEST = 200  # characters; names come from annotations


def _same(one: Situation, other: Situation) -> bool:
    return one.largest == other.largest and np.array_equal(one.scarcity, other.scarcity)


def _take(view: View, row: int, coming: Coming) -> None:
    """Charges one node of a copy; what is gone already is not taken twice."""
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
