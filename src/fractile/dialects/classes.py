"""``class.fractile.dev/<class>``: devices by class, as in Caicloud's ResourceClass.

The original: evidence/resource-class.md#objects. A container names a class with a number of units, and a slot resource
with that many devices: ``fractile.dev/gpu`` for a class of GPUs, ``fractile.dev/device`` for a class of other devices.
Kubelet knows the slot resource, whose device ids name the devices. The classes are extended resources of the node
without device ids, which kube-scheduler and quotas add up. A GPU slot without a class is a whole GPU of any kind.

This module does not depend on the cluster's classes: ``ledger.classes`` resolves what a unit is when the pod is placed,
and from then on the placement says it. Until then a request names only its class, or both classes where a container
asks for GPUs and for other devices.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fractile.dialects.dialect import Advertised, ContainerResponse, Facts, ParsedRequest, ResourceKind
from fractile.dialects.shares import spread_evenly
from fractile.dialects.wishes import NONE, Wishes
from fractile.model.card import GPU, Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.sharing import MOST_SLICES
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, RESOURCE_PREFIX, class_of

VISIBLE = "NVIDIA_VISIBLE_DEVICES"
DEVICES = "FRACTILE_DEVICES"  # ids of the non-GPU devices, separated by commas


class ClassDialect:
    """The dialect; it has no state. It also owns all names below RESOURCE_PREFIX."""

    name = "class"
    resources: Mapping[str, ResourceKind] = MappingProxyType(
        {GPU_SLOT: ResourceKind.PRIMARY, DEVICE_SLOT: ResourceKind.PRIMARY}
    )
    wishes: frozenset[str] = frozenset()

    def read(self, annotations: Mapping[str, str]) -> Wishes | Refusal:
        return NONE

    def ask(self, amounts: Mapping[str, int], *, unit: MemoryUnit, wishes: Wishes) -> ParsedRequest | Refusal:
        """The request for one slot resource, with the classes that the container names."""
        slot = DEVICE_SLOT if DEVICE_SLOT in amounts else GPU_SLOT
        classes = sorted(name for resource in amounts if (name := class_of(resource)) is not None)
        count = amounts.get(slot, 0)
        if not count:
            return _malformed(
                f"asks for {RESOURCE_PREFIX}{classes[0]} without {GPU_SLOT} or {DEVICE_SLOT}; Fractile's webhook adds "
                "that when the pod is created"
            )
        if slot == DEVICE_SLOT:
            if not classes:
                return _malformed(f"asks for {DEVICE_SLOT} without a class; name one: {RESOURCE_PREFIX}<class>: 1")
            return ParsedRequest(slot, count, Request(count=count, device_class=",".join(classes), shares=1))
        if classes:
            return ParsedRequest(slot, count, Request(count=count, device_class=",".join(classes)))
        return ParsedRequest(slot, count, Request(count=count, cores=WHOLE, exclusive=True))

    def together(self, containers: Sequence[ContainerRequest]) -> Refusal | None:
        """Kubelet passes an init container's ids on in any order (evidence/kubelet.md#choice-of-ids). A later container
        that needs fewer ids than are left may get any of them, so it must ask for the same class."""
        for slot in self.resources:
            left, before = 0, set[str]()
            for c in (c for c in containers if c.resource == slot):
                if left > max(c.request.count, 1) and before - {c.request.device_class}:
                    return _malformed(
                        f"container {c.container} asks for {c.amount} {slot} after an init container with {left}, and "
                        "by another class: kubelet would choose which devices it gets; let it ask for as many, or by "
                        "the same class"
                    )
                if c.role is Role.INIT:
                    left, before = max(left, c.request.count), before | {c.request.device_class}
                else:
                    left = max(left - c.request.count, 0)
        return None

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit, slots: int) -> tuple[Advertised, ...]:
        others = {c.uuid: c.shares for c in cards if c.type != GPU}
        return (
            Advertised(GPU_SLOT, {c.uuid: MOST_SLICES for c in cards if c.type == GPU}, distinct=True),
            Advertised(DEVICE_SLOT, others, distinct=True),
        )

    def ids_wanted(self, resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
        return spread_evenly(asked.amount, slices)

    def slices_held(
        self,
        asked: ContainerRequest,
        held: Mapping[CardUUID, int],
        cards: Sequence[Card],
        given: Sequence[Slice] = (),
    ) -> tuple[Slice, ...]:
        """``given``: what the placement gives the container; the amounts come from there."""
        if asked.request.shares:
            return tuple(Slice(card, memory=MiB(0), shares=asked.request.shares) for card in held)
        known = {c.uuid: c for c in cards}
        planned = {s.card: s for s in given}
        others = iter([s for s in given if s.card not in held])
        return tuple(
            planned[card] if card in planned else _moved(next(others, None), card, known, asked.request)
            for card in held
        )

    def torn(self, resource: str, held: Mapping[CardUUID, int]) -> bool:
        return False

    def answer(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
    ) -> ContainerResponse:
        mine = [c.uuid for c in cards if c.uuid in held]
        return ContainerResponse({(VISIBLE if resource == GPU_SLOT else DEVICES): ",".join(mine)})

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        return {}

    def assigned(self, request: PodRequest) -> dict[str, str]:
        return {}


def _moved(planned: Slice | None, card: CardUUID, known: Mapping[CardUUID, Card], request: Request) -> Slice:
    """What the container has on a card that its placement does not name: as much as on a planned card that it did not
    get."""
    size = known[card].memory if card in known else MiB(0)
    if request.exclusive:
        return Slice(card, size, WHOLE)
    if planned is None:
        return Slice(card, MiB(0))
    before = known.get(planned.card)
    whole = planned.cores == WHOLE and before is not None and planned.memory == before.memory
    return Slice(card, size if whole else planned.memory, planned.cores)


def _malformed(what: str) -> Refusal:
    return Refusal(Code.MALFORMED, what)
