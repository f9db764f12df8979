"""How many devices of a class a node has, and how many are free: the reasons for non-GPU devices."""

from collections.abc import Sequence

from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest
from fractile.policy.cards.state import CardState


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
