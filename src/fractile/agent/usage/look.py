"""One poll of the containers' files and of the driver, and the owner of each process that the driver shows."""

import msgspec

from fractile.agent.audit.sight import Sight
from fractile.agent.audit.unaccounted import Attributed, attribute
from fractile.agent.limits.slices import Granted, Slices
from fractile.agent.node.procfs import Process, ProcFs
from fractile.nvml.meter import CardReading, Meter
from fractile.region import directory
from fractile.region.counters import Counters, CountersReader
from fractile.region.usage import Unreadable, lost

_Kind = tuple[int, int]  # generation of the region, number of cards
_Seen = tuple[
    list[CardReading], dict[int, Process], list[Granted], dict[str, tuple[Counters | Unreadable, ...]]
]  # the arguments of ``attribute``


class Look(msgspec.Struct, frozen=True):
    """The results of one poll of files and driver. ``readings`` is None without a meter."""

    granted: list[Granted]
    ledgers: dict[str, tuple[Counters | Unreadable, ...]]
    readings: list[CardReading] | None
    attributed: Attributed


class Eye:
    """Steps 1 to 4 of ``loop``; blocks."""

    def __init__(
        self,
        slices: Slices,
        meter: Meter | None,
        processes: ProcFs,
        *,
        enforced: bool,
        sight: Sight | None = None,
    ) -> None:
        """``sight``: checks what processes see of the library, if it is in the containers."""
        self._sight = sight
        self._enforced = enforced
        self._slices = slices
        self._meter = meter
        self._processes = processes
        self._readers: dict[str, tuple[_Kind, CountersReader]] = {}
        self._last: tuple[_Seen, Attributed] | None = None

    def look(self) -> Look:
        granted = self._slices.read()
        self._forget({g.token for g in granted})
        ledgers = {g.token: (self._counters(g),) for g in granted}
        if self._meter is None:
            return Look(granted, ledgers, None, Attributed({}, ()))
        readings = self._meter.read()
        processes = self._processes.look({p.pid for r in readings for p in r.processes or ()})
        found = self._attributed(readings, processes, granted, ledgers)
        if found.findings:  # an allocation between the reads of region and driver is no finding
            ledgers = {g.token: (*ledgers[g.token], self._counters(g, fresh=True)) for g in granted}
            found = self._attributed(readings, processes, granted, ledgers)
        if found.findings and self._sight is not None:
            found = self._sight.judged(found, granted, ledgers)
        return Look(granted, ledgers, readings, found)

    def _attributed(
        self,
        readings: list[CardReading],
        processes: dict[int, Process],
        granted: list[Granted],
        ledgers: dict[str, tuple[Counters | Unreadable, ...]],
    ) -> Attributed:
        """Reuse the last result for equal input, as on an idle node: comparing takes a tenth of the time."""
        seen = readings, processes, granted, ledgers
        if self._last is None or self._last[0] != seen:
            self._last = seen, attribute(readings, processes, granted, ledgers, enforced=self._enforced)
        return self._last[1]

    def _counters(self, granted: Granted, *, fresh: bool = False) -> Counters | Unreadable:
        limits = granted.limits
        if granted.lost:
            return lost(limits)
        kind = limits.generation, len(limits.cards)
        known = self._readers.get(granted.token)
        if known is None or known[0] != kind:
            if known is not None:
                known[1].close()
            path = granted.folder / directory.REGION
            known = kind, CountersReader(path, cards=len(limits.cards), generation=limits.generation)
            self._readers[granted.token] = known
        return known[1].read(fresh=fresh)

    def _forget(self, alive: set[str]) -> None:
        for token in [token for token in self._readers if token not in alive]:
            self._readers.pop(token)[1].close()
