"""Why a node was refused, in numbers that a person can act on. These sentences end up in the pod's events.

kube-scheduler counts equal sentences ("3 <reason>"), so a sentence depends on numbers only, never on node names.
"""

from collections.abc import Callable, Sequence

from fractile.dialects.units import counted_as_bytes
from fractile.model.card import DeviceKind
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Selector
from fractile.model.sharing import FREE
from fractile.model.units import MiB
from fractile.model.words import listed
from fractile.policy.cards import choice, class_counts, kinds
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.parts import SharedCard, card_numbers, parts_of, peak
from fractile.policy.cards.state import CardState, NodeState, cores_fit, emptied, lifted

_LISTED = 8  # cards named one by one in a sentence
_NAMED = 3  # models and cards of an annotation, each as long as a tenant likes


def no_cards(kind: DeviceKind = DeviceKind.GPU) -> Refusal:
    """The refusal of a node without devices of that kind."""
    what = "usable cards" if kind is DeviceKind.GPU else "devices other than GPUs"
    return Refusal(Code.NO_CARDS, f"no {what} reported by the node's fractile agent")


def too_hard(request: PodRequest) -> Refusal:
    """The refusal when the search was given up. Waiting may help: the next attempt may go on where it ended."""
    count = len(request.containers)
    return Refusal(
        Code.NO_ROOM,
        f"no way to place its {count} containers on the cards was found in the time allowed for one pod",
    )


