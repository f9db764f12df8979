"""Follows the node's file of non-GPU devices, and keeps the catalog in line with it.

Level-triggered: the file's text is compared every two seconds, which also works for kubelet's updates of a ConfigMap.
Failure rule: a file that cannot be read or is invalid is reported once, and the devices stay as they were; at the start
there are then none until it becomes valid. Nothing about this file ever stops an agent: the cards do not depend on it.
A device that the file no longer names stays, sick, while pods hold it: their containers may restart.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Container, Sequence
from pathlib import Path

import msgspec

from fractile.agent.node.catalog import CurrentCatalog
from fractile.errors import SetupError, WireError
from fractile.kube.pacing import Clock, Sleep
from fractile.model.health import HealthVerdict
from fractile.model.offer import Offer
from fractile.model.units import CardUUID, NodeName
from fractile.wire.files import device_file
from fractile.wire.files.device_file import DeviceFileContent

_LOOK = 2.0  # seconds between two reads of the file

log = logging.getLogger(__name__)

VerdictOf = Callable[[CardUUID], HealthVerdict]
Holders = Callable[[], Container[CardUUID] | None]

_REMOVED = "Removed"


class DeviceFile:
    """``verdict`` answers for the devices of the file, and calls ``others`` for all other devices. ``holders`` are the
    devices that pods hold, None while that is not known."""

    def __init__(
        self,
        file: Path,
        current_catalog: CurrentCatalog,
        *,
        node: NodeName,
        others: VerdictOf,
        holders: Holders = tuple,
        sleep: Sleep = asyncio.sleep,
        clock: Clock = time.monotonic,
    ) -> None:
        self._file = file
        self._current_catalog = current_catalog
        self._node = node
        self._others = others
        self._holders = holders
        self._sleep = sleep
        self._clock = clock
        self._text: str | None = None
        self._told: DeviceFileContent | None = None  # as last understood
        self._sick: dict[CardUUID, HealthVerdict] = {}
        self._complaint = ""

    async def run(self) -> None:
        """Read the file forever."""
        while True:
            self.look()
            await self._sleep(_LOOK)

    def look(self) -> None:
        """Take over the present content of the file."""
        try:
            self._read()
            if self._told is not None:
                self._settle(self._told)
        except (OSError, UnicodeDecodeError) as e:
            self._complain(f"{self._file} cannot be read: {e}")
        except (WireError, SetupError) as e:  # SetupError: more ids than kubelet takes
            self._complain(str(e))
        else:
            self._complaint = ""

    def verdict(self, device: CardUUID) -> HealthVerdict:
        return self._sick.get(device) or self._others(device)

    def _read(self) -> None:
        text = self._file.read_text(encoding="utf-8")
        if text == self._text:
            return
        told = device_file.decode(text, str(self._file), node=self._node)
        self._text, self._told = text, told
        log.info("devices read file=%s count=%d sick=%d", self._file, len(told.offers), len(told.sick))

    def _settle(self, told: DeviceFileContent) -> None:
        """Make the catalog match the file, plus the devices that it no longer names but pods still hold."""
        present = self._current_catalog.catalog
        removed = self._removed(told, present.others)
        catalog = present.with_others((*told.offers, *removed))
        sick = (*told.sick, *((o.uuid, HealthVerdict(False, _REMOVED, _why_removed(o.uuid))) for o in removed))
        self._sick = {uuid: self._since(uuid, verdict) for uuid, verdict in sick}
        if catalog.others != present.others:
            self._current_catalog.update(catalog)

    def _removed(self, told: DeviceFileContent, before: Sequence[Offer]) -> list[Offer]:
        """The removed devices that are held, marked sick, so that no other pod gets them."""
        named = {o.uuid for o in told.offers}
        gone = [o for o in before if o.uuid not in named]
        held = self._holders() if gone else ()
        return [
            msgspec.structs.replace(o, device=msgspec.structs.replace(o.device, healthy=False))
            for o in gone
            if held is None or o.uuid in held
        ]

    def _since(self, device: CardUUID, verdict: HealthVerdict) -> HealthVerdict:
        """The verdict with the time at which the device became sick."""
        before = self._sick.get(device)
        same = before is not None and before.reason == verdict.reason
        return msgspec.structs.replace(verdict, since=before.since if before and same else self._clock())

    def _complain(self, reason: str) -> None:
        if reason != self._complaint:
            self._complaint = reason
            log.error("devices unchanged reason=%s", reason)


def _why_removed(device: CardUUID) -> str:
    return f"the node's file of devices no longer names {device}; it is removed when no pod holds it any more"
