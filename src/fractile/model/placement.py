"""The cards and amounts that a pod was allocated, and what they cost each card."""

from collections.abc import Iterable

import msgspec

from fractile.model.request import ContainerRequest, Role
from fractile.model.units import CardUUID, ContainerName, MiB, NodeName, Percent


class Slice(msgspec.Struct, frozen=True, gc=False):
    """The part of one card that one container holds. ``slots``: device ids, for a resource of which a card has few.
    ``shares``: shares of a non-GPU device, whose other amounts are 0; 0 for a GPU."""

    card: CardUUID
    memory: MiB
    cores: Percent = Percent(0)
    slots: int = 0
    shares: int = 0


class ContainerPlacement(msgspec.Struct, frozen=True, gc=False):
    """The slices of one container, with the role that decides how they count."""

    container: ContainerName
    role: Role
    slices: tuple[Slice, ...]


class Placement(msgspec.Struct, frozen=True, gc=False):
    """Where a pod's GPU containers run: containers in kubelet's order, as in the PodRequest."""

    node: NodeName
    containers: tuple[ContainerPlacement, ...]

    def slices_of(self, container: ContainerName) -> tuple[Slice, ...]:
        """The slices of that container; empty when it has none."""
        return next((c.slices for c in self.containers if c.container == container), ())

    def slices_for(self, asked: ContainerRequest) -> tuple[Slice, ...]:
        """The slices that answer this request of its container: those of GPUs, or those of other devices."""
        return tuple(s for s in self.slices_of(asked.container) if bool(s.shares) is bool(asked.request.shares))


class Charge(msgspec.Struct, frozen=True, gc=False):
    """What a pod takes from one card at its peak. ``coreless``: at the peak of its cores, a container without promised
    cores runs too and needs a little unpromised time. ``slices``: containers that hold a part of the card at the same
    time. ``shares``: of a non-GPU device; the pod then takes nothing else."""

    card: CardUUID
    memory: MiB
    cores: Percent
    coreless: bool = False
    slots: int = 0
    slices: int = 1
    shares: int = 0


def charges(placement: Placement) -> tuple[Charge, ...]:
    """The peak use of each card: max(each init container + sidecars before it, sidecars + apps).

    This is Kubernetes' rule for pod requests, applied card by card and to memory, cores, slots and shares separately.
    """
    if len(placement.containers) == 1 and len(placement.containers[0].slices) == 1:
        return (_whole(placement.containers[0].slices[0]),)  # nearly all pods; takes a quarter of the time
    running: dict[CardUUID, tuple[int, int, int, int, int, bool]] = {}
    peak: dict[CardUUID, tuple[int, int, int, int, tuple[int, bool]]] = {}
    for container in placement.containers:
        for card, (memory, slots, shares, cores) in _per_card(container.slices).items():
            held = running.get(card, (0, 0, 0, 0, 0, False))
            coreless = held[5] or not (cores or shares)
            now = (held[0] + memory, held[1] + slots, held[2] + 1, held[3] + shares, held[4] + cores, coreless)
            before = peak.get(card, (0, 0, 0, 0, (0, False)))
            # Fewer cores with a coreless container never need more than the most cores without one.
            peak[card] = (
                max(before[0], now[0]),
                max(before[1], now[1]),
                max(before[2], now[2]),
                max(before[3], now[3]),
                max(before[4], now[4:]),
            )
            if container.role is not Role.INIT:
                running[card] = now
    return tuple(
        Charge(card, MiB(memory), Percent(cores), coreless, slots, slices, shares)
        for card, (memory, slots, slices, shares, (cores, coreless)) in peak.items()
    )


def larger(one: Iterable[Charge], other: Iterable[Charge]) -> tuple[Charge, ...]:
    """The most that a pod takes of each card if it has one of two placements and it is unknown which."""
    found = {charge.card: charge for charge in one}
    for b in other:
        a = found.get(b.card)
        found[b.card] = b if a is None else _larger(a, b)
    return tuple(found.values())


def _larger(a: Charge, b: Charge) -> Charge:
    return Charge(
        a.card,
        max(a.memory, b.memory),
        max(a.cores, b.cores),
        a.coreless or b.coreless,
        max(a.slots, b.slots),
        max(a.slices, b.slices),
        max(a.shares, b.shares),
    )


def _whole(s: Slice) -> Charge:
    """The charge of a pod's only slice."""
    return Charge(s.card, s.memory, s.cores, not (s.cores or s.shares), s.slots, 1, s.shares)


def _per_card(slices: Iterable[Slice]) -> dict[CardUUID, tuple[int, int, int, int]]:
    sums: dict[CardUUID, tuple[int, int, int, int]] = {}
    for s in slices:
        memory, slots, shares, cores = sums.get(s.card, (0, 0, 0, 0))
        sums[s.card] = (memory + s.memory, slots + s.slots, shares + s.shares, cores + s.cores)
    return sums
