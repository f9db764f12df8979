"""The seam between the core and a family of resource names."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest, Request
from fractile.model.units import CardUUID, MemoryUnit


class Advertised(msgspec.Struct, frozen=True):
    """A resource that the node reports to kubelet: how many device ids each card contributes."""

    resource: str
    ids: dict[CardUUID, int]

    @property
    def total(self) -> int:
        return sum(self.ids.values())


class Asked(msgspec.Struct, frozen=True):
    """What a container asked for: the resource, its amount in that resource's units, and the amount as a Request."""

    resource: str
    amount: int
    request: Request


class Dialect(Protocol):
    """One family of resource names."""

    @property
    def name(self) -> str: ...

    @property
    def resources(self) -> frozenset[str]:
        """The resource names that this family claims."""
        ...

    def ask(self, amounts: Mapping[str, int], unit: MemoryUnit) -> Asked | Refusal:
        """Translate one container's amounts: non-empty, positive, and only of ``resources``."""
        ...

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit) -> tuple[Advertised, ...]:
        """What a node with these cards reports."""
        ...

    def environment(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, pod_amount: int
    ) -> dict[str, str]:
        """The variables of a container that holds that many ids of each card."""
        ...

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        """The annotations that this family's own tools expect on a bound pod."""
        ...

    def assigned(self, request: PodRequest) -> dict[str, str]:
        """The annotations that say that the node has handed the cards over."""
        ...
