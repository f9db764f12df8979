"""Which cards of a node serve a pod: the only place where cards are chosen.

Kubelet gives the devices of a finished init container to the next containers of the pod before it asks for others
(node.md 2.2), so an init container and its successors share cards:

- containers by memory: when an ordinary init container is among them all share one card, which must hold the pod's
  peak; otherwise one card for all is preferred and, if none has room, each container may use its own card;
- containers by card: cards are handed from init containers to their successors exactly as kubelet does.

A card choice is a row of POLICIES: a key, smallest wins. Keys end in the card's index, so equal inputs give equal
placements on every replica.
"""

from collections.abc import Callable, Sequence

from fractile.model.placement import ContainerPlacement, Slice
from fractile.model.request import ContainerRequest, PodRequest, Role, peak_amount
from fractile.model.units import WHOLE, CardUUID, ContainerName, MiB
from fractile.policy.state import CardState, NodeState

Key = Callable[[CardState], tuple[int, int]]

POLICIES: dict[str, Key] = {
    "binpack": lambda card: (card.free_memory, card.index),  # best fit: least left over
    "spread": lambda card: (-card.free_memory, card.index),
}
DEFAULT = "binpack"

Chosen = dict[ContainerName, tuple[Slice, ...]]

_SEARCH_LIMIT = 20_000  # cards tried for a pod whose containers need several; far beyond any real pod


def choose(request: PodRequest, state: NodeState, policy: str = DEFAULT) -> tuple[ContainerPlacement, ...] | None:
    """The slices of every container in the request's order; None when the node cannot serve the pod now."""
    by_memory = [c for c in request.containers if not c.request.exclusive]
    by_card = [c for c in request.containers if c.request.exclusive]
    key = POLICIES[policy]
    chosen = _memory_then_cards(by_memory, by_card, state.cards, key) or _cards_then_memory(
        by_memory, by_card, state.cards, key
    )
    if chosen is None:
        return None
    return tuple(ContainerPlacement(c.container, c.role, chosen[c.container]) for c in request.containers)


def peak_memory(containers: Sequence[ContainerRequest]) -> MiB:
    """What one card must have free to serve all of them: max(each init + sidecars before it, sidecars + apps)."""
    running = peak = 0
    for c in containers:
        peak = max(peak, running + c.request.memory)
        if c.role is not Role.INIT:
            running += c.request.memory
    return MiB(peak)


def cards_needed(containers: Sequence[ContainerRequest]) -> int:
    """How many whole cards the containers need in all, reused as kubelet reuses them."""
    return peak_amount(containers)


def shares_one_card(containers: Sequence[ContainerRequest]) -> bool:
    """Whether kubelet would mix the containers' devices, so that they must be on one card."""
    return len(containers) == 1 or any(c.role is Role.INIT for c in containers)


def _memory_then_cards(
    by_memory: Sequence[ContainerRequest], by_card: Sequence[ContainerRequest], cards: Sequence[CardState], key: Key
) -> Chosen | None:
    memory = _choose_memory(by_memory, cards, key)
    if memory is None:
        return None
    used = {s.card for slices in memory.values() for s in slices}
    whole = _choose_whole(by_card, [c for c in cards if c.uuid not in used])
    return None if whole is None else memory | whole


def _cards_then_memory(
    by_memory: Sequence[ContainerRequest], by_card: Sequence[ContainerRequest], cards: Sequence[CardState], key: Key
) -> Chosen | None:
    whole = _choose_whole(by_card, cards)
    if whole is None:
        return None
    used = {s.card for slices in whole.values() for s in slices}
    memory = _choose_memory(by_memory, [c for c in cards if c.uuid not in used], key)
    return None if memory is None else whole | memory


def _choose_memory(containers: Sequence[ContainerRequest], cards: Sequence[CardState], key: Key) -> Chosen | None:
    if not containers:
        return {}
    peak = peak_memory(containers)
    together = min((c for c in cards if c.free_memory >= peak), key=key, default=None)
    if together is not None:
        return {c.container: _slice(together.uuid, c) for c in containers}
    return None if shares_one_card(containers) else _choose_apart(containers, cards, key)


def _choose_apart(containers: Sequence[ContainerRequest], cards: Sequence[CardState], key: Key) -> Chosen | None:
    """Each container its own card: largest first, best card first, going back where that leads nowhere."""
    largest_first = sorted(containers, key=lambda c: -c.request.memory)
    order = sorted(cards, key=key)
    free = {card.uuid: int(card.free_memory) for card in order}
    taken: list[CardUUID] = []
    tries = 0

    def place(position: int) -> bool:
        nonlocal tries
        if position == len(largest_first):
            return True
        need = largest_first[position].request.memory
        seen: set[int] = set()
        for card in order:
            room = free[card.uuid]
            if room < need or room in seen or tries >= _SEARCH_LIMIT:
                continue
            seen.add(room)  # a card with the same room would lead to the same dead end
            tries += 1
            free[card.uuid] -= need
            taken.append(card.uuid)
            if place(position + 1):
                return True
            free[card.uuid] += need
            taken.pop()
        return False

    if not place(0):
        return None
    return {c.container: _slice(card, c) for c, card in zip(largest_first, taken, strict=True)}


def _choose_whole(containers: Sequence[ContainerRequest], cards: Sequence[CardState]) -> Chosen | None:
    """Unused cards only, the smallest first, so that the large ones stay free for those who need them."""
    if not containers:
        return {}
    needed = cards_needed(containers)
    idle = sorted((c for c in cards if c.idle and c.memory > 0), key=lambda c: (c.memory, c.index))[:needed]
    if len(idle) < needed:
        return None
    hand_out = _hand_out(containers)
    return {
        c.container: tuple(Slice(idle[n].uuid, idle[n].memory, WHOLE) for n in numbers)
        for c, numbers in zip(containers, hand_out, strict=True)
    }


def _hand_out(containers: Sequence[ContainerRequest]) -> list[list[int]]:
    """Numbers of the whole cards that each container gets: those that init containers left first, then new ones."""
    reusable: list[int] = []
    next_new = 0
    given: list[list[int]] = []
    for c in containers:
        mine = reusable[: c.request.count]
        fresh = c.request.count - len(mine)
        mine = mine + list(range(next_new, next_new + fresh))
        next_new += fresh
        given.append(mine)
        if c.role is Role.INIT:
            reusable += [n for n in mine if n not in reusable]
        else:
            reusable = [n for n in reusable if n not in mine]
    return given


def _slice(card: CardUUID, container: ContainerRequest) -> tuple[Slice, ...]:
    return (Slice(card, container.request.memory, container.request.cores),)
