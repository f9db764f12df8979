"""Step 2: which of the nodes that kube-scheduler names can serve the pod. Reads the ledger, changes nothing.

When more nodes fit than kube-scheduler can use, only the best are named and no reasons given: at 5,000 nodes most of an
extender's cost is kube-scheduler decoding and scoring what it does not need (evidence/kube-scheduler.md#long-answers).
Many nodes refused for the same cause share one sentence, which names the best of them.
"""

from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, islice, takewhile

import msgspec
import numpy as np

from fractile.extender.engine import NodeScores
from fractile.extender.score import BINPACK, NONE, spreads
from fractile.ledger import scan
from fractile.ledger.arrays import Bools, CardArrays, Ints
from fractile.ledger.ledger import Ledger
from fractile.ledger.scan import Need
from fractile.model.card import GPU, DeviceKind
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.policy.cards import kinds, reasons
from fractile.policy.cards.choice import fits
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.state import NodeState
from fractile.policy.quota import Allowance, fits_within, plan_within
from fractile.wire.kubernetes.extender import FilterResult

BEST = 100  # nodes named when more fit
ONE_BY_ONE = 50  # the most refused nodes that each get a sentence of their own
_SPARE = 20
_LOOKED_AT = 10  # nodes among which the one whose refusal stands for all is chosen

_FirstOf = Callable[[Bools, int], Ints]  # so many of the fitting columns, the best first


class KindNeed(msgspec.Struct, frozen=True):
    """What a pod needs of one kind of devices, and the ledger's arrays of that kind."""

    kind: DeviceKind
    arrays: CardArrays
    need: Need


class _Sought(msgspec.Struct, frozen=True):
    """What a pod needs. Columns are those of the first kind's arrays. ``left``: what the quota leaves to it; ``nodes``:
    those in pools that it may use, None for all."""

    needs: tuple[KindNeed, ...]
    left: Allowance | None = None
    nodes: Bools | None = None

    @property
    def first(self) -> KindNeed:
        return self.needs[0]

    @property
    def arrays(self) -> CardArrays:
        return self.needs[0].arrays

    @property
    def exact(self) -> bool:
        return not (self.left is not None and self.left.tight) and all(n.need.exact for n in self.needs)

    def now(self) -> Bools:
        """Columns of nodes that meet the need with what is free now."""
        meets = self._all(scan.now)
        return meets if self.nodes is None else meets & self.nodes

    def ever(self) -> Bools:
        """Columns of nodes that would meet the need if they were empty."""
        return self._all(scan.ever)

    def _all(self, judge: Callable[[CardArrays, Need], Bools]) -> Bools:
        meets = judge(self.first.arrays, self.first.need)
        for other in self.needs[1:]:
            meets = meets & scan.carried(judge(other.arrays, other.need), other.arrays, self.arrays)
        return meets


def within(request: PodRequest, left: Allowance, ledger: Ledger) -> _Sought:
    """What to look for within the quota, and in which arrays."""
    what = sought(ledger.bounds.narrowed(request, left), ledger)
    return msgspec.structs.replace(what, left=left, nodes=ledger.bounds.nodes(left))


def sought(request: PodRequest, ledger: Ledger) -> _Sought:
    """What to look for, and in which arrays."""
    return _Sought(tuple(_need(kind, part, ledger) for kind, part in kinds.parts(request)))


def _need(kind: DeviceKind, part: PodRequest, ledger: Ledger) -> KindNeed:
    need = scan.need_of(part)
    if kind is DeviceKind.GPU and not ledger.judged_by_sums(part):
        need = msgspec.structs.replace(need, exact=False)
    return KindNeed(kind, ledger.arrays_of(kind), need)


def filter_nodes(
    request: PodRequest | Refusal | None,
    names: list[str],
    ledger: Ledger,
    policy: str = BINPACK,
    *,
    standing: NodeScores | None = None,
    effort: Effort | None = None,
) -> FilterResult:
    """The nodes that fit, and why the others do not. ``standing``: the scores of the pod's policy, which decide which
    nodes are among the best. ``effort``: the budget for all nodes together; nodes left unchecked are refused for
    now."""
    effort = effort or Effort(dead_ends=ledger.dead_ends)
    if request is None:
        return FilterResult(node_names=names)
    if isinstance(request, Refusal):
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, request.message))
    entry = ledger.entry(request.uid)
    if entry is not None and entry.placement.node in names:
        # A Binding of unknown outcome: the pod's own cards are charged, and only that node can be right.
        return FilterResult(node_names=[entry.placement.node])
    left = ledger.usage.allowance(request)
    if isinstance(left, Refusal):
        return FilterResult(node_names=[], unresolvable=dict.fromkeys(names, left.message))
    what = sought(request, ledger) if left is None else within(request, left, ledger)
    if len(names) > BEST and policy != NONE:
        best = _best(request, what, names, ledger, _order(request, what, policy, standing), effort)
        if len(best) == BEST or (best and effort.over):
            return FilterResult(node_names=best)
    return _every_node(request, what, names, ledger, effort)


