"""A card as its node reports it."""

import msgspec

from fractile.model.interconnect import Interconnect
from fractile.model.units import CardUUID, MiB, NodeName


class Card(msgspec.Struct, frozen=True, gc=False):
    """One physical GPU. ``index`` is NVML's index on its node; ``memory`` is the total that NVML reports, in MiB;
    ``context`` what a CUDA context costs on it, 0 when that is not known; ``interconnect`` is None if nobody asked."""

    uuid: CardUUID
    index: int
    model: str
    memory: MiB
    pci_bus_id: str = ""
    healthy: bool = True
    context: MiB = MiB(0)
    interconnect: Interconnect | None = None


class NodeCards(msgspec.Struct, frozen=True):
    """The cards of one node, ordered by index."""

    node: NodeName
    cards: tuple[Card, ...]
