"""A pod's request in the terms of the core. Dialects translate manifests into these types."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Protocol

import msgspec

from fractile.model.card import DeviceKind
from fractile.model.units import CardUUID, ContainerName, MiB, Percent, PodUID


class Role(StrEnum):
    """How Kubernetes counts a container: init containers peak one after another, sidecars and apps add up."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Members(Protocol):
    """The current devices of a class. Compared by identity."""

    def __contains__(self, card: CardUUID, /) -> bool: ...


class Selector(msgspec.Struct, frozen=True):
    """Which cards a container may use; empty means any. A model is matched by any part of its name, in any case."""

    models: tuple[str, ...] = ()
    not_models: tuple[str, ...] = ()
    cards: tuple[CardUUID, ...] = ()
    not_cards: tuple[CardUUID, ...] = ()
    members: Members | None = None

    def admits(self, card: CardUUID, model: str) -> bool:
        if card in self.not_cards or (self.cards and card not in self.cards):
            return False
        if self.members is not None and card not in self.members:
            return False
        return self.admits_model(model)

    def admits_model(self, model: str) -> bool:
        if not (self.models or self.not_models):
            return True
        name = model.casefold()
        if any(part.casefold() in name for part in self.not_models):
            return False
        return not self.models or any(part.casefold() in name for part in self.models)


ANY = Selector()


class Request(msgspec.Struct, frozen=True):
    """What one container asks for: ``count`` cards and, on each of them, ``memory`` MiB and ``cores`` percent.

    ``memory_percent``, when not 0, is the memory in percent of each card; ``memory`` is then 0. ``exclusive`` asks for
    whole, unshared cards; memory and cores are then those of the card. ``cores_limit`` is the percent that is never
    exceeded, 0 for none. ``priority`` orders containers on a card, higher first. ``policy`` names how cards are chosen,
    ``node_policy`` how the node is chosen; "" is the cluster's default. ``slots`` is the number of device ids that it
    takes of each card, for resources of which a card has few. A placement is not checked against what a pod's
    annotations may change at any time (``cores_limit``, ``priority``, ``selector``, ``policy``, ``node_policy``).

    ``device_class`` names the requested class, or several, separated by commas, where only the classes themselves
    decide which one is meant. What the class gives is unknown until the request is resolved (``ledger.classes``); for a
    bound pod the placement says it. ``shares``: shares of each non-GPU device, which has no memory; 0 for GPUs.
    """

    count: int = 1
    memory: MiB = MiB(0)
    cores: Percent = Percent(0)
    exclusive: bool = False
    memory_percent: Percent = Percent(0)
    cores_limit: Percent = Percent(0)
    priority: int = 0
    selector: Selector = ANY
    policy: str = ""
    node_policy: str = ""
    slots: int = 0
    device_class: str = ""
    shares: int = 0

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.OTHER if self.shares else DeviceKind.GPU

    def memory_on(self, card: MiB) -> MiB:
        """The MiB that it takes of a card with ``card`` MiB; percentages are rounded down."""
        if self.exclusive:
            return card
        return MiB(card * self.memory_percent // 100) if self.memory_percent else self.memory


class ContainerRequest(msgspec.Struct, frozen=True):
    """The request of one container, and how it was made. A container that asks for GPUs and for other devices has two.

    ``resource`` is the resource whose device ids name the cards, ``amount`` how many of its ids are asked for.
    ``amounts`` are the amounts of all resources of its family, ``resource`` included, by name. ``index`` is the
    container's place in the pod's list of containers, or of init containers.
    """

    container: ContainerName
    role: Role
    request: Request
    resource: str
    amount: int
    amounts: tuple[tuple[str, int], ...] = ()
    index: int = 0

    def amount_of(self, resource: str) -> int:
        """How much of that resource the container asks for; 0 when it does not."""
        if resource == self.resource:
            return self.amount
        return next((amount for name, amount in self.amounts if name == resource), 0)


class PodRequest(msgspec.Struct, frozen=True):
    """All containers of a pod that ask for devices, in kubelet's order: init containers and sidecars as listed, then
    apps. If a container has two requests, the one for GPUs comes first."""

    uid: PodUID
    namespace: str
    name: str
    dialect: str
    containers: tuple[ContainerRequest, ...]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def gpus(self) -> tuple[ContainerRequest, ...]:
        """The requests for GPUs."""
        return self.of(DeviceKind.GPU)

    def of(self, kind: DeviceKind) -> tuple[ContainerRequest, ...]:
        """The requests for devices of that kind."""
        return tuple(c for c in self.containers if c.request.kind is kind)


def peak_amount(containers: Iterable[ContainerRequest], resource: str = "") -> int:
    """What Kubernetes counts of a resource: max(each init container + sidecars before it, sidecars + apps).

    By default the resource whose ids name the cards, which must then be the same for all of the containers.
    """
    running = peak = 0
    for container in containers:
        amount = container.amount_of(resource or container.resource)
        peak = max(peak, running + amount)
        if container.role is not Role.INIT:
            running += amount
    return peak
