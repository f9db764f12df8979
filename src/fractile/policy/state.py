"""What a decision about one node looks at: its cards and what is free on them now."""

import msgspec

from fractile.model.units import CardUUID, MiB, NodeName, Percent


class CardState(msgspec.Struct, frozen=True, gc=False):
    """One card: its size and what is free. ``free_*`` may be negative when the card shrank under its pods."""

    uuid: CardUUID
    index: int
    model: str
    memory: MiB
    free_memory: MiB
    free_cores: Percent
    idle: bool  # nobody holds any part of it


class NodeState(msgspec.Struct, frozen=True):
    """One node: its cards ordered by index."""

    node: NodeName
    cards: tuple[CardState, ...]


def emptied(state: NodeState) -> NodeState:
    """The node as it would be if every pod left: what it can ever serve."""
    return NodeState(
        state.node,
        tuple(
            msgspec.structs.replace(c, free_memory=c.memory, free_cores=Percent(100), idle=True) for c in state.cards
        ),
    )
