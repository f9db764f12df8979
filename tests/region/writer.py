"""What the processes of a container do to their region."""

import fcntl
import mmap
import os
import struct
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fractile.region import shared
from fractile.region.layout import ACCOUNT, REGION, REGION_CARD, SLOT

SETLK = 37  # F_OFD_SETLK


@contextmanager
def alive(region: Path, *slots: int) -> Generator[None]:
    """The locks that the processes of these slots hold as long as they live."""
    descriptor = os.open(region, os.O_RDWR)
    try:
        for slot in slots:
            fcntl.fcntl(descriptor, SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, slot, 1, 0))
        yield
    finally:
        os.close(descriptor)


@contextmanager
def written(region: Path) -> Generator[mmap.mmap]:
    with region.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        yield mapped


def take(
    region: Path, slot: int, pid: int, command: bytes, *, cards: int, card: int, units: int, contexts: int = 1
) -> None:
    """What a process writes that holds so many units; more than the region says it held already."""
    shape = shared.RegionShape(cards)
    at = shape.slot_at(slot)
    account = shape.account_at(slot, card)
    with written(region) as mapped, memoryview(mapped) as view:
        REGION.put(view, 0, "slot_high", max(slot + 1, REGION.get(view, 0, "slot_high")))
        SLOT.put(view, at, "state", 2)
        SLOT.put(view, at, "pid", pid)
        SLOT.put_bytes(view, at, "command", command)
        ACCOUNT.put(view, account, "charged", units << 19 | 7)
        ACCOUNT.put(view, account, "contexts", contexts)
        ACCOUNT.put(view, account, "gpu_ns", 5_000_000)
        on_card = shape.card_at(card)
        used = REGION_CARD.get(view, on_card, "used") >> 30
        REGION_CARD.put(view, on_card, "used", (used + units) << 30 | slot << 19 | 7)
        REGION_CARD.put(view, on_card, "peak", used + units + 1)
