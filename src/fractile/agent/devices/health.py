"""Keeps the catalog in line with the cards: which exist, and which of them may take new pods now.

    driver ─> watcher (thread) ─> this loop ─> policy.health, one state per card ─> catalog ─> kubelet, API server
                                                                      └─> listener (health_events)

A known card that stops answering stays in the catalog, sick, so that its ids become Unhealthy instead of vanishing and
its pods keep their records; it is removed when the driver has not listed it for long. Failure rule: nothing that a
driver does ends this loop; while it is silent, the last known state holds.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from fractile.agent.node.catalog import CurrentCatalog
from fractile.errors import SetupError, WireError
from fractile.kube.pacing import Clock
from fractile.model.card import Card
from fractile.model.health import CardEvent, HealthReading, HealthVerdict, Silence
from fractile.model.units import CardUUID
from fractile.nvml.driver import Driver
from fractile.nvml.watcher import Failed, Readings, Report, Watcher
from fractile.policy import health as policy
from fractile.policy.health import WELL, CardHealth, HealthRules
from fractile.policy.xids import XidKind
from fractile.wire.fractile.extended_resource import UNHEALTHY, ExtendedResource, to_card

INTERVAL = 5.0  # seconds between two readings

_SILENT = 30.0  # without a report before the driver counts as hanging
_WAITING = 1000  # reports; more are dropped, and the next readings show the state

log = logging.getLogger(__name__)


class HealthListener(Protocol):
    """Receives changes of health. Neither method waits."""

    def turned(self, card: Card, verdict: HealthVerdict) -> None:
        """The card became sick or healthy."""
        ...

    def failed(self, card: Card, event: CardEvent, text: str) -> None:
        """A program's own error on a card that stays healthy."""
        ...


