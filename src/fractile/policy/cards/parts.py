"""Which containers of a pod must be on the same card.

Kubelet gives the device ids of a finished init container to the next containers of the pod before it asks for others
(evidence/kubelet.md#choice-of-ids), resource by resource. Cards are therefore numbered first: containers with the same
number share a card, to be chosen later. A container gets the numbers that init containers of its resource left, then
new ones.
"""

from collections.abc import Sequence

import msgspec

from fractile.model.request import ContainerRequest, Role
from fractile.model.units import WHOLE, MiB
from fractile.policy.cards.state import CardState

Numbers = tuple[tuple[int, ...], ...]


class Peak(msgspec.Struct, frozen=True, gc=False):
    """What containers need of the card that they share; see ``model.placement.charges``."""

    memory: int
    cores: int
    coreless: bool
    slots: int = 0
    slices: int = 1


class SharedCard(msgspec.Struct, frozen=True):
    """A card to be found: the containers that share it, in order, and their places in the pod."""

    number: int
    containers: tuple[ContainerRequest, ...]
    places: tuple[int, ...]

    @property
    def whole(self) -> bool:
        return any(c.request.exclusive for c in self.containers)

    def admits(self, card: CardState) -> bool:
        """Whether each container may be on that card, regardless of what is free there."""
        return all(c.request.selector.admits(card.uuid, card.model) and _right_size(c, card) for c in self.containers)

    def fits(self, card: CardState) -> bool:
        return self.admits(card) and has_room(card, peak(self.containers, card.memory))


def parts_of(containers: Sequence[ContainerRequest], numbers: Numbers) -> list[SharedCard]:
    """The cards to be found, by number."""
    places: list[list[int]] = [[] for _ in range(1 + max((n for mine in numbers for n in mine), default=-1))]
    for place, mine in enumerate(numbers):
        for n in mine:
            places[n].append(place)
    return [SharedCard(n, tuple(containers[i] for i in mine), tuple(mine)) for n, mine in enumerate(places)]


def peak(containers: Sequence[ContainerRequest], card: MiB) -> Peak:
    """What a card with ``card`` MiB must have free to serve all of them: max(each init container + sidecars before it,
    sidecars + apps)."""
    memory = cores = slots = slices = most = most_slots = most_slices = 0
    coreless = False
    promised = (0, False)
    for c in containers:
        wanted = WHOLE if c.request.exclusive else c.request.cores
        now = (memory + c.request.memory_on(card), slots + c.request.slots, cores + wanted, coreless or not wanted)
        most, most_slots, most_slices = max(most, now[0]), max(most_slots, now[1]), max(most_slices, slices + 1)
        promised = max(promised, now[2:])
        if c.role is not Role.INIT:
            memory, slots, cores, coreless = now
            slices += 1
    return Peak(most, *promised, slots=most_slots, slices=most_slices)


def has_room(card: CardState, need: Peak) -> bool:
    if not card.rule.has_place(card.slices, need.slices):
        return False
    return card.holds(need.memory, need.cores, coreless=need.coreless, slots=need.slots)


def _right_size(c: ContainerRequest, card: CardState) -> bool:
    cores = WHOLE if c.request.exclusive else c.request.cores
    return card.rule.admits(card.memory, memory=c.request.memory_on(card.memory), cores=cores)


def card_numbers(containers: Sequence[ContainerRequest]) -> Numbers:
    """The numbers of each container's cards, in its order; no container has a number twice."""
    left: dict[str, dict[int, int]] = {}  # resource -> number -> ids that kubelet will pass on
    used = 0
    given: list[tuple[int, ...]] = []
    for c in containers:
        pool = left.setdefault(c.resource, {})
        mine = list(pool)[: c.request.count]
        fresh = c.request.count - len(mine)
        mine += range(used, used + fresh)
        used += fresh
        _pass_on(pool, mine, c)
        given.append(tuple(mine))
    return tuple(given)


def _pass_on(pool: dict[int, int], mine: Sequence[int], c: ContainerRequest) -> None:
    """Update what kubelet can pass on after this container: what init containers had, less what others took of it."""
    ids = c.amount // c.request.count
    for n in mine:
        if c.role is Role.INIT:
            pool[n] = max(pool.get(n, 0), ids)
        elif n in pool:
            pool[n] -= ids
            if pool[n] <= 0:
                del pool[n]
