"""How a card is connected to the other cards of its node, in the words of ``nvidia-smi topo -m``.

Nodes of one kind have the same rows, so a cluster has few different ones, and ``wire`` shares them.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

UNKNOWN: Final = "?"
SELF: Final = "X"
LEVELS: Final = ("PIX", "PXB", "PHB", "NODE", "SYS")  # what the PCIe path crosses, the nearest first
_WORD = r"(X|\?|NV[1-9][0-9]?|PIX|PXB|PHB|NODE|SYS)"
WORD: Final = re.compile(_WORD)
ROW: Final = rf"^{_WORD}( {_WORD})*\Z"
MOST: Final = 1024  # characters of a row, enough for 200 cards


class Interconnect(msgspec.Struct, frozen=True, gc=False):
    """One card's side. ``peers`` has a word for each card of the node by index: "X NV2 SYS".

    ``X`` is the card itself, ``NVn`` n NVLinks, ``?`` unknown, the others a level of PCIe. Generations are 0 and the
    NUMA node is -1 if the driver does not report them.
    """

    peers: str
    nvlink: int = 0  # generation
    pcie: int = 0  # generation
    lanes: int = 0
    numa: int = -1


def links(word: str) -> int:
    """How many NVLinks the word stands for."""
    return int(word[2:]) if word.startswith("NV") else 0


def groups(rows: Mapping[int, Interconnect]) -> dict[int, int]:
    """For each card with NVLink, by index, the lowest index that it reaches over NVLink, directly or not."""
    lowest: dict[int, int] = {}
    for start in sorted(rows):
        if start in lowest or not any(_linked(rows, start)):
            continue
        waiting = [start]
        while waiting:
            index = waiting.pop()
            if index not in lowest:
                lowest[index] = start
                waiting += [other for other, link in enumerate(_linked(rows, index)) if link]
    return lowest


def _linked(rows: Mapping[int, Interconnect], index: int) -> Iterable[bool]:
    return (links(word) > 0 for word in rows[index].peers.split()) if index in rows else ()
