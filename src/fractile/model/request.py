"""What a pod asks for, in the terms that the core knows. Dialects translate manifests into these."""

from collections.abc import Iterable
from enum import StrEnum

import msgspec

from fractile.model.units import ContainerName, MiB, Percent, PodUID


class Role(StrEnum):
    """How Kubernetes counts a container: init containers peak one after another, sidecars and apps add up."""

    INIT = "init"
    SIDECAR = "sidecar"
    APP = "app"


class Request(msgspec.Struct, frozen=True):
    """What one container asks for: ``count`` cards and, on each of them, ``memory`` MiB and ``cores`` percent.

    ``exclusive`` asks for whole cards that nobody else uses; memory and cores are then those of the card.
    """

    count: int = 1
    memory: MiB = MiB(0)
    cores: Percent = Percent(0)
    exclusive: bool = False


class ContainerRequest(msgspec.Struct, frozen=True):
    """The request of one container, the resource it was made through, and the amount of that resource in its units."""

    container: ContainerName
    role: Role
    request: Request
    resource: str
    amount: int


class PodRequest(msgspec.Struct, frozen=True):
    """All GPU containers of a pod in kubelet's order: init containers and sidecars as listed, then apps."""

    uid: PodUID
    namespace: str
    name: str
    dialect: str
    containers: tuple[ContainerRequest, ...]

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def peak_amount(containers: Iterable[ContainerRequest]) -> int:
    """The amount that Kubernetes counts for the pod: max(each init container + sidecars before it, sidecars + apps)."""
    running = peak = 0
    for container in containers:
        peak = max(peak, running + container.amount)
        if container.role is not Role.INIT:
            running += container.amount
    return peak
