"""What a pod asks for in all, as scores of nodes see it: CPU and memory of the node, and cards or parts of them.

The same for the thousands of pods of a workload, so that they share one. Sizes stay in MiB and percent here: what part
of a card they are depends on the card (``policy.score.asked``).
"""

import msgspec


class PartOfCard(msgspec.Struct, frozen=True):
    """Of one card: MiB, percent of its memory, percent of its cores. Percent of memory counts where it is not 0."""

    memory: int = 0
    memory_percent: int = 0
    cores: int = 0


class PodDemand(msgspec.Struct, frozen=True):
    """``whole`` cards and ``parts`` of others. ``models`` are names that will do, in their order; empty: any. ``more``:
    further parts, none of which is larger than all of ``parts``: a pod may ask for hundreds."""

    cpu: int  # thousandths of a CPU
    memory: int  # MiB
    whole: int = 0
    parts: tuple[PartOfCard, ...] = ()
    models: tuple[str, ...] = ()
    more: int = 0

    @property
    def shared(self) -> int:
        """How many parts of cards."""
        return len(self.parts) + self.more

    @property
    def asks(self) -> bool:
        """Whether it wants GPUs at all."""
        return bool(self.whole or self.parts)