def _order(request: PodRequest, what: _Sought, policy: str, standing: NodeScores | None) -> _FirstOf:
    """A function that finds the best of many columns."""
    if standing is None or what.first.kind is not DeviceKind.GPU:
        emptiest = spreads(request, policy)
        return lambda fitting, most: scan.best_first(what.arrays, fitting.nonzero()[0], most, emptiest=emptiest)
    if standing.order is not None:
        return partial(scan.first_in_order, standing.order)
    value = standing.value
    return lambda fitting, most: scan.largest_first(value, fitting.nonzero()[0], most)


def _best(
    request: PodRequest, what: _Sought, names: list[str], ledger: Ledger, first_of: _FirstOf, effort: Effort
) -> list[str]:
    """The best BEST nodes among those named; fewer when fewer fit, or when each must be checked."""
    arrays = what.arrays
    fitting = what.now()
    if np.count_nonzero(fitting) < BEST:
        return []
    if 2 * len(names) > len(arrays):
        # Most nodes are named: rank all, then keep the named ones. Three times as fast as finding each name.
        best = _named(request, what, fitting, names, ledger, first_of, effort)
        if len(best) == BEST or (best and effort.over):
            return best
    columns = arrays.find_all(names, len(names))
    asked = np.zeros(len(fitting), np.bool_)
    asked[columns[columns >= 0]] = True
    return _named(request, what, fitting & asked, names, ledger, first_of, effort)


def _named(
    request: PodRequest,
    what: _Sought,
    fitting: Bools,
    names: list[str],
    ledger: Ledger,
    first_of: _FirstOf,
    effort: Effort,
) -> list[str]:
    """The best fitting columns whose nodes are named, at most BEST; each is checked individually where sums are not
    enough."""
    arrays = what.arrays
    # A few more than needed: some of the best may not be named, or may fail the exact check.
    exact = what.exact
    most = BEST + _SPARE if exact and len(names) >= len(arrays) else 4 * BEST
    candidates = list(map(arrays.names.__getitem__, first_of(fitting, most).tolist()))
    named = frozenset(candidates).intersection(names)
    best: list[str] = [name for name in candidates if name is not None and name in named]
    if exact:
        return best[:BEST]
    looked_at = takewhile(lambda _: not effort.over, best)
    return list(islice((n for n in looked_at if _fits(request, what, n, ledger, effort)), BEST))


def _every_node(request: PodRequest, what: _Sought, names: list[str], ledger: Ledger, effort: Effort) -> FilterResult:
    columns = what.arrays.find_all(names, len(names))
    known = columns >= 0
    now = known & what.now()[columns]
    result = FilterResult(node_names=[])
    assert result.node_names is not None
    look_at: list[int] = now.nonzero()[0].tolist()
    if what.exact:
        result.node_names.extend(names[i] for i in look_at)
    else:
        _look_at_each(result, request, what, [names[i] for i in look_at], ledger, effort)
    bounded = _bounded(request, what, known & ~now, columns, ledger)
    _refuse_bounded(result, request, what, _pick(names, bounded), columns[bounded], ledger, effort)
    now |= bounded
    ever = known & ~now & what.ever()[columns]
    _refuse(result, _pick(names, ~known), reasons.no_cards(what.first.kind))
    _refuse_all(result, _pick(names, ever), request, ledger, columns[ever], what.arrays, effort)
    never = known & ~now & ~ever
    _refuse_all(result, _pick(names, never), request, ledger, columns[never], what.arrays, effort)
    return result


def _look_at_each(
    result: FilterResult,
    request: PodRequest,
    what: _Sought,
    names: Sequence[str],
    ledger: Ledger,
    effort: Effort,
) -> None:
    """Check nodes whose sums suffice, as far as the effort goes, starting where the last call for the pod stopped."""
    assert result.node_names is not None
    stopped = ledger.dead_ends.stopped(request.uid)
    first = names.index(stopped) if stopped in names else 0
    turned = [*names[first:], *names[:first]]
    for n, name in enumerate(turned):
        if effort.over:
            _refuse(result, turned[n:], reasons.too_hard(request))
            left = ledger.dead_ends.stop(request.uid, name, looked_at=n, of=len(names))
            effort.unfinished = left and not result.node_names
            return
        before = effort.given_up
        if _fits(request, what, name, ledger, effort):
            result.node_names.append(name)
        elif effort.given_up > before:
            _refuse(result, [name], reasons.too_hard(request))
        else:
            _refuse(result, [name], _reason(request, what.left, name, ledger, effort))
    ledger.dead_ends.forget(request.uid)


