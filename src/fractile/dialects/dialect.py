"""The seam between the core and a family of resource names.

A container may ask through several resources of one family. Exactly one of them, the *primary*, decides: its device ids
name the cards, its Allocate answers with environment and mounts, its PreStart grants. The others say how much.
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
    COUNTED = "counted"  # device ids that are only counted: which ones a container gets decides nothing
    AMOUNT = "amount"  # no device ids: kube-scheduler is told to leave it to the extender, kubelet does not know it


class Advertised(msgspec.Struct, frozen=True):
    """A resource that the node reports to kubelet: how many device ids each card contributes.

    ``distinct``: the ids of one container should be of as many cards as possible, instead of as few.
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
    """What is known of a container while its ids are given out, beyond the ids themselves. A courtesy: when nobody
    knows, ``amounts`` is empty and ``pod_amount`` the container's own."""

    pod_amount: int  # of the primary resource, as Kubernetes counts it for the pod
    amounts: tuple[tuple[str, int], ...] = ()


class ContainerResponse(msgspec.Struct, frozen=True):
    """What a container gets besides its mounts: variables, and annotations that only the runtime sees."""

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
        """The annotations of a pod that ``read`` looks at; what they all leave out is the same for every pod."""
        ...

    def read(self, annotations: Mapping[str, str]) -> Wishes | Refusal:
        """What the annotations of a pod say to this family. Called once for a pod: a tenant may write very long ones
        and very many containers."""
        ...

    def ask(self, amounts: Mapping[str, int], *, unit: MemoryUnit, wishes: Wishes) -> ParsedRequest | Refusal:
        """Translate one container's amounts: only of ``resources``, one of them positive at least. Zeros are among them
        only of resources without device ids, where nothing and zero may be two things."""
        ...

    def together(self, containers: Sequence[ContainerRequest]) -> Refusal | None:
        """Why the pod's containers, all of this family, cannot be had together; None when they can."""
        ...

    def advertise(self, cards: Sequence[Card], unit: MemoryUnit, slots: int) -> tuple[Advertised, ...]:
        """What a node with these cards reports: primary and counted resources. ``slots``: how many containers a card
        serves through ids that each stand for one."""
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
        """The slices that so many ids of the primary resource stand for. What no placement of ours gives stays
        visible: the caller compares it with the placement. ``given``: what that gives the container."""
        ...

    def answer(
        self, resource: str, held: Mapping[CardUUID, int], *, cards: Sequence[Card], unit: MemoryUnit, facts: Facts
    ) -> ContainerResponse:
        """What a container gets that holds that many ids of each card, of a primary resource."""
        ...

    def annotate(
        self, request: PodRequest, placement: Placement, *, cards: Sequence[Card], unit: MemoryUnit, now_ns: int
    ) -> dict[str, str]:
        """The annotations that this family's own tools expect on a bound pod."""
        ...

    def assigned(self, request: PodRequest) -> dict[str, str]:
        """The annotations that say that the node has handed the cards over."""
        ...