def explain(request: PodRequest, state: NodeState, effort: Effort | None = None) -> Refusal:
    """The refusal for a pod that does not fit: waiting may help, it never fits here, or the search was given up
    (``effort``)."""
    effort = effort or Effort()
    parts = sum(c.request.count for c in request.containers) if len(request.containers) > 1 else 0
    if not effort.spend(parts * (1 + len(state.cards) // 8)):
        return too_hard(request)
    *first, last = kinds.parts(request)
    for kind, part in first:
        before = effort.given_up
        if not choice.fits(part, state.alone(kind), effort):
            return too_hard(request) if effort.given_up > before else _explain_kind(kind, part, state, effort)
    return _explain_kind(*last, state, effort)


def _explain_kind(kind: DeviceKind, request: PodRequest, state: NodeState, effort: Effort) -> Refusal:
    explain_one = _explain if kind is DeviceKind.GPU else _explain_devices
    return explain_one(request, state.alone(kind), effort)


def _explain_devices(request: PodRequest, state: NodeState, effort: Effort) -> Refusal:
    if not state.cards:
        return no_cards(DeviceKind.OTHER)
    for asked in request.containers:
        none = class_counts.none_of_class(asked, state.cards)
        if none is not None:
            return none
    before = effort.given_up
    ever = not choice.fits(request, emptied(state), effort)
    if effort.given_up > before:
        return too_hard(request)
    code = Code.TOO_LARGE if ever else Code.NO_ROOM
    return Refusal(code, class_counts.too_few(request, state.cards, ever=ever))


def _explain(request: PodRequest, state: NodeState, effort: Effort) -> Refusal:
    if not state.cards:
        return no_cards()
    barred = next((c for c in request.containers if not _admitted(c.request.selector, state.cards)), None)
    if barred is not None:
        return Refusal(Code.NO_SUCH_CARD, _none_admitted(barred.request, state.cards))
    empty = emptied(state)
    before = effort.given_up
    forbidden = _forbidden(request, state, empty, effort)
    if forbidden is None and state != empty and choice.fits(request, empty, effort):
        return Refusal(Code.NO_ROOM, _sentence(request, state.cards))
    if effort.given_up > before:
        return too_hard(request)
    if forbidden is not None:
        return forbidden
    return Refusal(Code.TOO_LARGE, _sentence(request, empty.cards, ever=True) + _bytes_instead(request))


def _sentence(request: PodRequest, cards: Sequence[CardState], *, ever: bool = False) -> str:
    """What is requested and what there is; ``ever``: on empty cards."""
    shared = [c for c in request.containers if not c.request.exclusive]
    whole = [c for c in request.containers if c.request.exclusive]
    said: list[str] = []
    if shared:
        mine = _admitted(shared[0].request.selector, cards)
        said.append(_of_shared(shared, mine, ever=ever) + _limited_to(mine, cards, shared))
    if whole:
        mine = _admitted(whole[0].request.selector, cards)
        said.append(_of_whole(choice.cards_needed(whole), mine, besides=bool(shared), ever=ever, what=_class(whole)))
        said[-1] += "" if _class(whole) else _limited_to(mine, cards, whole)
    return " and ".join(said)


def _bytes_instead(request: PodRequest) -> str:
    """The hint for "2Gi" of a resource that counts MiB."""
    hints = (counted_as_bytes(c) for c in request.containers)
    return next((f"; {hint}" for hint in hints if hint), "")


# ── rules about how cards may be cut ─────────────────────────────────────────────────────────────────────────────────


def _forbidden(request: PodRequest, state: NodeState, empty: NodeState, effort: Effort) -> Refusal | None:
    """The refusal when only sharing rules prevent the placement: permanent for sizes, temporary for slice numbers."""
    if all(c.rule == FREE for c in state.cards):
        return None
    if not choice.fits(request, empty, effort) and choice.fits(request, lifted(empty), effort):
        return Refusal(Code.TOO_LARGE, _sizes(request, state.cards))
    if choice.fits(request, lifted(state), effort):
        full = [c for c in state.cards if not c.rule.has_place(c.slices, 1)]
        held = _list(full or state.cards, lambda c: f"card {c.index}: {c.slices} of {c.rule.max_slices}")
        return Refusal(Code.NO_ROOM, f"the cards that have room take no more slices ({held})")
    return None


def _sizes(request: PodRequest, cards: Sequence[CardState]) -> str:
    wrong = [
        c
        for c in request.containers
        if not any(
            SharedCard(0, (c,), (0,)).admits(card) for card in cards if c.request.selector.admits(card.uuid, card.model)
        )
    ]
    if not wrong:
        return f"its {len(request.containers)} containers are more slices than the node's cards may be cut in together"
    asked = "a whole card" if wrong[0].request.exclusive else _amounts(wrong[0])
    card = next((c for c in cards if c.rule.fractions), cards[0])
    allowed = (f"{f} ({size} MiB)" for f, size in zip(card.rule.fractions, card.rule.sizes(card.memory), strict=True))
    return f"{asked} requested, but cards here are cut only in {', '.join(allowed)}, with cores up to the same part"


# ── parts of cards ───────────────────────────────────────────────────────────────────────────────────────────────────


def _of_shared(containers: Sequence[ContainerRequest], cards: Sequence[CardState], *, ever: bool) -> str:
    if any(c.request.count > len(cards) for c in containers):
        return f"{max(c.request.count for c in containers)} cards requested, the node has {len(cards)}"
    parts = parts_of(containers, card_numbers(containers))
    if len(parts) == 1:
        return _one_card(parts[0], cards, ever=ever)
    if len(containers) == 1:
        able = sum(map(parts[0].fits, cards))
        asked = f"{len(parts)} cards with {_amounts(containers[0])} each requested"
        return f"{asked}, {able} of {len(cards)} {'has' if able == 1 else 'have'} that much free"
    return _several(containers, cards, ever=ever)


def _one_card(part: SharedCard, cards: Sequence[CardState], *, ever: bool) -> str:
    """For containers that must be on one card."""
    needs = [peak(part.containers, c.memory) for c in cards]
    alone = [c for n, c in zip(needs, cards, strict=True) if c.holds(n.memory, n.cores, coreless=n.coreless)]
    if alone and not any(map(part.fits, alone)):
        return _slots_short(needs[0].slots, alone)
    cores = needs[0].cores
    roomy = [n.memory <= c.free_memory for n, c in zip(needs, cards, strict=True)]
    timely = [
        cores_fit(c.free_cores, cores, coreless=n.coreless or c.coreless) for n, c in zip(needs, cards, strict=True)
    ]
    if not (any(roomy) and any(timely)):
        said = [] if any(roomy) else [_memory_short(part, cards, ever=ever)]
        return " and ".join(said if any(timely) else [*said, _cores_short(cores, cards, ever=ever)])
    if cores:
        asked = f"{_memory(part.containers)} and {cores} percent of the cores requested on one card"
        return f"{asked}, free per card: {_list(cards, lambda c: f'{c.free_memory} MiB and {_cores(c)} percent')}"
    if any(map(part.fits, cards)):
        return _memory_short(part, cards, ever=ever)
    return (
        f"{_memory(part.containers)} requested on one card, but where that much is free, all cores are promised to "
        "others"
    )


def _memory_short(part: SharedCard, cards: Sequence[CardState], *, ever: bool) -> str:
    best = max(cards, key=lambda c: (c.free_memory, -c.index))
    asked = f"{_memory(part.containers)} requested on one card"
    if ever:
        return f"{asked}, the largest card here has {max(c.memory for c in cards)} MiB"
    total = sum(max(0, c.free_memory) for c in cards)
    return (
        f"{asked}, the most free on one is {best.free_memory} MiB "
        f"(card {best.index}; {total} MiB free on {len(cards)} {_cards(len(cards))} together)"
    )


def _cores_short(cores: int, cards: Sequence[CardState], *, ever: bool) -> str:
    if ever:
        return f"cores: {cores} percent requested of one card by containers that must share it"
    if not cores:
        return "cores: those of every card are promised to others"
    return f"cores: {cores} percent requested, free per card: {_list(cards, lambda c: str(_cores(c)))} percent"


def _slots_short(asked: int, cards: Sequence[CardState]) -> str:
    """The reason when only slots are short."""
    said = f"{asked} of a card's {cards[0].slots} slots requested"
    return f"{said}, free on the cards with enough memory and cores: {_list(cards, lambda c: str(c.free_slots))}"


def _several(containers: Sequence[ContainerRequest], cards: Sequence[CardState], *, ever: bool) -> str:
    """For containers that may be on different cards."""
    there = "the cards here have" if ever else "free per card:"
    said = f"{_memories(containers)} requested, {there} {_list(cards, lambda c: str(c.free_memory))} MiB"
    if any(c.request.cores for c in containers):
        shares = _sum([str(c.request.cores) for c in containers])
        said += f", and {shares} percent of the cores, {there} {_list(cards, lambda c: str(_cores(c)))} percent"
    return said


# ── whole cards ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_whole(asked: int, cards: Sequence[CardState], *, besides: bool, ever: bool, what: str = "") -> str:
    """``besides``: parts are requested too, which need other cards; ``what``: the class by which all are requested."""
    if what:
        there = f"the node has {len(cards)} matching {_cards(len(cards))}"
        idle = sum(c.idle for c in cards)
        there = there if ever else f"{idle} of {len(cards)} matching cards {'is' if idle == 1 else 'are'} free"
        return f"class {what}: {there}, {asked} requested{' besides' if besides else ''}"
    said = f"{asked} whole {_cards(asked)} requested{' besides' if besides else ''}"
    if ever:
        return f"{said}, the node has {len(cards)}"
    idle = sum(c.idle for c in cards)
    return f"{said}, {idle} of {len(cards)} {'is' if idle == 1 else 'are'} unused"


# ── selectors ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _admitted(selector: Selector, cards: Sequence[CardState]) -> list[CardState]:
    return [c for c in cards if selector.admits(c.uuid, c.model)]


def _none_admitted(request: Request, cards: Sequence[CardState]) -> str:
    if request.device_class:
        return f"no card of the node is of class {request.device_class}"
    selector = request.selector
    models = listed(tuple(sorted({c.model for c in cards})), ", ", _NAMED)
    wishes = [
        f"{wish} {listed(names, ' or ', _NAMED)}"
        for wish, names in (
            ("a card of model", selector.models),
            ("no card of model", selector.not_models),
            ("the card", selector.cards),
            ("not the card", selector.not_cards),
        )
        if names
    ]
    return f"the pod asks for {' and '.join(wishes)}, the node has {models}"


def _class(containers: Sequence[ContainerRequest]) -> str:
    """The class by which all of them ask; "" if there is no single one."""
    names = {c.request.device_class for c in containers}
    return names.pop() if len(names) == 1 else ""


def _limited_to(mine: Sequence[CardState], cards: Sequence[CardState], containers: Sequence[ContainerRequest]) -> str:
    if _class(containers):
        return f" (class {_class(containers)}: {len(mine)} of the node's {len(cards)} {_cards(len(cards))})"
    if len(mine) == len(cards):
        return ""
    return f" (the pod may use {len(mine)} of the node's {len(cards)} cards)"


# ── words ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _memory(containers: Sequence[ContainerRequest]) -> str:
    """The peak memory of containers that share a card."""
    parts = max((c.request.memory_percent for c in containers), default=0)
    amount = peak(containers, MiB(0)).memory
    said = [f"{amount} MiB"] if amount or not parts else []
    return " and ".join([*said, f"{parts} percent of the memory"] if parts else said)


def _memories(containers: Sequence[ContainerRequest]) -> str:
    if any(c.request.memory_percent for c in containers):
        return _sum([_memory([c]) for c in containers])
    return _sum([str(c.request.memory) for c in containers]) + " MiB"


def _sum(amounts: Sequence[str]) -> str:
    more = [f"{len(amounts) - _LISTED} more"] if len(amounts) > _LISTED else []
    return " + ".join([*amounts[:_LISTED], *more])


def _amounts(container: ContainerRequest) -> str:
    cores = f" and {container.request.cores} percent of the cores" if container.request.cores else ""
    return _memory([container]) + cores


def _cores(card: CardState) -> int:
    """The cores of the card that can be promised."""
    return max(card.free_cores - card.coreless, 0)


def _list(cards: Sequence[CardState], say: Callable[[CardState], str]) -> str:
    listed = ", ".join(map(say, cards[:_LISTED]))
    return listed + (f" and {len(cards) - _LISTED} more" if len(cards) > _LISTED else "")


def _cards(count: int) -> str:
    return "card" if count == 1 else "cards"
