"""Check whether a recorded placement is one that we would write for this request. Annotations are untrusted."""

from collections.abc import Iterable

from fractile.model.card import Card
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import ContainerRequest, PodRequest, Request
from fractile.model.units import WHOLE


def mismatch(request: PodRequest, placement: Placement) -> str | None:
    """How the placement differs from the pod's request, as a sentence; None when it matches.

    The amounts of a class are only in the placement, so for classes the numbers of devices are compared, not the
    amounts.
    """
    names = list(dict.fromkeys(c.container for c in request.containers))
    if names != [c.container for c in placement.containers]:
        return f"it must name the containers {', '.join(names)} in this order"
    given = {c.container: c for c in placement.containers}
    for asked in request.containers:
        wrong = _container_mismatch(asked, given[asked.container], placement.slices_for(asked))
        if wrong:
            return f"container {asked.container} {wrong}"
    for name, container in given.items():
        wanted = sum(c.request.count for c in request.containers if c.container == name)
        if len(container.slices) != wanted:
            return f"container {name} asks for {wanted} device(s), the placement names {len(container.slices)}"
    return None


def barred(request: PodRequest, placement: Placement, cards: Iterable[Card]) -> str | None:
    """Which card of the placement the pod's selector does not admit, as a sentence. Only for pending choices: later
    edits of its annotations do not take away what a bound pod already holds."""
    models = {c.uuid: c.model for c in cards}
    for asked in request.containers:
        for part in placement.slices_for(asked):
            if part.card in models and not asked.request.selector.admits(part.card, models[part.card]):
                return f"container {asked.container} may not use {models[part.card]} {part.card}"
    return None


def _container_mismatch(asked: ContainerRequest, given: ContainerPlacement, slices: tuple[Slice, ...]) -> str | None:
    want = asked.request
    if asked.role != given.role:
        return f"is {asked.role.value}, the placement says {given.role.value}"
    if len({s.card for s in slices}) != len(slices) or len(slices) != want.count:
        return f"asks for {want.count} card(s), the placement names {len(slices)}"
    return next((wrong for part in slices if (wrong := _slice_mismatch(want, part))), None)


def _slice_mismatch(want: Request, part: Slice) -> str | None:
    if want.shares:
        right = (part.memory, part.cores, part.slots, part.shares) == (0, 0, 0, want.shares)
        return None if right else f"asks for {want.shares} share(s) of a device, the placement gives something else"
    if not want.device_class:
        # The request does not say how much a whole card, or a percentage of one, is: the ledger has the card.
        if not (want.exclusive or want.memory_percent) and part.memory != want.memory:
            return f"asks for {want.memory} MiB, the placement gives {part.memory} MiB"
        if part.cores != (WHOLE if want.exclusive else want.cores):
            return f"asks for {want.cores} percent of a card's cores, the placement gives {part.cores} percent"
    if part.slots != want.slots:
        return f"asks for {want.slots} slot(s) of a card, the placement gives {part.slots}"
    return None
