"""A request by kinds of devices, and the placements of all kinds put together again.

Each kind is searched with the same code. Only here a request for non-GPU devices becomes one for cards, with a MiB for
each share and no cores, and what was found becomes shares again.
"""

from collections.abc import Iterator, Mapping

import msgspec

from fractile.model.card import DeviceKind
from fractile.model.placement import ContainerPlacement, Slice
from fractile.model.request import ContainerRequest, PodRequest, Request
from fractile.model.units import CardUUID, ContainerName, MiB

Part = tuple[DeviceKind, PodRequest]  # what a pod asks for of one kind, in terms of cards
FoundKinds = Mapping[DeviceKind, tuple[ContainerPlacement, ...]]  # in the order in which they were chosen


def parts(request: PodRequest) -> tuple[Part, ...]:
    """What the pod asks for of each kind, in the order of the kinds; at least one."""
    if all(c.request.kind is DeviceKind.GPU for c in request.containers):
        return ((DeviceKind.GPU, request),)
    return tuple(_parts(request))


def merged(request: PodRequest, found: FoundKinds) -> tuple[ContainerPlacement, ...]:
    """One placement for each container, in the request's order."""
    slices: dict[ContainerName, tuple[Slice, ...]] = {}
    for kind, placed in found.items():
        for c in placed:
            mine = c.slices if kind is DeviceKind.GPU else tuple(map(_as_shares, c.slices))
            slices[c.container] = slices.get(c.container, ()) + mine
    roles = {c.container: c.role for c in request.containers}
    return tuple(ContainerPlacement(name, role, slices[name]) for name, role in roles.items())


def _parts(request: PodRequest) -> Iterator[Part]:
    for kind in DeviceKind:
        containers = request.of(kind)
        if kind is not DeviceKind.GPU:
            containers = tuple(map(_as_card, containers))
        if containers:
            yield kind, msgspec.structs.replace(request, containers=containers)


def _as_card(asked: ContainerRequest) -> ContainerRequest:
    want = asked.request
    card = Request(count=want.count, memory=MiB(want.shares), selector=want.selector, device_class=want.device_class)
    return msgspec.structs.replace(asked, request=card)


def _as_shares(s: Slice) -> Slice:
    return Slice(CardUUID(s.card), MiB(0), shares=s.memory)
