"""Upper bounds on a pod's request, checked before the request is worked out.

The API server stores pods of up to 1.5 MB, room for thousands of containers, names and cards, and each of our programs
reads them. No node could serve more than these bounds, and no honest pod comes near them.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest
from fractile.model.words import quoted
from fractile.wire.fractile.placement import MAX_CONTAINERS
from fractile.wire.kubernetes.objects import Container

MOST_NAMES = 64  # resources of any kind in the limits, and in the requests, of a container with one of ours
MOST_CONTAINERS = 64  # of a pod to be placed: kubelet admits them one by one and no other pod meanwhile
MOST_PARTS = 512  # cards, parts of cards and other devices of a pod; a node has at most 128 cards and 256 devices


def too_many_names(container: Container, *, bound: bool, ours: Callable[[str], bool]) -> Refusal | None:
    """The refusal of a container that names resources of ours and too many resources. For a bound pod only ours count:
    no pod with that many of ours was ever bound, and other resources that it names must not free its cards."""
    if container.resources is None:
        return None
    for names in (container.resources.requests or {}, container.resources.limits or {}):
        if len(names) > MOST_NAMES and not (bound and _few(filter(ours, names))):
            return Refusal(Code.MALFORMED, names_too_many(container.name, len(names)))
    return None


def names_too_many(container: str, names: int) -> str:
    return (
        f"container {quoted(container)} names {names} resources; a container that asks for GPUs may name at most "
        f"{MOST_NAMES}, including those of the GPUs"
    )


def too_many_containers(found: Sequence[ContainerRequest]) -> Refusal | None:
    if len(found) <= MAX_CONTAINERS:
        return None
    said = f"asks for GPUs in more than {MAX_CONTAINERS} containers; a placement names at most {MAX_CONTAINERS}"
    return Refusal(Code.MALFORMED, said)


def too_many_to_start(found: Sequence[ContainerRequest]) -> Refusal | None:
    """The refusal of a pod to be placed: each container takes a seat of the node's arbiter and delays all its pods."""
    asking = len({c.container for c in found})
    return Refusal(Code.MALFORMED, containers_too_many(asking)) if asking > MOST_CONTAINERS else None


def containers_too_many(asking: int) -> str:
    return (
        f"asks for GPUs or other devices in {asking} containers, init containers included; a pod may do so in at most "
        f"{MOST_CONTAINERS}"
    )


def too_many_parts(found: Sequence[ContainerRequest]) -> Refusal | None:
    """The refusal of a pod to be placed that asks for too many cards, parts and devices."""
    parts = sum(c.request.count for c in found)
    if parts <= MOST_PARTS:
        return None
    said = f"asks for {parts} cards, parts of cards and devices in all; a pod may have {MOST_PARTS}"
    return Refusal(Code.MALFORMED, said)


def _few(names: Iterable[str]) -> bool:
    return len(list(islice(names, MOST_NAMES + 1))) <= MOST_NAMES
