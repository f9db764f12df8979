"""Whether a recorded placement is one that we would write for this request. Annotations may come from anybody."""

from fractile.model.placement import ContainerPlacement, Placement
from fractile.model.request import ContainerRequest, PodRequest


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


def _container_mismatch(asked: ContainerRequest, given: ContainerPlacement) -> str | None:
    want = asked.request
    if asked.role != given.role:
        return f"is {asked.role.value}, the placement says {given.role.value}"
    if len({s.card for s in given.slices}) != len(given.slices) or len(given.slices) != want.count:
        return f"asks for {want.count} card(s), the placement names {len(given.slices)}"
    for part in given.slices:
        # How much memory a whole card has is not the request's to say: the ledger compares it with the card's.
        if not want.exclusive and part.memory != want.memory:
            return f"asks for {want.memory} MiB, the placement gives {part.memory} MiB"
        if part.cores != want.cores:
            return f"asks for {want.cores} % of a card's cores, the placement gives {part.cores} %"
    return None
