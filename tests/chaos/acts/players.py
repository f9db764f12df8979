"""The processes and links that faults are played on, and who watches over the processes: what ended comes back."""

import asyncio
import signal

from fractile.lab.cluster import component
from fractile.lab.cluster.component import Component
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import processes
from tests.chaos.acts.faults import LINK, WRITES, Fault, Kind
from tests.chaos.acts.links import Link

_WATCH = 0.3  # seconds between two looks at what runs
_SIGNALS = {Kind.KILL: signal.SIGKILL, Kind.RESTART: signal.SIGTERM, Kind.PAUSE: signal.SIGSTOP}


class Players:
    """``components`` and ``links`` by the names of the targets."""

    def __init__(self, place: ClusterLayout, components: dict[str, Component], links: dict[str, Link]) -> None:
        self._place = place
        self.components = components
        self.links = links
        self._held: set[str] = set()  # those that stay down for now

    async def play(self, fault: Fault) -> bool:
        """Do it, wait, undo it; False when there was nobody to do it to."""
        if fault.kind in LINK + WRITES:
            link = self.links[fault.target]
            match fault.kind:
                case Kind.CUT:
                    link.cut()
                case Kind.STALL:
                    link.stall()
                case Kind.MUTE:
                    link.mute()
                case _:
                    link.delay(fault.seconds / 2)
            await asyncio.sleep(fault.seconds)
            link.restore()
            return True
        self._held.add(fault.target)
        try:
            process = component.running(self._place, self.components[fault.target])
            done = process is not None and processes.send(process, _SIGNALS[fault.kind])
            await asyncio.sleep(fault.seconds)
            if process is not None and fault.kind is not Kind.KILL:
                # Who was asked to end and has not is killed, as by systemd.
                processes.send(process, signal.SIGCONT if fault.kind is Kind.PAUSE else signal.SIGKILL)
            return done
        finally:
            self._held.discard(fault.target)

    def heal(self) -> None:
        """Undo whatever is left of any fault."""
        for link in self.links.values():
            link.restore()
        for one in self.components.values():
            if (process := component.running(self._place, one)) is not None:
                processes.send(process, signal.SIGCONT)
        self._held.clear()

    def pid(self, name: str) -> int:
        """0 when it does not run."""
        process = component.running(self._place, self.components[name])
        return process.pid if process else 0

    async def watch(self) -> None:
        """Start what does not run and is not held down, forever."""
        while True:
            await asyncio.to_thread(self._start_missing)
            await asyncio.sleep(_WATCH)

    def _start_missing(self) -> None:
        for name, one in self.components.items():
            if name not in self._held and component.running(self._place, one) is None:
                component.start(self._place, one)
