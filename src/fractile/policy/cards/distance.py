"""How far devices of different kinds are from each other on a node: a network adapter from the card that it serves.

Both report places: the NUMA node, and the group of connected cards, a property that may also be given to a device.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from fractile.model.card import DeviceKind
from fractile.model.units import ContainerName
from fractile.policy.cards.kinds import FoundKinds
from fractile.policy.cards.state import CardState, NodeState

_PLACES = (("numaNode", 2), ("interconnectGroup", 1))  # properties, and how much each counts


def distance(device: CardState, cards: Iterable[CardState]) -> int:
    """How far the device is from all of the cards: less is nearer, 0 if nothing is known."""
    return sum(
        weight * _apart(device.properties.get(place), card.properties.get(place))
        for card in cards
        for place, weight in _PLACES
    )


def neighbours(found: FoundKinds, state: NodeState) -> dict[ContainerName, list[CardState]]:
    """What each container was given so far."""
    theirs: dict[ContainerName, list[CardState]] = {}
    for kind, placed in found.items():
        known = {c.uuid: c for c in state.of(kind)}
        for c in placed:
            theirs.setdefault(c.container, []).extend(known[s.card] for s in c.slices)
    return theirs


def apart(found: FoundKinds, state: NodeState) -> int:
    """How far the devices of all containers are from their cards."""
    cards = neighbours({k: placed for k, placed in found.items() if k is DeviceKind.GPU}, state)
    return sum(
        distance(device, cards.get(container, ()))
        for kind, placed in found.items()
        if kind is not DeviceKind.GPU
        for container, devices in neighbours({kind: placed}, state).items()
        for device in devices
    )


def sides(state: NodeState, kinds: Sequence[DeviceKind]) -> Iterator[NodeState]:
    """The node reduced to what is at one place, for each place that has devices of all these kinds."""
    for place, _ in _PLACES:
        first, *rest = (_values(state.of(kind), place) for kind in kinds)
        common = (value for value in first if all(value in values for values in rest))
        yield from (state.only(partial(_is_at, place, value)) for value in sorted(common))


def _is_at(place: str, value: str, device: CardState) -> bool:
    return device.properties.get(place) == value


def _values(group: Iterable[CardState], place: str) -> frozenset[str]:
    return frozenset(value for c in group if (value := c.properties.get(place)) is not None)


def _apart(one: str | None, other: str | None) -> int:
    return 0 if one is None or other is None else (-1 if one == other else 1)
