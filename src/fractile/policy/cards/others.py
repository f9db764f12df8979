"""Choose non-GPU devices as cards are chosen: a share stands for a MiB, and cores are never requested.

Of the devices that fit, the one nearest to its container's cards is taken, by the places that both report: the NUMA
node, and the group of connected cards, a property that may also be given to a device. If no device is near the cards
chosen first, cards and devices are searched at one place.
"""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from fractile.model.placement import ContainerPlacement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request
from fractile.model.units import CardUUID, ContainerName, MiB
from fractile.policy.cards.state import CardState, NodeState

_PLACES = (("numaNode", 2), ("interconnectGroup", 1))  # properties, and how much each counts


def mixed(request: PodRequest) -> bool:
    """Whether the pod asks for anything but GPUs."""
    return any(c.request.shares for c in request.containers)


def of_gpus(request: PodRequest) -> PodRequest:
    """The part of the request that asks for GPUs."""
    return msgspec.structs.replace(request, containers=request.gpus)


def of_others(request: PodRequest) -> PodRequest:
    """The part of the request that asks for other devices, as a request for cards with a MiB for each share."""
    return msgspec.structs.replace(request, containers=tuple(map(_as_card, request.others)))


def others_of(state: NodeState) -> NodeState:
    """The node with its other devices in place of its cards."""
    return NodeState(state.node, state.others)


def distance(device: CardState, cards: Iterable[CardState]) -> int:
    """How far the device is from all of the cards: less is nearer, 0 if nothing is known."""
    return sum(
        weight * _apart(device.properties.get(place), card.properties.get(place))
        for card in cards
        for place, weight in _PLACES
    )


def apart(gpus: Sequence[ContainerPlacement], beside: Sequence[ContainerPlacement], state: NodeState) -> int:
    """How far the devices of all containers are from their cards."""
    known = {c.uuid: c for c in (*state.cards, *state.others)}
    cards = {c.container: [known[s.card] for s in c.slices] for c in gpus}
    return sum(distance(known[s.card], cards.get(c.container, ())) for c in beside for s in c.slices)


def sides(state: NodeState) -> Iterator[NodeState]:
    """The node reduced to what is at one place, for each place that has both cards and other devices."""
    for place, _ in _PLACES:
        theirs, ours = (_values(group, place) for group in (state.cards, state.others))
        for value in sorted(theirs & ours):
            cards, devices = (
                tuple(c for c in group if c.properties.get(place) == value) for group in (state.cards, state.others)
            )
            yield NodeState(state.node, cards, devices)


def _values(group: Iterable[CardState], place: str) -> set[str]:
    return {value for c in group if (value := c.properties.get(place)) is not None}


def merged(
    request: PodRequest, gpus: Sequence[ContainerPlacement], others: Sequence[ContainerPlacement]
) -> tuple[ContainerPlacement, ...]:
    """One placement for each container, in the request's order."""
    slices: dict[ContainerName, tuple[Slice, ...]] = {c.container: c.slices for c in gpus}
    for c in others:
        slices[c.container] = slices.get(c.container, ()) + tuple(map(_as_shares, c.slices))
    roles = {c.container: c.role for c in request.containers}
    return tuple(ContainerPlacement(name, role, slices[name]) for name, role in roles.items())


def no_devices() -> Refusal:
    return Refusal(Code.NO_CARDS, "no devices other than GPUs reported by the node's fractile agent")


def none_of_class(asked: ContainerRequest, devices: Sequence[CardState]) -> Refusal | None:
    """The refusal when the class has no device on this node."""
    selector = asked.request.selector
    if any(selector.admits(d.uuid, d.model) for d in devices):
        return None
    return Refusal(Code.NO_SUCH_CARD, f"no device of the node is of class {asked.request.device_class}")


def too_few(request: PodRequest, devices: Sequence[CardState], *, ever: bool) -> str:
    """How many are requested and how many there are, of the class that has too few, else of the first."""
    said = [_of_class(name, request, devices, ever=ever) for name in _classes(request)]
    return next((sentence for sentence, enough in said if not enough), said[0][0])


def _apart(one: str | None, other: str | None) -> int:
    return 0 if one is None or other is None else (-1 if one == other else 1)


def _of_class(name: str, request: PodRequest, devices: Sequence[CardState], *, ever: bool) -> tuple[str, bool]:
    mine = [c.request for c in request.containers if c.request.device_class == name]
    most = max(r.count for r in mine)
    matching = [d for d in devices if mine[0].selector.admits(d.uuid, d.model)]
    if ever:
        return f"class {name}: {most} requested, the node has {len(matching)}", most <= len(matching)
    free = sum(d.free_memory > 0 for d in matching)
    verb = "is" if free == 1 else "are"
    asked = f"{most} requested" if len(mine) == 1 else f"{' + '.join(str(r.count) for r in mine)} requested"
    return f"class {name}: {free} of {len(matching)} matching devices {verb} free, {asked}", most <= free


def _classes(request: PodRequest) -> list[str]:
    return list(dict.fromkeys(c.request.device_class for c in request.containers))


def _as_card(asked: ContainerRequest) -> ContainerRequest:
    want = asked.request
    card = Request(count=want.count, memory=MiB(want.shares), selector=want.selector, device_class=want.device_class)
    return msgspec.structs.replace(asked, request=card)


def _as_shares(s: Slice) -> Slice:
    return Slice(CardUUID(s.card), MiB(0), shares=s.memory)
