"""Cards from a file, for machines and clusters without GPUs: a JSON list in the form of ``_Entry``.

The ids are the file's, so they stay the same after every restart; otherwise kubelet's record would be invalid. Faults
are fields of the file too: ``lost``, ``temperature``, ``uncorrected``, and ``xids``, where each number added to the
list is one event. ``topology`` is the card's row of ``nvidia-smi topo -m``; without it simgpu's ``interconnect``
says how cards with the same value are joined.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.health import CardEvent, EventKind, HealthReading, Silence
from fractile.model.interconnect import MOST, ROW, SELF, UNKNOWN, WORD, Interconnect, groups
from fractile.model.properties import shared
from fractile.model.units import CardUUID, MiB
from fractile.nvml import models
from fractile.nvml.properties import joined

_SMS, _CORES = 108, 64  # as in simgpu: SMs of a card, cores of an SM
_CONTEXT = 256  # MiB; as in simgpu
_LOOK = 0.1  # seconds between two polls for events
_SLOWDOWN, _SHUTDOWN = 90, 95  # degrees Celsius
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class _Entry(msgspec.Struct, rename="camel"):
    uuid: Annotated[str, msgspec.Meta(pattern=r"^GPU-[A-Za-z0-9-]{1,48}\Z")]
    index: Annotated[int, msgspec.Meta(ge=0, le=1023)]
    model: _Text
    memory_mib: Annotated[int, msgspec.Meta(gt=0, le=2**30)] = msgspec.field(name="memoryMiB")
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    # How it is joined to the others: a word for each card by index, or one word for all cards that have the same.
    topology: Annotated[str, msgspec.Meta(pattern=ROW, max_length=MOST)] = ""
    interconnect: Annotated[str, msgspec.Meta(max_length=31)] = ""
    nvlink: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    pcie: Annotated[int, msgspec.Meta(ge=0, le=99)] = 0
    lanes: Annotated[int, msgspec.Meta(ge=0, le=64)] = 0
    numa: Annotated[int, msgspec.Meta(ge=-1, le=1023)] = -1
    sm_count: Annotated[int, msgspec.Meta(ge=1, le=4096)] = _SMS
    context_mib: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = msgspec.field(default=_CONTEXT, name="contextMiB")
    lost: bool = False
    temperature: int = 40
    uncorrected: int = 0
    xids: tuple[int, ...] = ()
    properties: dict[str, _Text] = {}  # replace those known of the model


_decoder = msgspec.json.Decoder(list[_Entry])


class SimulatedDriver:
    """Reads the file again at every call, so that a test can add or remove a card."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._closed = threading.Event()
        self._told = {e.uuid: len(e.xids) for e in self._read()}

    def cards(self) -> list[Card]:
        entries = self._read()
        return [_card(e, entries) for e in entries if not e.lost]

    def readings(self) -> list[HealthReading]:
        entries = self._read()
        return [_reading(e, entries) for e in entries]

    def events(self, timeout: float) -> list[CardEvent]:
        for _ in range(max(1, round(timeout / _LOOK))):
            found = self._new_events()
            if found or self._closed.wait(_LOOK):
                return found
        return []

    def renew(self) -> None:
        """Does nothing: there is no session."""

    def asking(self) -> CardUUID | None:
        return None

    def close(self) -> None:
        self._closed.set()

    def _read(self) -> list[_Entry]:
        try:
            entries = _decoder.decode(self._file.read_bytes())
        except OSError as e:
            raise SetupError(f"the file of simulated cards cannot be read: {e}") from None
        except msgspec.DecodeError as e:
            raise SetupError(f"{self._file} is not a list of cards: {e}") from None
        if len({e.uuid.lower() for e in entries}) < len(entries) or len({e.index for e in entries}) < len(entries):
            raise SetupError(f"{self._file} names a UUID or an index twice; each card needs its own")
        return sorted(entries, key=lambda e: e.index)

    def _new_events(self) -> list[CardEvent]:
        try:
            entries = self._read()
        except SetupError:  # half written; ``readings`` reports it if it stays so
            return []
        found = [
            CardEvent(CardUUID(e.uuid), EventKind.XID, xid=xid)
            for e in entries
            for xid in e.xids[self._told.get(e.uuid, 0) :]
        ]
        self._told |= {e.uuid: len(e.xids) for e in entries}
        return found


def _reading(entry: _Entry, entries: Sequence[_Entry]) -> HealthReading:
    if entry.lost:
        return HealthReading(index=entry.index, card=None, silence=Silence.LOST, error="GPU is lost")
    return HealthReading(
        index=entry.index,
        card=_card(entry, entries),
        temperature=entry.temperature,
        slowdown_at=_SLOWDOWN,
        shutdown_at=_SHUTDOWN,
        uncorrected=entry.uncorrected,
    )


def _card(entry: _Entry, entries: Sequence[_Entry]) -> Card:
    interconnect = _interconnect(entry, entries)
    group = groups({e.index: found for e in entries if (found := _interconnect(e, entries))}).get(entry.index)
    said = models.said(entry.model) | {"cudaCores": str(entry.sm_count * _CORES)} | joined(interconnect, group=group)
    return Card(
        uuid=CardUUID(entry.uuid),
        index=entry.index,
        model=entry.model,
        memory=MiB(entry.memory_mib),
        pci_bus_id=entry.pci_bus_id,
        context=MiB(entry.context_mib),
        interconnect=interconnect,
        properties=shared(said | entry.properties),
    )


def _interconnect(entry: _Entry, entries: Sequence[_Entry]) -> Interconnect | None:
    peers = entry.topology or _row(entry, entries)
    if not peers:
        return None
    return Interconnect(peers, nvlink=entry.nvlink, pcie=entry.pcie, lanes=entry.lanes, numa=entry.numa)


def _row(entry: _Entry, entries: Sequence[_Entry]) -> str:
    """As in simgpu's NVML: equal names that begin with NV are links, PIX and SYS are levels, else one NUMA node."""
    if not entry.interconnect:
        return ""
    names = {e.index: e.interconnect for e in entries}
    words = (_joined(entry.interconnect, names.get(index)) for index in range(1 + max(names)))
    return " ".join(SELF if index == entry.index else word for index, word in enumerate(words))


def _joined(mine: str, other: str | None) -> str:
    if other is None:
        return UNKNOWN
    if mine == other and mine.startswith("NV") and WORD.fullmatch(mine):
        return mine
    return "SYS" if "SYS" in (mine, other) else "PIX" if mine == "PIX" else "NODE"
