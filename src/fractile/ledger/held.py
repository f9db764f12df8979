"""What pods hold of one card, as running totals. For a non-GPU device the same totals count shares."""

import msgspec

from fractile.model.card import GPU, Card
from fractile.model.placement import Charge
from fractile.model.refusal import Code, Refusal
from fractile.policy.cards.state import cores_fit


class HeldOnDevice(msgspec.Struct, gc=False):
    """``size`` is in MiB, or in shares."""

    size: int = 0
    cores: int = 0
    pods: int = 0
    coreless: int = 0  # pods with a container that was promised no cores
    slots: int = 0
    slices: int = 0  # containers

    def add(self, charge: Charge, sign: int) -> None:
        self.size += sign * (charge.memory + charge.shares)  # a charge has one of the two
        self.cores += sign * charge.cores
        self.pods += sign
        self.coreless += sign * charge.coreless
        self.slots += sign * charge.slots
        self.slices += sign * charge.slices


def size(card: Card) -> int:
    """Total size of the card: MiB of a GPU, shares of another device."""
    return card.memory if card.type == GPU else card.shares


def check(card: Card, held: HeldOnDevice, charge: Charge, *, slots: int) -> Refusal | None:
    """Why the card cannot take a charge in addition to what is held; None when it can."""
    if bool(charge.shares) is (card.type == GPU) or (charge.shares and (charge.memory or charge.cores)):
        return Refusal(Code.MALFORMED, f"card {card.uuid} is a {card.type}, which is not counted that way")
    if card.type != GPU:
        free = card.shares - held.size
        fits = charge.shares <= free
        return None if fits else Refusal(Code.NO_ROOM, f"{card.type} {card.index} has {max(free, 0)} shares free")
    coreless = charge.coreless or held.coreless > 0
    if charge.memory > card.memory - held.size or not cores_fit(100 - held.cores, charge.cores, coreless=coreless):
        return Refusal(Code.NO_ROOM, _no_room(card, held, charge))
    if held.slots + charge.slots > slots:
        return Refusal(Code.NO_ROOM, f"card {card.index} has {slots - held.slots} slots free")
    return None


def _no_room(card: Card, held: HeldOnDevice, charge: Charge) -> str:
    return (
        f"card {card.index} has {card.memory - held.size} MiB and {100 - held.cores} percent of its cores free, "
        f"{charge.memory} MiB and {charge.cores} percent are needed"
        + ("; beside containers without a share 1 percent must stay free" if charge.cores == 100 - held.cores else "")
    )
