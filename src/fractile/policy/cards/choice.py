"""Choose the cards of a node for a pod; the only place where cards are chosen.

Containers that kubelet ties together share a card (``parts``). Whole cards are unused cards that nothing else of the
pod uses. For the other parts, one card for all is preferred; if none has room, they may go to different cards
(``search``). Devices of other kinds are chosen after the cards, near them (``distance``). If none is near the cards
chosen first, cards and devices are searched at one place.

Each row of POLICIES is a policy: a key, of which the smallest wins, and a choice of a group of unused cards. Keys end
in the card's index, so equal inputs give equal placements on every replica. ``link``, ``fragment`` and ``share`` are
gpu-manager's terms (evidence/gpu-manager.md#topology); ``topology`` uses the one that suits the amount.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby

import msgspec

from fractile.model.card import DeviceKind
from fractile.model.placement import ContainerPlacement, Slice
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import WHOLE, ContainerName
from fractile.policy.cards import bandwidth, distance, kinds, topology
from fractile.policy.cards.effort import Effort, Sought
from fractile.policy.cards.parts import Numbers, SharedCard, has_room
from fractile.policy.cards.search import Key, search
from fractile.policy.cards.state import CardState, NodeState

Group = Callable[[Sequence[CardState], int, Sequence[CardState]], Sequence[CardState]]


class CardPolicy(msgspec.Struct, frozen=True):
    """``key`` orders cards for a part of a card; ``group`` picks ``count`` whole cards of at least that many unused
    ones, and also gets all cards of the node. ``near``: ``group`` also picks the cards when one container takes parts
    of several."""

    key: Key
    group: Group
    near: bool = False


def best_fit(card: CardState) -> tuple[int, ...]:
    """The card with the least left over."""
    return card.free_memory, card.free_cores, card.index


def smallest(cards: Sequence[CardState], count: int, node: Sequence[CardState]) -> Sequence[CardState]:
    """The smallest cards, so that large ones stay free for pods that need them."""
    return sorted(cards, key=lambda c: (c.memory, c.index))[:count]


def link(cards: Sequence[CardState], count: int, node: Sequence[CardState]) -> Sequence[CardState]:
    """The best-connected cards."""
    return _by_position(topology.closest, cards, count, node)


def fragment(cards: Sequence[CardState], count: int, node: Sequence[CardState]) -> Sequence[CardState]:
    """Cards of the most fragmented branch, so that whole branches stay free."""
    return _by_position(topology.fragment, cards, count, node)


def by_amount(cards: Sequence[CardState], count: int, node: Sequence[CardState]) -> Sequence[CardState]:
    return (link if count > 1 else fragment)(cards, count, node)


POLICIES: dict[str, CardPolicy] = {
    "topology": CardPolicy(best_fit, by_amount),
    "binpack": CardPolicy(best_fit, smallest),
    "spread": CardPolicy(lambda card: (-card.free_memory, -card.free_cores, card.index), smallest),
    "link": CardPolicy(best_fit, link, near=True),
    "fragment": CardPolicy(best_fit, fragment),
    "share": CardPolicy(best_fit, smallest),
}
DEFAULT = "topology"

Found = dict[int, CardState]  # by number of the part


def choose(
    request: PodRequest, state: NodeState, policy: str = "", effort: Effort | None = None
) -> tuple[ContainerPlacement, ...] | None:
    """The slices of every container in the request's order; None when the node cannot serve the pod now, or when the
    search was given up (``effort``).

    ``policy`` is the cluster's; a pod's own takes precedence. A name that is not in the table means the default.
    """
    effort = effort or Effort()
    wanted = kinds.parts(request)
    found = _of_each_kind(wanted, state, policy, effort)
    if found is None:
        return None
    if wanted[0][1] is request:  # GPUs only
        return found[DeviceKind.GPU]
    if distance.apart(found, state) > 0:  # other cards may be nearer to free devices
        sides = distance.sides(state, list(found))
        all_found = (_of_each_kind(wanted, side, policy, effort) for side in sides)
        found = min([found, *filter(None, all_found)], key=lambda one: distance.apart(one, state))
    return kinds.merged(request, found)


def _of_each_kind(
    wanted: Sequence[kinds.Part], state: NodeState, policy: str, effort: Effort
) -> kinds.FoundKinds | None:
    """Choose cards, then the devices of each further kind near what their containers already have."""
    found: dict[DeviceKind, tuple[ContainerPlacement, ...]] = {}
    for kind, part in wanted:
        if kind is DeviceKind.GPU:
            placed = _chosen(part.containers, state.cards, policy, effort)
        else:
            placed = _near(part.containers, state.of(kind), distance.neighbours(found, state), effort)
        if placed is None:
            return None
        found[kind] = placed
    return found


def _chosen(
    containers: Sequence[ContainerRequest], cards: Sequence[CardState], policy: str, effort: Effort
) -> tuple[ContainerPlacement, ...] | None:
    if any(c.request.count > len(cards) for c in containers):
        return None
    sought = effort.sought(containers)
    found = _choose(sought, cards, _policy(containers, policy), effort)
    return None if found is None else _placed(containers, sought.numbers, found)


def _near(
    containers: Sequence[ContainerRequest],
    devices: Sequence[CardState],
    neighbours: Mapping[ContainerName, Sequence[CardState]],
    effort: Effort,
) -> tuple[ContainerPlacement, ...] | None:
    """Choose devices near what their containers already have."""
    if any(c.request.count > len(devices) for c in containers):
        return None

    def far(part: SharedCard, device: CardState) -> int:
        return sum(distance.distance(device, neighbours.get(c.container, ())) for c in part.containers)

    sought = effort.sought(containers)
    found = _nearest(sought, devices, far, effort)
    return None if found is None else _placed(containers, sought.numbers, found)


def _nearest(
    sought: Sought, devices: Sequence[CardState], far: Callable[[SharedCard, CardState], int], effort: Effort
) -> Found | None:
    """One device for all containers if it has room, unless separate devices are nearer."""
    parts = sought.parts
    if len(parts) == 1:
        (part,) = parts
        device = min(filter(part.fits, devices), key=lambda d: (far(part, d), *best_fit(d)), default=None)
        return None if device is None else {part.number: device}
    if not effort.spend(len(parts) * len(devices)):
        return None
    together = _choose_together(sought, devices, lambda d: (sum(far(p, d) for p in parts), *best_fit(d)), effort)
    if together and all(far(p, together[p.number]) <= min(far(p, d) for d in devices) for p in parts):
        return together
    alone = search(parts, devices, lambda p: lambda d: (far(p, d), *best_fit(d)), effort)
    both = [found for found in (together, alone) if found is not None]
    return min(both, key=lambda found: sum(far(p, found[p.number]) for p in parts), default=None)


def _placed(containers: Sequence[ContainerRequest], numbers: Numbers, found: Found) -> tuple[ContainerPlacement, ...]:
    return tuple(
        ContainerPlacement(c.container, c.role, tuple(_slice(c, found[n]) for n in mine))
        for c, mine in zip(containers, numbers, strict=True)
    )


def fits(request: PodRequest, state: NodeState, effort: Effort | None = None) -> bool:
    """Whether ``choose`` finds cards. Every policy finds cards if there are any, so for a pod of one container the best
    ones are not searched: on a node with an irregular interconnect that takes a second."""
    effort = effort or Effort()
    wanted = kinds.parts(request)
    if wanted[0][1] is not request:
        return _of_each_kind(wanted, state, "", effort) is not None
    if len(request.containers) != 1:
        return choose(request, state, effort=effort) is not None
    if request.containers[0].request.count > len(state.cards):
        return False
    return _choose(effort.sought(request.containers), state.cards, POLICIES["binpack"], effort) is not None


def cards_needed(containers: Sequence[ContainerRequest]) -> int:
    """How many whole cards the containers need in total, reused as kubelet reuses them."""
    running = most = 0
    for c in containers:
        most = max(most, running + c.request.count)
        if c.role is not Role.INIT:
            running += c.request.count
    return most


def _policy(containers: Sequence[ContainerRequest], cluster: str) -> CardPolicy:
    own = next((c.request.policy for c in containers if c.request.policy), cluster)
    return POLICIES.get(own, POLICIES[DEFAULT])


def _choose(sought: Sought, cards: Sequence[CardState], policy: CardPolicy, effort: Effort) -> Found | None:
    whole = sought.whole
    first = _choose_shared(sought, cards, policy, effort)
    then = None if first is None else _choose_whole(whole, _without(cards, first), policy.group, cards)
    if first is not None and then is not None:
        return first | then
    if not (sought.shared and whole):
        return None
    # The parts may have taken the last unused cards.
    first = _choose_whole(whole, cards, policy.group, cards)
    then = None if first is None else _choose_shared(sought, _without(cards, first), policy, effort)
    return None if first is None or then is None else first | then


def _without(cards: Sequence[CardState], found: Found) -> list[CardState]:
    used = {card.uuid for card in found.values()}
    return [c for c in cards if c.uuid not in used]


def _choose_shared(sought: Sought, cards: Sequence[CardState], policy: CardPolicy, effort: Effort) -> Found | None:
    parts = sought.shared
    if not parts:
        return {}
    if len(parts) == 1:
        card = min(filter(parts[0].fits, cards), key=policy.key, default=None)
        return None if card is None else {parts[0].number: card}
    if policy.near and len({c for p in parts for c in p.containers}) == 1:
        fitting = list(filter(parts[0].fits, cards))
        if len(fitting) < len(parts):
            return None
        return {p.number: c for p, c in zip(parts, policy.group(fitting, len(parts), cards), strict=True)}
    if not effort.spend(len(parts) * (3 + len({c.memory for c in cards})) // 4):
        return None
    together = _choose_together(sought, cards, policy.key, effort)
    return together or search(parts, cards, lambda _: policy.key, effort)


def _choose_together(sought: Sought, cards: Sequence[CardState], key: Key, effort: Effort) -> Found | None:
    """One card for all, unless a container asked for several."""
    if sought.together is None:
        return None
    parts = sought.shared
    roomy = [c for c in cards if has_room(c, sought.peak(c.memory))]
    looked_at = sum(len(parts if c.rule.fractions else sought.picky) for c in roomy)
    if looked_at and not effort.spend(looked_at // 2):
        return None
    fitting = (c for c in roomy if all(p.admits(c) for p in (parts if c.rule.fractions else sought.picky)))
    card = min(fitting, key=key, default=None)
    return None if card is None else {p.number: card for p in parts}


def _choose_whole(
    parts: Sequence[SharedCard], cards: Sequence[CardState], group: Group, node: Sequence[CardState]
) -> Found | None:
    """Choose unused cards, a separate group for each container."""
    found: Found = {}
    for alike in _by_container(parts):
        used = {card.uuid for card in found.values()}
        first = [p for n, p in enumerate(alike) if n == 0 or p.containers != alike[n - 1].containers]
        idle = [c for c in cards if c.idle and c.memory > 0 and c.uuid not in used and all(p.fits(c) for p in first)]
        if len(idle) < len(alike):
            return None
        found |= {p.number: card for p, card in zip(alike, group(idle, len(alike), node), strict=True)}
    return found


def _by_container(parts: Sequence[SharedCard]) -> Iterator[list[SharedCard]]:
    """The parts by the first container that uses them."""
    for _, alike in groupby(parts, key=lambda p: p.places[0]):
        yield list(alike)


def _by_position(
    pick: Callable[[bandwidth.Matrix, topology.Kinds, topology.Positions, int], topology.Positions],
    cards: Sequence[CardState],
    count: int,
    node: Sequence[CardState],
) -> Sequence[CardState]:
    order = sorted(node, key=lambda c: (c.index, c.uuid))
    pairs = bandwidth.matrix(tuple((c.index, c.interconnect) for c in order))
    models = tuple((c.model, int(c.memory)) for c in order)
    wanted = {c.uuid for c in cards}
    free = tuple(n for n, c in enumerate(order) if c.uuid in wanted)
    return [order[n] for n in pick(pairs, models, free, count)]


def _slice(container: ContainerRequest, card: CardState) -> Slice:
    request = container.request
    cores = WHOLE if request.exclusive else request.cores
    return Slice(card.uuid, request.memory_on(card.memory), cores, request.slots)
