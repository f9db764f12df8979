"""Reports what happens to a card in the events of its pods."""

import asyncio
from collections.abc import Iterator
from typing import Protocol

from fractile.agent.node.pods import NodePods, placement_of
from fractile.errors import WireError
from fractile.kube.events import EventRecorder
from fractile.model.card import Card
from fractile.model.health import CardEvent, HealthVerdict
from fractile.model.units import CardUUID, PodUID
from fractile.wire.kubernetes.objects import Pod

_PATIENCE = 0.5  # seconds for the kernel log to name the process, after NVML has named the card
_WAITING = 256  # events that wait so long at a time; beyond it all pods of the card get the event immediately


class Suspects(Protocol):
    """Knows which pod caused an XID (``xid_attribution``)."""

    @property
    def following(self) -> bool: ...

    def take(self, bus_id: str, xid: int) -> PodUID | None: ...


class HealthEvents:
    """Without ``suspects``, or if they name no pod of the card, every pod of the card gets the event."""

    def __init__(self, pods: NodePods, events: EventRecorder, *, suspects: Suspects | None = None) -> None:
        self._pods = pods
        self._events = events
        self._suspects = suspects
        self._waiting = 0

    def turned(self, card: Card, verdict: HealthVerdict) -> None:
        for pod in self._pods_of(card.uuid):
            if verdict.healthy:
                self._events.emit(pod, "CardHealthy", f"{_name(card)} is healthy again", "Normal")
            else:
                self._events.emit(
                    pod,
                    "CardUnhealthy",
                    f"{_name(card)} is unhealthy: {verdict.message}. It takes no new pods; this pod keeps its part",
                )

    def failed(self, card: Card, event: CardEvent, text: str) -> None:
        if self._suspects is None or not self._suspects.following or self._waiting >= _WAITING:
            self._tell(card, event, text, None)
            return
        self._waiting += 1
        asyncio.get_running_loop().call_later(_PATIENCE, self._ask, self._suspects, card, event, text)

    def _ask(self, suspects: Suspects, card: Card, event: CardEvent, text: str) -> None:
        self._waiting -= 1
        self._tell(card, event, text, suspects.take(card.pci_bus_id, event.xid))

    def _tell(self, card: Card, event: CardEvent, text: str, owner: PodUID | None) -> None:
        """Emit to the owner only, if it is on the card: otherwise the process cannot be attributed."""
        pods = list(self._pods_of(card.uuid))
        named = [pod for pod in pods if pod.metadata.uid == owner]
        for pod in named or pods:
            whose = "of this pod" if named or len(pods) == 1 else f"of this pod or another of the {len(pods)} on it"
            self._events.emit(
                pod,
                "ProgramFailedOnCard",
                f"XID {event.xid} on {_name(card)}, caused by a program {whose}: {text}. The card is healthy",
            )

    def _pods_of(self, card: CardUUID) -> Iterator[Pod]:
        """The pods that hold a part of it and have not ended; a placement that cannot be read names no card."""
        for seen in self._pods:
            if seen.pod.finished:
                continue
            try:
                placement = placement_of(seen.pod)
            except WireError:
                continue
            if placement is not None and any(s.card == card for c in placement.containers for s in c.slices):
                yield seen.pod


def _name(card: Card) -> str:
    return f"card {card.index} ({card.uuid})"
