"""What a namespace's quota leaves to a pod: which nodes, which cards, and how many cards.

A hold counts as the part of the card that others can no longer use: the larger of its fraction of the memory and its
fraction of the compute time, rounded up to whole percent. So a hold of all memory and 1 % of the time counts as 100 %.

A part of one card costs the same on all cards of one kind, so each kind is either open or closed to the pod. The total
cost of several parts depends on where each goes, so nodes are then checked one by one (``tight``).

Quotas cover GPUs only; other devices are limited by class, with Kubernetes' own ResourceQuota.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, partial

import msgspec

from fractile.model.placement import Placement, charges
from fractile.model.quota import EVERY, NamespaceQuota, NodePlace, Quota, QuotaLimit
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import WHOLE, MiB
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.parts import card_numbers, parts_of, peak
from fractile.policy.cards.plan import plan
from fractile.policy.cards.state import CardState, NodeState

_NAMED = 5  # reasons that a sentence lists

Model = tuple[str, str]  # the name on the node's label, "" for none; the driver's name
Percents = Mapping[Model, int]  # of a card, by model


class CardKind(msgspec.Struct, frozen=True, order=True):
    """Cards on which a pod costs the same."""

    label: str
    model: str
    memory: MiB

    @property
    def named(self) -> Model:
        return self.label, self.model


class Allowance(msgspec.Struct, frozen=True):
    """What the quota leaves to one pod. ``closed``: models that the pod may not use now, and why. ``alone``: models of
    which a node that has no other model cannot give enough. ``left``: each limit with the percent that may still be
    taken. ``tight``: each node's placement must be counted against the limits."""

    namespace: str
    pools: frozenset[str] | None = None
    closed: Mapping[Model, str] = {}
    alone: frozenset[Model] = frozenset()
    tight: bool = False
    left: tuple[tuple[QuotaLimit, int], ...] = ()

    def bars(self, place: NodePlace) -> Refusal | None:
        """The refusal of a node that is outside the allowed pools."""
        if self.pools is None or place.pool in self.pools:
            return None
        pools = " or ".join(sorted(self.pools))
        here = f"is in pool {place.pool}" if place.pool else "is in no pool"
        return _refusal(f"namespace {self.namespace} may use nodes of pool {pools} only, and this one {here}")

    def opened(self, state: NodeState, place: NodePlace) -> NodeState:
        """The node with only the cards that are open to the pod."""
        if not self.closed:
            return state
        return _with(state, (c for c in state.cards if (place.model, c.model) not in self.closed))


class ModelMatches(dict[Model, tuple[int, ...]]):
    """For each model the indexes of the limits that name it, computed on first access."""

    def __init__(self, limits: Sequence[QuotaLimit]) -> None:
        super().__init__()
        self._limits = tuple(limits)

    def __missing__(self, model: Model) -> tuple[int, ...]:
        found = self[model] = tuple(i for i, limit in enumerate(self._limits) if matches(limit.name, *model))
        return found


def allowance(
    quota: Quota, request: PodRequest, kinds: Iterable[CardKind], held: Percents, named: ModelMatches | None = None
) -> Allowance | Refusal | None:
    """What is left to the pod: None when nothing limits it, a refusal when nothing is left on any card.

    ``kinds``: those of the cluster's cards. ``held``: what the namespace holds. ``named``: matches of the namespace's
    limits, kept from pod to pod.
    """
    if not request.gpus:
        return None
    own = _own(quota, request.namespace)
    if own is None or isinstance(own, Refusal):
        return own
    if own.limits is None:
        return None if own.pools is None else Allowance(request.namespace, frozenset(own.pools))
    return _counted(own, own.limits, request, kinds, held, ModelMatches(own.limits) if named is None else named)


