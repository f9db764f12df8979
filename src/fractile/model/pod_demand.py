"""A pod's total demand as node scores see it: CPU and memory of the node, and cards or parts of cards.

It is the same for the thousands of pods of a workload, so they share one object. Sizes stay in MiB and percent here:
which part of a card they are depends on the card (``policy.nodes.asked``).
"""

import msgspec


class PartOfCard(msgspec.Struct, frozen=True):
    """A part of one card: MiB, percent of its memory, percent of its cores. ``memory_percent`` counts unless it is
    0."""

    memory: int = 0
    memory_percent: int = 0
    cores: int = 0


class PodDemand(msgspec.Struct, frozen=True):
    """``whole`` cards and ``parts`` of others. ``models``: names of accepted models, sorted; empty: any. ``more``: the
    number of further parts, each no larger than the largest of ``parts``: a pod may ask for hundreds."""

    cpu: int  # thousandths of a CPU
    memory: int  # MiB
    whole: int = 0
    parts: tuple[PartOfCard, ...] = ()
    models: tuple[str, ...] = ()
    more: int = 0

    @property
    def shared(self) -> int:
        """The number of parts of cards."""
        return len(self.parts) + self.more

    @property
    def asks(self) -> bool:
        """Whether it asks for any GPU."""
        return bool(self.whole or self.parts)
