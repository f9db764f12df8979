"""A card as its node reports it, or any other device that pods can ask for by class."""

from enum import StrEnum
from typing import Final

import msgspec

from fractile.model.interconnect import Interconnect
from fractile.model.properties import NONE, Properties
from fractile.model.units import CardUUID, MiB, NodeName

GPU: Final = "gpu"  # the type of every card; other devices have other types


class DeviceKind(StrEnum):
    """The kinds of devices, in the order in which those of a pod are chosen. The ledger has arrays for each kind, and
    ``policy.cards.choice`` a way to choose them."""

    GPU = GPU
    OTHER = "other"


class Card(msgspec.Struct, frozen=True, gc=False):
    """One physical GPU, or another device. ``index`` is NVML's index on its node; ``memory`` is the total that NVML
    reports, in MiB; ``context`` is what a CUDA context costs on it, 0 when unknown; ``interconnect`` is None if it was
    not read.

    A non-GPU device has no memory; up to ``shares`` pods use it at a time. ``node`` is "" where the context gives it.
    """

    uuid: CardUUID
    index: int
    model: str
    memory: MiB
    pci_bus_id: str = ""
    healthy: bool = True
    context: MiB = MiB(0)
    interconnect: Interconnect | None = None
    type: str = GPU
    shares: int = 1
    properties: Properties = NONE
    node: NodeName = NodeName("")

    @property
    def kind(self) -> DeviceKind:
        return DeviceKind.GPU if self.type == GPU else DeviceKind.OTHER

    def property(self, key: str) -> str | None:
        """The device's property of that key, None if it has none. Quantities are as people write them."""
        match key:
            case "type":
                return self.type
            case "model":
                return self.model
            case "index":
                return str(self.index)
            case "nodeName":
                return self.node or None
            case "memory" if self.memory:
                return f"{self.memory}Mi"
            case "cores":
                return self.properties.get(key, "100")
            case _:
                return self.properties.get(key)


class NodeCards(msgspec.Struct, frozen=True):
    """The cards of one node, ordered by index."""

    node: NodeName
    cards: tuple[Card, ...]