def plan_within(
    request: PodRequest, state: NodeState, place: NodePlace, left: Allowance | None, effort: Effort | None = None
) -> Placement | Refusal:
    """Where the pod would run on this node within the quota, or the reason why it cannot."""
    planner = partial(plan, effort=effort or Effort())
    if left is None:
        return planner(request, state)
    barred = left.bars(place)
    if barred is not None:
        return barred
    seen = left.opened(state, place)
    while seen.cards:
        chosen = planner(request, seen)
        if isinstance(chosen, Refusal):
            break
        over = _passed(left, chosen, state, place) if left.tight else None
        if over is None:
            return chosen
        # Another choice may need less of that limit: hide the last card used that the limit names.
        used = {s.card for c in chosen.containers for s in c.slices}
        last = next(c for c in reversed(seen.cards) if c.uuid in used and matches(over.name, place.model, c.model))
        seen = _with(seen, (c for c in seen.cards if c is not last))
    # The quota is the reason only where the pod would fit without it.
    chosen = planner(request, state)
    return chosen if isinstance(chosen, Refusal) else _refusal(_why(request, state, place, left, chosen))


def fits_within(
    request: PodRequest, state: NodeState, place: NodePlace, left: Allowance, effort: Effort | None = None
) -> bool:
    return isinstance(plan_within(request, state, place, left, effort), Placement)


def passed(quota: Quota, namespace: str, held: Percents, more: Percents) -> Refusal | None:
    """The refusal when ``more`` would exceed the quota: the last check, of amounts only, before cards are charged."""
    if not any(more.values()):
        return None
    own = _own(quota, namespace)
    if own is None or isinstance(own, Refusal) or own.limits is None:
        return own if isinstance(own, Refusal) else None
    for model, percent in more.items():
        if percent > 0 and not any(matches(limit.name, *model) for limit in own.limits):
            return _refusal(_not_given(namespace, own.limits, model))
    for limit in own.limits:
        has, wants = under(limit, held), under(limit, more)
        if wants > 0 and has + wants > limit.percent:
            return _refusal(_short(namespace, limit, has, wants))
    return None


def matches(name: str, label: str, model: str) -> bool:
    """Whether a limit's name matches the model: its words occur consecutively in the model's name or in the node's
    label. Case is ignored. Whole words are compared, so that "A10" does not match an A100."""
    return name == EVERY or _named(name, model) or (label != "" and _named(name, label))


