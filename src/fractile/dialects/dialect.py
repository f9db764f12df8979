"""The interface between the core and a family of resource names.

A container may ask through several resources of one family. Exactly one, the *primary*, decides: its device ids name
the cards, its Allocate answers with environment and mounts, and its PreStart grants. The others give amounts.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Protocol

import msgspec

from fractile.dialects.wishes import Wishes
from fractile.model.card import Card
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request
from fractile.model.units import CardUUID, MemoryUnit


class ResourceKind(StrEnum):
    """What a resource is to kubelet and to kube-scheduler."""

    PRIMARY = "primary"  # device ids that name the cards; kube-scheduler sums them
    COUNTED = "counted"  # device ids that are only counted: which ones a container gets does not matter
    AMOUNT = "amount"  # no device ids: kube-scheduler leaves it to the extender, kubelet does not know it


class Advertised(msgspec.Struct, frozen=True):
    """A resource that the node reports to kubelet: how many device ids each card contributes.

    ``distinct``: the ids of one container should be from as many cards as possible, instead of from as few.
    """

    resource: str
    ids: dict[CardUUID, int]
    distinct: bool = False

    @property
    def total(self) -> int:
        return sum(self.ids.values())


class ParsedRequest(msgspec.Struct, frozen=True):
    """What a container asked for: its primary resource, the amount of it in that resource's units, and the Request."""

    resource: str
    amount: int
    request: Request


class Facts(msgspec.Struct, frozen=True):
    """What is known of a container while its ids are allocated, besides the ids. For information only: when unknown,
    ``amounts`` is empty and ``pod_amount`` is the container's own amount."""

    pod_amount: int  # of the primary resource, as Kubernetes counts it for the pod
    amounts: tuple[tuple[str, int], ...] = ()


class ContainerResponse(msgspec.Struct, frozen=True):
    """What a container gets besides its mounts: variables, and annotations for the runtime only."""

    environment: dict[str, str]
    annotations: dict[str, str] = {}


class Dialect(Protocol):
    """One family of resource names."""

    @property
    def name(self) -> str: ...

    @property
    def resources(self) -> Mapping[str, ResourceKind]:
        """The resource names that this family claims."""
        ...

    @property
    def wishes(self) -> frozenset[str]:
        """The pod annotations that ``read`` uses; ``read`` returns the same for every pod that has none of them."""
        ...

    def read(self, annotations: Mapping[str, str]) -> Wishes | Refusal:
        """What a pod's annotations mean to this family. Called once per pod, since a tenant may write very long
        annotations and very many containers."""
        ...

    def ask(self, amounts: Mapping[str, int], *, unit: MemoryUnit, wishes: Wishes) -> ParsedRequest | Refusal:
        """Translate one container's amounts: only of ``resources``, at least one positive. Zeros are passed only for
        resources without device ids, where zero may differ from absent."""
        ...

    def together(self, containers: Sequence[ContainerRequest]) -> Refusal | None:
        """Why the pod's containers, all of this family, cannot be served together; None when they can."""
        ...

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit, slots: int) -> tuple[Advertised, ...]:
        """What a node with these cards reports: primary and counted resources. ``slots``: how many containers share a
        card where each id stands for one container."""
        ...

    def ids_wanted(self, resource: str, asked: ContainerRequest, slices: Sequence[Slice]) -> dict[CardUUID, int]:
        """How many ids of each card stand for these slices, for a primary or a counted resource."""
        ...

    def slices_held(
        self,
        asked: ContainerRequest,
        held: Mapping[CardUUID, int],
        cards: Sequence[Card],
        given: Sequence[Slice] = (),
    ) -> tuple[Slice, ...]:
        """The slices that the held ids of the primary resource stand for. Holdings that no placement of ours would give
        are returned as they are, so that the caller can compare them with the placement. ``given``: the placement's
        slices for the container."""
        ...

    def torn(self, resource: str, held: Mapping[CardUUID, int]) -> bool:
        """Whether these ids of a primary resource are of no use to any container: kubelet took what must be of one card
        from several."""
        ...

    def answer(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
    ) -> ContainerResponse:
        """What a container gets that holds so many ids of each card, for a primary resource."""
        ...

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        """The annotations that this family's own tools expect on a bound pod."""
        ...

    def assigned(self, request: PodRequest) -> dict[str, str]:
        """The annotations that say that the node has allocated the cards."""
        ...
