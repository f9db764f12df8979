"""Cards from a file, for machines and clusters without GPUs: a JSON list in the form of ``_Entry``.

The ids are the file's, so they are the same after every restart; kubelet's record would otherwise name nothing.
"""

from pathlib import Path
from typing import Annotated

import msgspec

from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.units import CardUUID, MiB

_CONTEXT = 256  # MiB; as simgpu has it
_Text = Annotated[str, msgspec.Meta(min_length=1, max_length=128)]


class _Entry(msgspec.Struct, rename="camel"):
    uuid: Annotated[str, msgspec.Meta(pattern=r"^GPU-[A-Za-z0-9-]{1,48}\Z")]
    index: Annotated[int, msgspec.Meta(ge=0, le=1023)]
    model: _Text
    memory_mib: Annotated[int, msgspec.Meta(gt=0, le=2**30)] = msgspec.field(name="memoryMiB")
    pci_bus_id: str = msgspec.field(default="", name="pciBusID")
    context_mib: Annotated[int, msgspec.Meta(ge=0, le=2**20)] = msgspec.field(default=_CONTEXT, name="contextMiB")


_decoder = msgspec.json.Decoder(list[_Entry])


class SimulatedDriver:
    """Reads the file anew at every call, so that a test can add a card or take one away."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.cards()

    def cards(self) -> list[Card]:
        try:
            entries = _decoder.decode(self._file.read_bytes())
        except OSError as e:
            raise SetupError(f"the file of simulated cards cannot be read: {e}") from None
        except msgspec.DecodeError as e:
            raise SetupError(f"{self._file} is not a list of cards: {e}") from None
        if len({e.uuid.lower() for e in entries}) < len(entries) or len({e.index for e in entries}) < len(entries):
            raise SetupError(f"{self._file} names a UUID or an index twice; each card needs its own")
        return sorted(map(_card, entries), key=lambda c: c.index)

    def close(self) -> None:
        """Nothing is held."""


def _card(entry: _Entry) -> Card:
    return Card(
        uuid=CardUUID(entry.uuid),
        index=entry.index,
        model=entry.model,
        memory=MiB(entry.memory_mib),
        pci_bus_id=entry.pci_bus_id,
        context=MiB(entry.context_mib),
    )