def cost(memory: int, cores: int, card: int) -> int:
    """What a hold counts, in percent of a card with ``card`` MiB; 0 for a device without memory (not a card)."""
    return max(cores, -(-100 * memory // card)) if card > 0 else 0


def under(limit: QuotaLimit, percents: Percents) -> int:
    """The percent that counts against the limit."""
    return sum(percent for model, percent in percents.items() if matches(limit.name, *model))


def costs_of(request: PodRequest, card: MiB) -> tuple[int, int, int]:
    """What the pod costs on cards with that much memory, in percent: the cheapest of its cards; then the least and the
    most that all its cards cost together if all are of this kind."""
    gpus = request.gpus
    if len(gpus) == 1:
        asked = gpus[0].request
        one = cost(asked.memory_on(card), WHOLE if asked.exclusive else asked.cores, card)
        return one, one * asked.count, one * asked.count
    needs = (peak(part.containers, card) for part in parts_of(gpus, card_numbers(gpus)))
    costs = [cost(need.memory, need.cores, card) for need in needs]
    return min(costs, default=0), max(costs, default=0), sum(costs)


def in_cards(percent: int) -> str:
    """150 -> "1.5"."""
    return f"{percent / 100:.2f}".rstrip("0").rstrip(".")


@lru_cache(maxsize=4096)
def _named(name: str, model: str) -> bool:
    wanted, there = _words(name), _words(model)
    return any(there[i : i + len(wanted)] == wanted for i in range(len(there) - len(wanted) + 1))


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.casefold())


def _own(quota: Quota, namespace: str) -> NamespaceQuota | Refusal | None:
    """The quota of the namespace; None when nothing limits it, a refusal when it may have nothing."""
    if quota.problem:
        return _refusal(quota.problem)
    own = quota.namespaces.get(namespace)
    if own is None and not quota.others:
        return _refusal(f"no quota gives cards to namespace {namespace}")
    return own


def _counted(
    own: NamespaceQuota,
    limits: Sequence[QuotaLimit],
    request: PodRequest,
    kinds: Iterable[CardKind],
    held: Percents,
    named: ModelMatches,
) -> Allowance | Refusal | None:
    rest = [limit.percent for limit in limits]
    for model, percent in held.items():
        for i in named[model]:
            rest[i] -= percent
    closed: dict[Model, str] = {}
    opened: set[Model] = set()
    short: set[Model] = set()
    enough: set[Model] = set()
    tight = False
    costs: dict[MiB, tuple[int, int, int]] = {}  # many models, few sizes
    for kind in kinds:
        model = kind.label, kind.model
        mine = named[model]
        room = min([rest[i] for i in mine], default=0)
        if kind.memory not in costs:
            costs[kind.memory] = costs_of(request, kind.memory)
        least, on_one, most = costs[kind.memory]
        if least > room:
            closed[model] = _closed(request.namespace, limits, model, [i for i in mine if rest[i] < least], rest, least)
            continue
        opened.add(model)
        tight = tight or most > room
        (short if on_one > room else enough).add(model)
    mixed = opened & closed.keys()  # one name for cards of different memory, as in short - enough
    if closed and not opened:
        return _refusal("; ".join(list(dict.fromkeys(closed.values()))[:_NAMED]))
    if not closed and not tight and own.pools is None:
        return None
    return Allowance(
        request.namespace,
        None if own.pools is None else frozenset(own.pools),
        {model: why for model, why in closed.items() if model not in mixed},
        frozenset() if mixed else frozenset(short - enough),
        tight or bool(mixed),
        tuple(zip(limits, rest, strict=True)),
    )


def _closed(
    namespace: str, limits: Sequence[QuotaLimit], model: Model, short: Sequence[int], rest: Sequence[int], wants: int
) -> str:
    if not short:
        return _not_given(namespace, limits, model)
    limit, left = limits[short[0]], rest[short[0]]
    return _short(namespace, limit, limit.percent - left, wants)


def _passed(left: Allowance, chosen: Placement, state: NodeState, place: NodePlace) -> QuotaLimit | None:
    more = _taken(chosen, state, place)
    return next((limit for limit, rest in left.left if under(limit, more) > max(rest, 0)), None)


def _taken(chosen: Placement, state: NodeState, place: NodePlace) -> dict[Model, int]:
    of = {c.uuid: c for c in state.cards}
    more: dict[Model, int] = {}
    for charge in charges(chosen):
        card = of.get(charge.card)
        if card is None:  # another device
            continue
        model = place.model, card.model
        more[model] = more.get(model, 0) + cost(charge.memory, charge.cores, card.memory)
    return more


def _why(request: PodRequest, state: NodeState, place: NodePlace, left: Allowance, chosen: Placement) -> str:
    """Why the quota does not allow the placement that would be chosen without it."""
    here = dict.fromkeys((place.model, c.model) for c in state.cards)
    said = dict.fromkeys(left.closed[model] for model in here if model in left.closed)
    more = _taken(chosen, state, place)
    for limit, rest in left.left:
        if under(limit, more) > max(rest, 0):
            said.setdefault(_short(request.namespace, limit, limit.percent - rest, under(limit, more)))
    return "; ".join(list(said)[:_NAMED])


def _short(namespace: str, limit: QuotaLimit, held: int, taken: int) -> str:
    what = "cards" if limit.name == EVERY else limit.name
    if not limit.percent:
        return f"namespace {namespace} may hold no {what}"
    most, has, wants = in_cards(limit.percent), in_cards(held), in_cards(taken)
    return f"namespace {namespace} may hold {most} {what}, holds {has}, and this pod takes {wants}"


def _not_given(namespace: str, limits: Sequence[QuotaLimit], model: Model) -> str:
    names = ", ".join(limit.name for limit in limits if limit.percent)
    given = f"{names} only" if names else "no cards"
    return f"namespace {namespace} may hold {given}, but this card is {model[0] or model[1]}"


def _with(state: NodeState, cards: Iterable[CardState]) -> NodeState:
    return msgspec.structs.replace(state, cards=tuple(cards))


def _refusal(message: str) -> Refusal:
    return Refusal(Code.QUOTA, message)