def _bounded(request: PodRequest, what: _Sought, refused: Bools, columns: Ints, ledger: Ledger) -> Bools:
    """The refused nodes that only the quota rules out: they are in another pool, or would meet the need."""
    if what.left is None:
        return np.zeros(len(refused), np.bool_)
    meets = sought(request, ledger).now()
    return refused & (meets if what.nodes is None else meets | ~what.nodes)[columns]


def _refuse_bounded(
    result: FilterResult,
    request: PodRequest,
    what: _Sought,
    names: Sequence[str],
    columns: Ints,
    ledger: Ledger,
    effort: Effort,
) -> None:
    """Refuse nodes because of the quota. One node stands for all with the same labels and models: there are few
    combinations, and the quota's reason is the same for each."""
    known: dict[object, Refusal] = {}
    for name, alike in zip(names, ledger.bounds.alike(columns), strict=True):
        reason = known.get(alike) or _plainly(what, name, ledger) or _reason(request, what.left, name, ledger, effort)
        if reason.code is Code.QUOTA:
            known[alike] = reason
        _refuse(result, [name], reason)


def _plainly(what: _Sought, name: str, ledger: Ledger) -> Refusal | None:
    """The refusal that needs no plan: the node is in another pool, or all of its cards are closed to the pod. Making a
    plan takes longer than everything else."""
    left, place = what.left, ledger.usage.place(name)
    if left is None:
        return None
    barred = left.bars(place)
    if barred is not None or not what.first.need.exact:
        return barred
    models = {c.model for c in ledger.cards(name) if c.type == GPU}
    why = left.closed.get((place.model, models.pop())) if len(models) == 1 else None
    return None if why is None else Refusal(Code.QUOTA, why)


def _fits(request: PodRequest, what: _Sought, name: str, ledger: Ledger, effort: Effort) -> bool:
    state, left = _state(ledger, name), what.left
    if left is None:
        return fits(request, state, effort)
    place = ledger.usage.place(name)
    if left.tight:
        return fits_within(request, state, place, left, effort)
    return left.bars(place) is None and fits(request, left.opened(state, place), effort)


def _reason(request: PodRequest, left: Allowance | None, name: str, ledger: Ledger, effort: Effort) -> Refusal:
    """Why a node does not fit although its sums, or one of its cards, would."""
    state = _state(ledger, name)
    found = plan_within(request, state, ledger.usage.place(name), left, effort) if left else None
    return found if isinstance(found, Refusal) else reasons.explain(request, state, effort)


def _refuse_all(
    result: FilterResult,
    names: Sequence[str],
    request: PodRequest,
    ledger: Ledger,
    columns: Ints,
    arrays: CardArrays,
    effort: Effort,
) -> None:
    """Refuse the nodes, each with its own numbers or, when they are many, with those of the best one."""
    if len(names) <= ONE_BY_ONE:
        for name in names:
            _refuse(result, [name], reasons.explain(request, _state(ledger, name), effort))
        return
    best, reason = _best_refused(request, ledger, columns, arrays, effort)
    shared = f"{reason.message}; that is {best}, the best of {len(names)} such nodes"
    _refuse(result, names, Refusal(reason.code, shared))


def _best_refused(
    request: PodRequest, ledger: Ledger, columns: Ints, arrays: CardArrays, effort: Effort
) -> tuple[str, Refusal]:
    """The node whose best card has the most free memory, and its refusal.

    For pods that sums cannot judge, one node's verdict does not hold for all. A node that waiting or preemption can
    help is then preferred, since a permanent refusal would rule that out for all of them.
    """
    roomiest: list[int] = columns[np.argsort(-arrays.most_free[columns], kind="stable")[:_LOOKED_AT]].tolist()
    names = [name for column in roomiest if (name := arrays.names[column]) is not None]
    verdicts = [(name, reasons.explain(request, _state(ledger, name), effort)) for name in names]
    return next((v for v in verdicts if v[1].resolvable), verdicts[0])


def _refuse(result: FilterResult, names: Sequence[str], refusal: Refusal) -> None:
    into = result.failed if refusal.resolvable else result.unresolvable
    into.update(dict.fromkeys(names, refusal.message))


def _state(ledger: Ledger, name: str) -> NodeState:
    state = ledger.node(name)
    assert state is not None, f"node {name} has no cards"
    return state


def _pick(names: list[str], mask: Bools) -> list[str]:
    return list(compress(names, mask.tolist()))
