"""How the cards of each node are connected, as a tree and as a table: ``fractile inspect -o topology``.

A branch holds the cards that reach each other at its rate, directly or through other cards of the branch. A tree cannot
show a mesh; the table below it can, in the terms of ``nvidia-smi topo -m``.
"""

from collections.abc import Iterator, Mapping, Sequence

from fractile.model.card import Card
from fractile.model.units import CardUUID, NodeName
from fractile.policy.cards.bandwidth import Matrix, matrix
from fractile.policy.cards.topology import Positions, branches, rates


def text(nodes: Mapping[NodeName, Sequence[Card]], held: Mapping[CardUUID, str]) -> str:
    """All nodes, each with its tree; ``held``: how much of a card is in use, in words."""
    return "\n".join("\n".join(_node(name, cards, held)) + "\n" for name, cards in nodes.items())


def _node(name: NodeName, cards: Sequence[Card], held: Mapping[CardUUID, str]) -> Iterator[str]:
    cards = sorted(cards, key=lambda c: (c.index, c.uuid))
    yield name
    if all(c.interconnect is None for c in cards):
        yield "  its agent does not report how the cards are joined"
        return
    pairs = matrix(tuple((c.index, c.interconnect) for c in cards))
    yield from _branch(pairs, tuple(range(len(cards))), cards, held, before="  ", last=True)
    yield ""
    yield from _table(cards)


def _branch(
    pairs: Matrix, branch: Positions, cards: Sequence[Card], held: Mapping[CardUUID, str], *, before: str, last: bool
) -> Iterator[str]:
    mark, below = ("└─ ", "   ") if last else ("├─ ", "│  ")
    if len(branch) == 1:
        yield f"{before}{mark}{_card(cards[branch[0]], held)}"
        return
    rate, parts = _split(pairs, branch)
    yield f"{before}{mark}{len(branch)} cards, {rate / 1000:.1f} GB/s"
    for n, part in enumerate(parts):
        yield from _branch(pairs, part, cards, held, before=before + below, last=n == len(parts) - 1)


def _split(pairs: Matrix, branch: Positions) -> tuple[int, list[Positions]]:
    """The highest rate at which the branch is still connected, and the parts it splits into above that rate."""
    reached = 0
    for rate in rates(pairs):
        parts = branches(pairs, branch, rate)
        if len(parts) > 1:
            return reached, parts
        reached = rate
    return reached, [(a,) for a in branch]


def _card(card: Card, held: Mapping[CardUUID, str]) -> str:
    numa = f", NUMA node {card.interconnect.numa}" if card.interconnect and card.interconnect.numa >= 0 else ""
    return f"card {card.index}  {card.model}{numa}, {held.get(card.uuid, 'unused') if card.healthy else 'unhealthy'}"


def _table(cards: Sequence[Card]) -> Iterator[str]:
    rows = [["", *(str(c.index) for c in cards)]]
    for card in cards:
        words = card.interconnect.peers.split() if card.interconnect else []
        rows.append([str(card.index), *(words[c.index] if c.index < len(words) else "?" for c in cards)])
    widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
    for row in rows:
        yield "  " + "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True))
