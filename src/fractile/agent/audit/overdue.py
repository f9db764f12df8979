"""Evicted pods whose processes still use the card when their time to end is over: the agent ends these itself.

kubelet keeps the grace period of the first deletion that it has seen: a pod that its owner deleted earlier with a long
one runs on after the eviction (kubelet 1.36). Only pods that the audit evicted are handled, one pod a minute; there is
no second wait for a pod whose processes were ended once. Reported in the log, by an event of the pod and by a counter.
Failure rule: processes that the agent cannot end are reported once for each reason, and retried as long as they exist.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Literal

import msgspec

from fractile.agent.audit.ending import ENDED, Ender
from fractile.agent.node.owners import ProcessOwner
from fractile.agent.node.procfs import Process
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Clock

KILLED = "GPUOutsideLedgerKilled"
NOT_KILLED = "GPUOutsideLedgerNotKilled"

Outcome = Literal["killed", "failed"]

_BETWEEN = 60.0  # seconds from one pod to the next
_KEPT = 600.0  # since the pod was last queried

log = logging.getLogger(__name__)


class _Evicted(msgspec.Struct):
    """``containers``: their ids; ``due``: from when on its processes may be ended; ``asked``: when it was last queried;
    ``ending``: some were ended once; ``told``: the outcomes reported by its events."""

    owner: ProcessOwner
    containers: frozenset[str]
    due: float
    asked: float
    ending: bool = False
    told: set[str] = msgspec.field(default_factory=set[str])


class Overdue:
    """``patience``: seconds from the eviction on. ``kills``: processes on cards, by outcome."""

    def __init__(self, events: EventRecorder, ender: Ender, *, patience: float, clock: Clock) -> None:
        self._events = events
        self._ender = ender
        self._patience = patience
        self._clock = clock
        self._pods: dict[str, _Evicted] = {}  # by UID
        self._next = 0.0
        self.kills: dict[str, int] = {}

    def evicted(self, owner: ProcessOwner, containers: frozenset[str]) -> None:
        """Start the pod's time, if it has not started yet. ``containers``: their ids, as far as they are known."""
        now = self._clock()
        self._pods.setdefault(owner.uid, _Evicted(owner, containers, now + self._patience, now))

    def owner(self, uid: str) -> ProcessOwner | None:
        """The pod with this UID, if it was evicted."""
        known = self._pods.get(uid)
        if known is None:
            return None
        known.asked = self._clock()
        return known.owner

    def forget(self) -> None:
        """Forget pods that have not been queried for a long time."""
        now = self._clock()
        for uid in [uid for uid, known in self._pods.items() if now - known.asked > _KEPT]:
            del self._pods[uid]

    def due(self, uid: str) -> bool:
        """Whether its processes may be ended now."""
        known, now = self._pods.get(uid), self._clock()
        return known is not None and now >= known.due and (known.ending or now >= self._next)

    async def end(self, uid: str, processes: Sequence[Process], card: str) -> bool:
        """End these processes and all others in their containers; returns whether that was possible."""
        known = self._pods[uid]
        if not known.ending:
            known.ending, self._next = True, self._clock() + _BETWEEN
        refused = ""
        for process in processes:
            outcome = await asyncio.to_thread(self._ender.end, process, uid, known.containers)
            if outcome is None:
                continue
            result: Outcome = "failed" if outcome else "killed"
            self.kills[result] = self.kills.get(result, 0) + 1
            self._tell(known, process, card, outcome)
            refused = refused or outcome
        return not refused

    def _tell(self, known: _Evicted, process: Process, card: str, outcome: str) -> None:
        owner = known.owner
        log.warning(
            "%s after the eviction pod=%s/%s pid=%d command=%r card=%s reason=%r",
            *("killed" if outcome == ENDED else "not killed", owner.namespace, owner.pod),
            *(process.pid, process.command, card, outcome or "it still used the card after its time to end"),
        )
        if outcome in known.told:
            return
        known.told.add(outcome)
        what = (
            f"process {process.command} (pid {process.pid} on the node) still used card {card} {self._patience:.0f} s "
            "after the"
        )
        about = ObjectRef("Pod", owner.namespace, owner.pod, owner.uid)
        if outcome == ENDED:
            self._events.emit(
                about, KILLED, f"{what} eviction; the node's agent ended it and the rest of its container with SIGKILL"
            )
        else:
            self._events.emit(
                about, NOT_KILLED, f"{what} eviction, and the node's agent cannot end it: {outcome}; end it on the node"
            )
