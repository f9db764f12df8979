"""Tells the pods of a card, in their events, what happens to it."""

from collections.abc import Callable, Iterator

from fractile.agent.pods import NodePods, placement_of
from fractile.errors import WireError
from fractile.kube.events import EventRecorder
from fractile.model.card import Card
from fractile.model.health import CardEvent, Verdict
from fractile.model.units import CardUUID, PodUID
from fractile.wire.objects import Pod

OwnerOf = Callable[[int], PodUID | None]  # the pod of a process, by the kernel's word


class HealthEvents:
    """``owner_of`` is asked when a driver names the process that failed; without it every pod of the card is told."""

    def __init__(self, pods: NodePods, events: EventRecorder, *, owner_of: OwnerOf | None = None) -> None:
        self._pods = pods
        self._events = events
        self._owner_of = owner_of

    def turned(self, card: Card, verdict: Verdict) -> None:
        for pod in self._pods_of(card.uuid):
            if verdict.healthy:
                self._events.emit(pod, "CardHealthy", f"{_name(card)} is healthy again", "Normal")
            else:
                self._events.emit(
                    pod,
                    "CardUnhealthy",
                    f"{_name(card)} is unhealthy: {verdict.message}. No new pods; this one keeps its part",
                )

    def failed(self, card: Card, event: CardEvent, text: str) -> None:
        owner = self._owner_of(event.pid) if self._owner_of and event.pid is not None else None
        pods = list(self._pods_of(card.uuid))
        for pod in pods:
            if owner is None or pod.metadata.uid == owner:
                whose = "of this pod" if owner or len(pods) == 1 else f"of this pod or another of the {len(pods)} on it"
                self._events.emit(
                    pod,
                    "ProgramFailedOnCard",
                    f"XID {event.xid} on {_name(card)}, caused by a program {whose}: {text}. The card is healthy",
                )

    def _pods_of(self, card: CardUUID) -> Iterator[Pod]:
        """Those that hold a part of it and have not ended; a placement that cannot be read names no card."""
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
