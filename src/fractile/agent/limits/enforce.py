"""Keeps the limits pages of this node correct while containers run: which are paced, and whose isolation is off.

A container without a share of compute must take turns as soon as a neighbour on its card has one, else the share would
be worth nothing (docs/concepts/compute.md). So ``FR_CARD_PACED`` is set in the pages of all containers of such a card,
and cleared with the last container that has a share. Level-triggered: every round compares the pages with their wanted
state; a change takes effect at the container's next call.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from fractile.agent.limits.isolation import Isolation, IsolationVerdict, wishes
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.running_limits import RunningLimits
from fractile.agent.node.pods import NodePods
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.model.units import CardUUID, PodUID
from fractile.region.page import FLAG_OFF, CardLimits, ContainerLimits
from fractile.wire.fractile import isolation as wire

PACED = 1  # flag of a card: FR_CARD_PACED of native/interposer/pacing/paced_card.h

_ROUND = 2.0  # seconds
_SETTLE = 0.1  # after a grant: its answer goes first, and pods that start together share a round; no program runs yet
_ALL = 100

log = logging.getLogger(__name__)


class Enforcer:
    """``granted`` never blocks; ``run`` does the work."""

    def __init__(
        self,
        journal: Journal,
        pods: NodePods,
        isolation: Isolation,
        events: EventRecorder,
        *,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._journal = journal
        self._pods = pods
        self._running = RunningLimits(journal, pods)
        self._isolation = isolation
        self._events = events
        self._sleep = sleep
        self._wake = asyncio.Event()
        self._refused: set[PodUID] = set()  # pods whose wish was refused, with an event

    def granted(self) -> None:
        """A container got its limits, or new ones."""
        self._wake.set()

    async def run(self) -> None:
        """Work forever."""
        while True:
            self._wake.clear()
            try:
                await self.round()
            except OSError as e:
                log.warning("limits not changed reason=%s", e)
            await self._wait()

    async def round(self) -> None:
        """Compare all pages once."""
        live = await self._running()
        verdicts = await self._verdicts({limits.pod_uid for limits in live.values()})
        off = is_off(live.values(), verdicts)
        paced = paced_cards(live.values(), off=off)
        stale = sorted(t for t, limits in live.items() if not is_right(limits, paced=paced, off=off))
        if stale:
            await asyncio.to_thread(self._write, stale, paced, off)
        self._refused &= {limits.pod_uid for limits in live.values()}
        for uid, verdict in verdicts.items():
            await self._show(uid, verdict)

    def _write(self, tokens: Iterable[str], paced: frozenset[CardUUID], off: frozenset[PodUID]) -> None:
        for token in tokens:
            try:
                now = self._journal.change(token, lambda now: now and flagged(now, paced=paced, off=off), running=True)
            except OSError as e:  # the neighbours' pages must be correct all the same
                log.warning("limits not changed token=%s reason=%s", token, e)
                continue
            if now is not None:
                cards = ",".join(c.uuid for c in now.cards if c.flags & PACED) or "-"
                name, turned_off = f"{now.namespace}/{now.pod}", bool(now.flags & FLAG_OFF)
                log.info("limits changed pod=%s container=%s off=%s paced=%s", name, now.container, turned_off, cards)

    async def _verdicts(self, uids: Iterable[PodUID]) -> dict[PodUID, IsolationVerdict]:
        """The verdicts available now. All pods without an annotation of their own share the node's."""
        found: dict[PodUID, IsolationVerdict] = {}
        common: IsolationVerdict | None = None
        for uid in uids:
            seen = self._pods.by_uid(uid)
            if seen is None:
                continue
            if common is not None and not wishes(seen.pod):
                verdict = common
            else:
                verdict = await self._isolation.verdict(seen.pod)
            if not wishes(seen.pod):
                common = verdict
            if verdict is not None:
                found[uid] = verdict
        return found

    async def _show(self, uid: PodUID, verdict: IsolationVerdict) -> None:
        """Report on the pod, and in an event, that its limits are not enforced, or why they still are."""
        seen = self._pods.by_uid(uid)
        if seen is None:
            return
        pod = seen.pod
        shown = (pod.metadata.annotations or {}).get(wire.STATE)
        state = wire.encode(verdict.reason) if verdict.off else None
        if not verdict.off and verdict.reason and uid not in self._refused:
            self._refused.add(uid)
            self._events.emit(pod, "IsolationKept", verdict.reason)
        if shown == state:
            return
        try:
            await self._pods.annotate(pod, {wire.STATE: state})
        except (ApiError, Unreachable, WireError) as e:
            log.warning("isolation not shown pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, e)
            return
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        log.warning("isolation pod=%s state=%s reason=%r", name, "off" if verdict.off else "on", verdict.reason)
        if verdict.off:
            self._events.emit(pod, "IsolationOff", f"the limits of this pod's GPUs are not enforced: {verdict.reason}")
        else:
            self._events.emit(pod, "IsolationOn", "the limits of this pod's GPUs are enforced", "Normal")

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_ROUND):
                await self._wake.wait()
        except TimeoutError:
            return
        await self._sleep(_SETTLE)


def is_off(live: Iterable[ContainerLimits], verdicts: Mapping[PodUID, IsolationVerdict]) -> frozenset[PodUID]:
    """The pods whose isolation is off; without a verdict, the page decides."""
    return frozenset(
        limits.pod_uid
        for limits in live
        if (verdicts[limits.pod_uid].off if limits.pod_uid in verdicts else limits.flags & FLAG_OFF)
    )


def paced_cards(live: Iterable[ContainerLimits], *, off: frozenset[PodUID]) -> frozenset[CardUUID]:
    """The cards on which a running container has a share of compute."""
    return frozenset(c.uuid for limits in live if limits.pod_uid not in off for c in limits.cards if has_share(c))


def is_right(limits: ContainerLimits, *, paced: frozenset[CardUUID], off: frozenset[PodUID]) -> bool:
    """Whether the limits have the wanted flags."""
    is_free = limits.pod_uid in off
    return bool(limits.flags & FLAG_OFF) is is_free and all(
        bool(c.flags & PACED) is (c.uuid in paced and not is_free) for c in limits.cards
    )


def flagged(limits: ContainerLimits, *, paced: frozenset[CardUUID], off: frozenset[PodUID]) -> ContainerLimits:
    """The limits with the wanted flags, otherwise unchanged."""
    is_free = limits.pod_uid in off
    cards = tuple(
        msgspec.structs.replace(c, flags=_set(c.flags, PACED, on=c.uuid in paced and not is_free)) for c in limits.cards
    )
    return msgspec.structs.replace(limits, cards=cards, flags=_set(limits.flags, FLAG_OFF, on=is_free))


def has_share(card: CardLimits) -> bool:
    """Whether the container was promised a part of the card's time, or has a limit on it. A whole card needs no
    turns."""
    return 0 < card.cores < _ALL or 0 < card.cores_limit < _ALL


def _set(flags: int, flag: int, *, on: bool) -> int:
    return flags | flag if on else flags & ~flag
