"""Machines as they are sold, by what ``nvidia-smi topo -m`` says of them.

``DGX_1`` is the cube mesh of the V100: each card has six links, and four of the others at hand. Its links between
2 and 6 are one, between 0 and 4 two.
"""

from collections.abc import Sequence
from random import Random

import msgspec

from fractile.model.interconnect import Interconnect
from fractile.model.units import CardUUID, MiB, NodeName, Percent
from fractile.policy.cards.state import CardState, NodeState


class Machine(msgspec.Struct, frozen=True):
    """``rows``: the matrix; ``kinds``: model and MiB of each card."""

    name: str
    rows: tuple[str, ...]
    kinds: tuple[tuple[str, int], ...]
    nvlink: int = 0
    pcie: int = 3

    def interconnect(self, index: int) -> Interconnect:
        return Interconnect(self.rows[index], nvlink=self.nvlink, pcie=self.pcie, lanes=16)

    def state(self, free: Sequence[int] | None = None, *, node: str = "n") -> NodeState:
        """The machine with these cards unused and the others in use."""
        unused = set(range(len(self.rows)) if free is None else free)
        return NodeState(
            NodeName(node),
            tuple(
                CardState(
                    uuid=CardUUID(f"GPU-{node}-{n}"),
                    index=n,
                    model=model,
                    memory=MiB(memory),
                    free_memory=MiB(memory if n in unused else 0),
                    free_cores=Percent(100 if n in unused else 0),
                    idle=n in unused,
                    interconnect=self.interconnect(n),
                )
                for n, (model, memory) in enumerate(self.kinds)
            ),
        )


def _all_alike(count: int, word: str) -> tuple[str, ...]:
    return tuple(" ".join("X" if a == b else word for b in range(count)) for a in range(count))


def _tree(*sizes: int, words: Sequence[str]) -> tuple[str, ...]:
    """Cards in boxes of boxes: ``sizes`` from the smallest box up, with the word for two that first meet in it."""
    count = 1
    for size in sizes:
        count *= size

    def word(a: int, b: int) -> str:
        if a == b:
            return "X"
        for size, name in zip(sizes, words, strict=True):
            a, b = a // size, b // size
            if a == b:
                return name
        raise AssertionError(sizes)

    return tuple(" ".join(word(a, b) for b in range(count)) for a in range(count))


def irregular(count: int, seed: int) -> tuple[str, ...]:
    """No two cards alike: the hardest case for the search."""
    random = Random(seed)
    words = [["X"] * count for _ in range(count)]
    for a in range(count):
        for b in range(a):
            words[a][b] = words[b][a] = random.choice(["NV1", "NV2", "NV4", "PIX", "PXB", "NODE", "SYS", "SYS"])
    return tuple(map(" ".join, words))


V100, A100, H100 = (
    ("Tesla V100-SXM2-16GB", 16_160),
    ("NVIDIA A100-SXM4-40GB", 40_960),
    ("NVIDIA H100 80GB HBM3", 81_559),
)
A10, T4 = ("NVIDIA A10", 23_028), ("Tesla T4", 15_360)

NVSWITCH = Machine("8 cards, NVSwitch", _all_alike(8, "NV18"), (H100,) * 8, nvlink=4, pcie=5)
PCIE = Machine("4+4 cards, PCIe", _tree(2, 2, 2, words=("PIX", "PXB", "SYS")), (A10,) * 8, pcie=4)
DGX_1 = Machine(
    "DGX-1, cube mesh",
    (
        "X NV1 NV1 NV2 NV2 SYS SYS SYS",
        "NV1 X NV2 NV1 SYS NV2 SYS SYS",
        "NV1 NV2 X NV2 SYS SYS NV1 SYS",
        "NV2 NV1 NV2 X SYS SYS SYS NV1",
        "NV2 SYS SYS SYS X NV1 NV1 NV2",
        "SYS NV2 SYS SYS NV1 X NV2 NV1",
        "SYS SYS NV1 SYS NV1 NV2 X NV2",
        "SYS SYS SYS NV1 NV2 NV1 NV2 X",
    ),
    (V100,) * 8,
    nvlink=2,
)
PAIR = Machine("2 cards, bridge", _all_alike(2, "NV4"), (A10,) * 2, nvlink=3, pcie=4)
MIXED = Machine(
    "mixed: 4 A100, 2 A10, 2 T4",
    (
        "X NV12 PXB PXB NODE NODE SYS SYS",
        "NV12 X PXB PXB NODE NODE SYS SYS",
        "PXB PXB X NV12 NODE NODE SYS SYS",
        "PXB PXB NV12 X NODE NODE SYS SYS",
        "NODE NODE NODE NODE X PHB SYS SYS",
        "NODE NODE NODE NODE PHB X SYS SYS",
        "SYS SYS SYS SYS SYS SYS X PIX",
        "SYS SYS SYS SYS SYS SYS PIX X",
    ),
    (A100, A100, A100, A100, A10, A10, T4, T4),
    nvlink=3,
    pcie=4,
)
MACHINES = (NVSWITCH, PCIE, DGX_1, PAIR, MIXED)

DGX_2 = Machine("16 cards, NVSwitch", _all_alike(16, "NV6"), (V100,) * 16, nvlink=2)
PCIE_16 = Machine("16 cards, PCIe", _tree(4, 2, 2, words=("PIX", "NODE", "SYS")), (A10,) * 16, pcie=4)
IRREGULAR_16 = Machine("16 cards, no two alike", irregular(16, 1), (V100,) * 16, nvlink=2)
LARGE = (DGX_2, PCIE_16, IRREGULAR_16)