class HealthMonitor:
    """``first`` is set once the cards were read, ``adopted`` once the API server's objects were, too."""

    def __init__(
        self,
        driver: Driver,
        current_catalog: CurrentCatalog,
        told: HealthListener,
        *,
        rules: HealthRules,
        interval: float = INTERVAL,
        clock: Clock = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.first = asyncio.Event()
        self.adopted = asyncio.Event()
        self._driver = driver
        self._current_catalog = current_catalog
        self._told = told
        self._rules = rules
        self._interval = interval
        self._clock = clock
        self._since_1970 = wall() - clock()
        self._cards: dict[CardUUID, Card] = {c.uuid: c for c in current_catalog.catalog.cards}
        self._states: dict[CardUUID, CardHealth] = {}
        self._silent: dict[int, HealthReading] = {}  # by index, of cards that were never identified here
        self._remembered: set[CardUUID] = set()
        self._refused = ""  # why not all cards are offered, as last logged

    async def run(self) -> None:
        """Work until cancelled."""
        reports: asyncio.Queue[Report] = asyncio.Queue()
        watcher = Watcher(self._driver, _into(reports), interval=self._interval)
        watcher.start()
        try:
            while True:
                try:
                    async with asyncio.timeout(_SILENT):
                        self.take(await reports.get())
                except TimeoutError:
                    self.take(None)
        finally:
            watcher.stop()

    def verdict(self, card: CardUUID) -> HealthVerdict:
        return policy.verdict(self._states.get(card, WELL))

    def stamp(self, moment: float) -> str:
        """A time of a verdict in Kubernetes' format. Rounded, so that a time that is read back is written unchanged."""
        return datetime.fromtimestamp(round(self._since_1970 + moment), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")

    def take(self, report: Report | None) -> None:
        """Process a report of the driver; None when it has been silent for too long."""
        before = {uuid: self.verdict(uuid) for uuid in self._cards}
        match report:
            case Readings():
                self._readings(report.cards)
            case Failed():
                log.warning("cards not read reason=%s", report.reason)
                self._readings_failed(report.reason)
            case CardEvent():
                self._event(report)
            case None:
                self._hangs()
        if isinstance(report, Readings | Failed):
            self.first.set()
        self._settle(before)

    def adopt(self, found: Iterable[ExtendedResource]) -> None:
        """Learn from the API server's objects of this node what an earlier agent knew: which cards the silent ones are,
        and which cards were sick and for how long. Objects from before the last boot are ignored: it reset the cards.
        """
        before = {uuid: self.verdict(uuid) for uuid in self._cards}
        for resource in found:
            try:
                _, card = to_card(resource)
            except WireError as e:
                log.warning("card object ignored object=%s reason=%s", resource.metadata.name, e)
                continue
            silent = self._silent.pop(card.index, None) if card.uuid not in self._cards else None
            if silent is not None:
                self._cards[card.uuid] = msgspec.structs.replace(card, healthy=True)
                self._observe(card.uuid, silent)
            if card.uuid in self._cards and card.uuid not in self._remembered:
                self._remembered.add(card.uuid)
                self._recall(card.uuid, resource)
        self._settle(before)
        self.adopted.set()

    # ── the driver's reports ─────────────────────────────────────────────────────────────────────────────────────────

    def _readings(self, readings: Sequence[HealthReading]) -> None:
        answered = {r.card.uuid: r for r in readings if r.card is not None}
        silent = {r.index: r for r in readings if r.card is None}
        self._cards |= {r.card.uuid: r.card for r in answered.values() if r.card is not None}
        for uuid, card in list(self._cards.items()):
            self._observe(uuid, answered.get(uuid) or silent.pop(card.index, None))
            if policy.forgettable(self._states[uuid], now=self._clock(), rules=self._rules):
                log.warning("card forgotten card=%s reason=%s", uuid, "the driver has not listed it for long")
                del self._cards[uuid], self._states[uuid]
        for index in silent.keys() - self._silent.keys():
            log.warning("card does not answer index=%d reason=%s", index, silent[index].error)
        self._silent = silent

    def _readings_failed(self, reason: str) -> None:
        for uuid, card in self._cards.items():
            self._observe(uuid, HealthReading(index=card.index, card=None, silence=Silence.ERROR, error=reason))

    def _observe(self, card: CardUUID, reading: HealthReading | None) -> None:
        state = self._states.get(card, WELL)
        self._states[card] = policy.observe(state, reading, now=self._clock(), rules=self._rules)

    def _event(self, event: CardEvent) -> None:
        card = self._cards.get(event.card)
        if card is None:
            return
        xid = policy.meaning(event, self._rules)
        kind, text = ("ecc", "") if xid is None else (xid.kind.value, xid.text)
        log.warning("card event card=%s kind=%s xid=%d text=%r", event.card, kind, event.xid, text)
        if xid is not None and xid.kind is XidKind.APPLICATION:
            self._told.failed(card, event, text)
        state = self._states.get(event.card, WELL)
        self._states[event.card] = policy.notice(state, event, now=self._clock(), rules=self._rules)

    def _hangs(self) -> None:
        card = self._driver.asking()
        log.warning("driver silent seconds=%.0f card=%s", _SILENT, card or "-")
        if card is not None and card in self._cards:
            state = self._states.get(card, WELL)
            self._states[card] = policy.hung(state, now=self._clock(), rules=self._rules)

    # ── consequences ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _settle(self, before: Mapping[CardUUID, HealthVerdict]) -> None:
        for uuid, card in self._cards.items():
            was, now = before.get(uuid, HealthVerdict()), self.verdict(uuid)
            if (was.healthy, was.reason) != (now.healthy, now.reason):
                log.warning("card=%s healthy=%s reason=%s message=%r", uuid, now.healthy, now.reason, now.message)
            if was.healthy is not now.healthy:
                self._told.turned(card, now)
        cards = sorted((self._marked(card) for card in self._cards.values()), key=lambda c: (c.index, c.uuid))
        present = self._current_catalog.catalog
        if tuple(cards) == present.cards:
            return
        try:
            catalog = present.with_cards(cards)
        except SetupError as e:  # more ids than kubelet takes: the known cards must still report their health
            if str(e) != self._refused:
                log.warning("new cards not offered reason=%s", e)
            self._refused = str(e)
            offered = {c.uuid for c in present.cards}
            cards = [c for c in cards if c.uuid in offered]
            if tuple(cards) == present.cards:
                return
            catalog = present.with_cards(cards)
        self._current_catalog.update(catalog)
        sick = sum(not c.healthy for c in cards)
        log.info("cards changed count=%d before=%d sick=%d", len(cards), len(present.cards), sick)

    def _marked(self, card: Card) -> Card:
        return msgspec.structs.replace(card, healthy=self.verdict(card.uuid).healthy)

    def _recall(self, card: CardUUID, resource: ExtendedResource) -> None:
        status = resource.status
        since, until = self._moment(status.last_transition_time), self._moment(status.returns_at)
        if status.phase != UNHEALTHY or since is None or since < 0:
            return
        known = HealthVerdict(False, status.reason, status.message, since, until)
        state = self._states.get(card, WELL)
        self._states[card] = policy.restored(state, known, now=self._clock(), rules=self._rules)

    def _moment(self, stamp: str) -> float | None:
        """In seconds of our clock, which begins with the boot: negative before it."""
        try:
            return datetime.fromisoformat(stamp).timestamp() - self._since_1970
        except ValueError:
            return None


def _into(queue: "asyncio.Queue[Report]") -> Callable[[Report], None]:
    """A function that puts reports into the queue from another thread."""
    loop = asyncio.get_running_loop()

    def put(report: Report) -> None:
        if queue.qsize() < _WAITING:
            queue.put_nowait(report)

    def deliver(report: Report) -> None:
        try:
            loop.call_soon_threadsafe(put, report)
        except RuntimeError:  # the loop has ended
            return

    return deliver
