"""Whether a recorded placement is one that we would write for this request. Annotations may come from anybody."""

from collections.abc import Iterable

from fractile.model.card import Card
from fractile.model.placement import ContainerPlacement, Placement
from fractile.model.request import ContainerRequest, PodRequest
from fractile.model.units import WHOLE


def mismatch(request: PodRequest, placement: Placement) -> str | None:
    """What the placement gets wrong about the pod's request, as a sentence; None when it matches."""
    if [c.container for c in request.containers] != [c.container for c in placement.containers]:
        asked = ", ".join(c.container for c in request.containers)
        return f"it must name the containers {asked} in this order"
    for asked, given in zip(request.containers, placement.containers, strict=True):
        wrong = _container_mismatch(asked, given)
        if wrong:
            return f"container {asked.container} {wrong}"
    return None


def barred(request: PodRequest, placement: Placement, cards: Iterable[Card]) -> str | None:
    """Which card of the placement the pod's selector does not admit, as a sentence. For choices that are still to be
    made; what a bound pod holds already, no later edit of its annotations takes away."""
    models = {c.uuid: c.model for c in cards}
    for asked in request.containers:
        for part in placement.slices_of(asked.container):
            if part.card in models and not asked.request.selector.admits(part.card, models[part.card]):
                return f"container {asked.container} may not use {models[part.card]} {part.card}"
    return None


def _container_mismatch(asked: ContainerRequest, given: ContainerPlacement) -> str | None:
    want = asked.request
    if asked.role != given.role:
        return f"is {asked.role.value}, the placement says {given.role.value}"
    if len({s.card for s in given.slices}) != len(given.slices) or len(given.slices) != want.count:
        return f"asks for {want.count} card(s), the placement names {len(given.slices)}"
    for part in given.slices:
        # What a whole card, or a percentage of one, comes to is not the request's to say: the ledger has the card.
        if not (want.exclusive or want.memory_percent) and part.memory != want.memory:
            return f"asks for {want.memory} MiB, the placement gives {part.memory} MiB"
        if part.cores != (WHOLE if want.exclusive else want.cores):
            return f"asks for {want.cores} % of a card's cores, the placement gives {part.cores} %"
        if part.slots != want.slots:
            return f"asks for {want.slots} slot(s) of a card, the placement gives {part.slots}"
    return None
