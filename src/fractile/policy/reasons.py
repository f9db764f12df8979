"""Why a node was refused, in numbers that a person can act on. These sentences end up in the pod's events.

kube-scheduler counts equal sentences ("3 <reason>"), so a sentence depends on numbers only, never on node names.
"""

from collections.abc import Sequence

from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest
from fractile.policy import cards as choice
from fractile.policy.state import CardState, NodeState, emptied

_LISTED = 8  # cards named one by one in a sentence


def no_cards() -> Refusal:
    return Refusal(Code.NO_CARDS, "no usable cards reported by the node's fractile agent")


def explain(request: PodRequest, state: NodeState) -> Refusal:
    """The refusal for a pod that does not fit: one that waiting can cure, or one that this node can never cure."""
    if not state.cards:
        return no_cards()
    empty = emptied(state)
    if state != empty and choice.choose(request, empty) is not None:
        return Refusal(Code.NO_ROOM, _shortage(request, state.cards))
    return Refusal(Code.TOO_LARGE, _impossible(request, state.cards))


def memory_short(asked: int, largest: int, *, index: int, cards: int, total: int) -> str:
    """For a pod whose memory must be on one card."""
    return (
        f"{asked} MiB asked on one card, the most free on one is {largest} MiB "
        f"(card {index}; {total} MiB free on {cards} {_cards(cards)} together)"
    )


def memory_impossible(asked: int, largest: int) -> str:
    return f"{asked} MiB asked on one card, the largest card here has {largest} MiB"


def cards_short(asked: int, idle: int, cards: int, *, besides: bool = False) -> str:
    """For a pod that asks for whole cards; ``besides``: and for memory, which must come from other cards."""
    return f"{_whole(asked, besides=besides)}, {idle} of {cards} {'is' if idle == 1 else 'are'} unused"


def cards_impossible(asked: int, cards: int, *, besides: bool = False) -> str:
    return f"{_whole(asked, besides=besides)}, the node has {cards}"


def _whole(asked: int, *, besides: bool) -> str:
    return f"{asked} whole {_cards(asked)} asked{' besides' if besides else ''}"


def _shortage(request: PodRequest, cards: Sequence[CardState]) -> str:
    by_memory, by_card = _split(request)
    parts: list[str] = []
    if by_memory and choice.shares_one_card(by_memory):
        best = max(cards, key=lambda c: (c.free_memory, -c.index))
        total = sum(max(0, c.free_memory) for c in cards)
        asked = choice.peak_memory(by_memory)
        parts.append(memory_short(asked, best.free_memory, index=best.index, cards=len(cards), total=total))
    elif by_memory:
        parts.append(f"{_sizes(by_memory)} MiB asked, free per card: {_free(cards)} MiB")
    if by_card:
        asked = choice.cards_needed(by_card)
        parts.append(cards_short(asked, sum(c.idle for c in cards), len(cards), besides=bool(by_memory)))
    return " and ".join(parts)


def _impossible(request: PodRequest, cards: Sequence[CardState]) -> str:
    by_memory, by_card = _split(request)
    parts: list[str] = []
    if by_memory and choice.shares_one_card(by_memory):
        parts.append(memory_impossible(choice.peak_memory(by_memory), max(c.memory for c in cards)))
    elif by_memory:
        sizes = ", ".join(str(c.memory) for c in cards[:_LISTED])
        parts.append(f"{_sizes(by_memory)} MiB asked, the cards here have {sizes} MiB")
    if by_card:
        parts.append(cards_impossible(choice.cards_needed(by_card), len(cards), besides=bool(by_memory)))
    return " and ".join(parts)


def _split(request: PodRequest) -> tuple[list[ContainerRequest], list[ContainerRequest]]:
    by_memory = [c for c in request.containers if not c.request.exclusive]
    return by_memory, [c for c in request.containers if c.request.exclusive]


def _sizes(containers: Sequence[ContainerRequest]) -> str:
    return " + ".join(str(c.request.memory) for c in containers)


def _free(cards: Sequence[CardState]) -> str:
    listed = ", ".join(str(c.free_memory) for c in cards[:_LISTED])
    return listed + (f" and {len(cards) - _LISTED} more" if len(cards) > _LISTED else "")


def _cards(count: int) -> str:
    return "card" if count == 1 else "cards"
