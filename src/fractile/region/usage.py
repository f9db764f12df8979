"""What the processes of a container hold, by their own account.

Failure rule: a container can write any nonsense into its region; the result is then Unreadable or meaningless numbers,
never an exception and never more work than a region of its size takes. Which processes live, the kernel's locks say.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from fractile.model.units import WHOLE
from fractile.region import layout, shared, sums
from fractile.region.layout import ACCOUNT, OBJECT, REGION_CARD, SLOT
from fractile.region.page import FLAG_OFF, ContainerLimits
from fractile.region.shared import Region

_OWN_ACCOUNT = 3  # object.state


class SliceCardUsage(msgspec.Struct, frozen=True):
    """All processes together, on one card. Bytes; ``used`` leaves out what dead processes held; ``shared`` is the part
    of it that is charged to no single process."""

    used: int
    peak: int
    refusals: int
    shared: int


class ProcessHold(msgspec.Struct, frozen=True):
    """One process on one card, by the card's place in the limits page."""

    card: int
    bytes: int
    contexts: int
    gpu_ns: int


class SliceProcess(msgspec.Struct, frozen=True):
    """A live process; ``pid`` in its own pid namespace. ``held`` names only cards on which it has done something."""

    pid: int
    command: str
    held: tuple[ProcessHold, ...]


class RegionUsage(msgspec.Struct, frozen=True):
    """Cards as in the limits page; processes by slot."""

    cards: tuple[SliceCardUsage, ...]
    processes: tuple[SliceProcess, ...]


class Unreadable(msgspec.Struct, frozen=True):
    """The region cannot be used; ``reason`` is the rest of a sentence that begins with its path."""

    reason: str

    @property
    def empty(self) -> bool:
        """Whether the file is empty: the agent mounts the region over an empty file (``bounded``)."""
        return self.reason == shared.EMPTY


def lost(limits: ContainerLimits) -> Unreadable:
    """The result for a container whose directory was removed from the node while it ran."""
    compute = promised_compute(limits)
    until = f"{compute} not hold until the pod is deleted and created again" if compute else "delete the pod"
    return Unreadable(f"the container's directory was removed from the node while it ran; {until}")


def promised_compute(limits: ContainerLimits) -> str:
    """The container's promised part of its cards' time, as the subject of a sentence that ends with "not hold"; ""
    when nothing is enforced."""
    cards = () if limits.flags & FLAG_OFF else limits.cards
    share, limit = any(0 < c.cores < WHOLE for c in cards), any(0 < c.cores_limit < WHOLE for c in cards)
    if share and limit:
        return "its share and its limit of compute do"
    return "its share of compute does" if share else "its limit of compute does" if limit else ""


def usage(path: Path, *, cards: int, generation: int) -> RegionUsage | Unreadable:
    """The usage in the region; ``generation`` is that of the limits page next to it."""
    found = shared.read(path, cards=cards)
    if isinstance(found, str):
        return Unreadable(found)
    if found.generation != generation:
        return Unreadable("it belongs to other limits")
    own = _own_accounts(found)
    live = sorted(slot for slot in shared.locked(path) if slot < found.shape.slots)
    slots = found.data[found.shape.slot_at(0) : found.shape.slot_at(found.shape.slots)]
    dead = sums.of_the_dead(slots, cards, live)
    return RegionUsage(
        cards=tuple(_card(found, index, own[index], dead[index], live) for index in range(cards)),
        processes=tuple(_process(found, slot) for slot in live),
    )


def _card(region: Region, index: int, own: int, dead: int, live: Sequence[int]) -> SliceCardUsage:
    at = region.shape.card_at(index)
    held = [sums.in_account(region.data, region.shape.account_at(slot, index)) for slot in live]
    return SliceCardUsage(
        used=sums.of_the_living(sums.on_card(region.data, at), dead, held),
        peak=REGION_CARD.get(region.data, at, "peak") * layout.UNIT_BYTES,
        refusals=REGION_CARD.get(region.data, at, "refusals"),
        shared=own,
    )


def _own_accounts(region: Region) -> list[int]:
    """Bytes per card of objects that their maker has released."""
    bytes = [0] * region.shape.cards
    for number in range(region.shape.objects):
        at = region.shape.object_at(number)
        card = OBJECT.get(region.data, at, "card")
        if OBJECT.get(region.data, at, "state") == _OWN_ACCOUNT and card < region.shape.cards:
            own = at + OBJECT.fields["own"].offset
            bytes[card] += sums.in_account(region.data, own)
    return bytes


def _process(region: Region, slot: int) -> SliceProcess:
    at = region.shape.slot_at(slot)
    return SliceProcess(SLOT.get(region.data, at, "pid"), _command(region.data, at), tuple(_held(region, slot)))


def _command(data: bytes, at: int) -> str:
    """The command up to the first NUL; characters that could disturb a terminal or a log are replaced."""
    text = SLOT.get_bytes(data, at, "command").split(b"\0")[0].decode("ascii", "replace")
    return "".join(c if c.isprintable() else "?" for c in text)


def _held(region: Region, slot: int) -> Iterator[ProcessHold]:
    for card in range(region.shape.cards):
        at = region.shape.account_at(slot, card)
        held = ProcessHold(
            card=card,
            bytes=sums.in_account(region.data, at),
            contexts=ACCOUNT.get(region.data, at, "contexts"),
            gpu_ns=ACCOUNT.get(region.data, at, "gpu_ns"),
        )
        if held.bytes or held.contexts or held.gpu_ns:
            yield held
