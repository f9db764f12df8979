"""One look at the files of the containers and at the driver, and whose each process of the driver is."""

import msgspec

from fractile.agent.outside import Attributed, attribute
from fractile.agent.procfs import ProcFs
from fractile.agent.slices import Granted, Slices
from fractile.nvml.meter import CardReading, Meter
from fractile.region import directory
from fractile.region.counters import Counters, counters
from fractile.region.usage import Unreadable


class Look(msgspec.Struct, frozen=True):
    """What one look at files and driver showed. ``readings`` is None without a meter."""

    granted: list[Granted]
    ledgers: dict[str, tuple[Counters | Unreadable, ...]]
    readings: list[CardReading] | None
    attributed: Attributed


class Eye:
    """Steps 1 to 4; blocks."""

    def __init__(self, slices: Slices, meter: Meter | None, processes: ProcFs, *, enforced: bool) -> None:
        self._enforced = enforced
        self._slices = slices
        self._meter = meter
        self._processes = processes

    def look(self) -> Look:
        granted = self._slices.read()
        ledgers = {g.token: (_counters(g),) for g in granted}
        if self._meter is None:
            return Look(granted, ledgers, None, Attributed({}, ()))
        readings = self._meter.read()
        processes = self._processes.look({p.pid for r in readings for p in r.processes or ()})
        named = {p.token for p in processes.values()}
        ledgers |= {g.token: (*ledgers[g.token], _counters(g)) for g in granted if g.token in named}
        found = attribute(readings, processes, granted, ledgers, enforced=self._enforced)
        return Look(granted, ledgers, readings, found)


def _counters(granted: Granted) -> Counters | Unreadable:
    limits = granted.limits
    return counters(granted.folder / directory.REGION, cards=len(limits.cards), generation=limits.generation)
