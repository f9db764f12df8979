"""The input of a decision about one node: its cards and what is free on them now."""

from collections.abc import Callable

import msgspec

from fractile.model.card import DeviceKind
from fractile.model.interconnect import Interconnect
from fractile.model.properties import NONE, Properties
from fractile.model.sharing import FREE, SharingRule
from fractile.model.units import CardUUID, MiB, NodeName, Percent

NO_LIMIT = 2**31  # slots of a card whose slots are not counted


def cores_fit(free: int, cores: int, *, coreless: bool) -> bool:
    """Whether ``cores`` percent can be promised of what is free. Containers without a promise share the unpromised
    rest: if there are any, at least one percent stays, or they would starve."""
    return cores + coreless <= free


class CardState(msgspec.Struct, frozen=True, gc=False):
    """One card: its size and what is free. ``free_*`` may be negative when the card shrank under its pods.

    For a non-GPU device ``memory`` counts shares."""

    uuid: CardUUID
    index: int
    model: str
    memory: MiB
    free_memory: MiB
    free_cores: Percent
    idle: bool  # no pod holds any part of it
    coreless: bool = False  # a holder of its memory was promised no cores
    slots: int = NO_LIMIT  # device ids of a resource of which a card has few
    free_slots: int = NO_LIMIT
    interconnect: Interconnect | None = None
    slices: int = 0  # containers with a part of it
    rule: SharingRule = FREE
    properties: Properties = NONE

    def holds(self, memory: int, cores: int, *, coreless: bool, slots: int = 0) -> bool:
        """Whether it has room for that much more."""
        if memory > self.free_memory or slots > self.free_slots:
            return False
        return cores_fit(self.free_cores, cores, coreless=coreless or self.coreless)


class NodeState(msgspec.Struct, frozen=True):
    """One node: its devices of each kind, in the order of the kinds, ordered by index."""

    node: NodeName
    cards: tuple[CardState, ...]  # GPUs
    others: tuple[CardState, ...] = ()

    def of(self, kind: DeviceKind) -> tuple[CardState, ...]:
        return self.cards if kind is DeviceKind.GPU else self.others

    def alone(self, kind: DeviceKind) -> "NodeState":
        """The node with the devices of that kind in place of its cards, and no others."""
        return NodeState(self.node, self.of(kind))

    def only(self, wanted: Callable[[CardState], bool]) -> "NodeState":
        """The node with the devices that are wanted."""
        return NodeState(self.node, *(tuple(filter(wanted, self.of(kind))) for kind in DeviceKind))


def emptied(state: NodeState) -> NodeState:
    """The node as it would be if every pod left: what it can ever serve."""
    return NodeState(state.node, *(tuple(map(_emptied, state.of(kind))) for kind in DeviceKind))


def _emptied(card: CardState) -> CardState:
    return msgspec.structs.replace(
        card,
        free_memory=card.memory,
        free_cores=Percent(100),
        idle=True,
        coreless=False,
        free_slots=card.slots,
        slices=0,
    )


def lifted(state: NodeState) -> NodeState:
    """The node as it would be without rules about how its cards may be cut."""
    return NodeState(state.node, tuple(msgspec.structs.replace(c, rule=FREE) for c in state.cards), state.others)
