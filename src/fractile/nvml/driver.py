"""The cards of this machine through NVML, by NVIDIA's own binding (nvidia-ml-py, which loads libnvidia-ml.so.1).

Failure rule: a machine without the driver is an error with a remedy (SetupError). A card that does not answer (lost,
XID 79) never hides the others: one dead card of eight must cost one card (NVIDIA/k8s-device-plugin#2038). Values that a
driver or a card does not support are unknown, without an error.
"""

import logging
import math
import threading
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.health import CardEvent, EventKind, HealthReading
from fractile.model.units import CardUUID, MiB
from fractile.nvml import library, probe
from fractile.nvml.interconnect import Interconnects
from fractile.nvml.library import DOUBLE_BIT, TIMEOUT, UNINITIALIZED, XID, EventData, EventSet, Handle
from fractile.nvml.properties import Tellings

log = logging.getLogger(__name__)

_UNKNOWN = MiB(0)
_WANTED = DOUBLE_BIT | XID  # single-bit errors may come by the thousand; ``readings`` counts them


class Driver(Protocol):
    """A source of cards. Every method blocks and may hang with the driver: call it from a thread."""

    def cards(self) -> list[Card]:
        """The cards that answer now, by index. SetupError when the driver as a whole does not."""
        ...

    def readings(self) -> list[HealthReading]:
        """Every card that the driver lists, by index, including those that do not answer. SetupError as in
        ``cards``."""
        ...

    def events(self, timeout: float) -> list[CardEvent]:
        """New events; waits at most ``timeout`` seconds for one."""
        ...

    def renew(self) -> None:
        """Start a new session with the driver: a card that was lost and reset answers no earlier one."""
        ...

    def asking(self) -> CardUUID | None:
        """The card that another thread is querying, if it waits for the answer."""
        ...

    def close(self) -> None: ...


class _Watch:
    """An event set, and the cards of its handles."""

    def __init__(self, events: EventSet) -> None:
        self.events = events
        self.cards: dict[int, CardUUID] = {}
        self.tried: set[CardUUID] = set()  # the cards that answered, with or without events


class NvmlDriver:
    """NVML, initialised until ``close``. Methods may be called from several threads.

    ``context`` is what a CUDA context costs on this node's cards, 0 when it is not known.
    ``_waiting`` is held while a thread waits for events, ``_lock`` during queries; ending the session takes both.
    """

    def __init__(self, *, context: MiB = _UNKNOWN) -> None:
        self._context = context
        self._nvml = library.load()
        self._interconnects = Interconnects(self._nvml)
        self._tellings = Tellings(self._nvml)
        self._lock = threading.RLock()
        self._waiting = threading.Lock()
        self._watch: _Watch | None = None
        self._stale = False
        self._uuids: dict[int, CardUUID] = {}  # by index, as last seen
        self._asking: CardUUID | None = None
        try:
            self._nvml.nvmlInit()
        except library.refusals(self._nvml) as e:
            raise SetupError(
                f"NVML does not start ({e}); install the NVIDIA driver on this node, or give --simulated-cards FILE"
            ) from None

    @property
    def session(self) -> AbstractContextManager[object]:
        """While it is held, NVML stays initialised: for other code that queries it."""
        return self._lock

    def cards(self) -> list[Card]:
        with self._lock:
            return [card for card in map(self._card, range(self._count())) if card is not None]

    def readings(self) -> list[HealthReading]:
        with self._lock:
            try:
                found = [self._reading(index) for index in range(self._count())]
            finally:
                self._asking = None
            answered = {r.card.uuid for r in found if r.card is not None}
            self._stale = self._watch is not None and not answered <= self._watch.tried
            return found

    def events(self, timeout: float) -> list[CardEvent]:
        with self._waiting:
            watch = self._watching()
            if watch is None:
                threading.Event().wait(timeout)
                return []
            try:
                # rounded up: otherwise the last part of a millisecond would take many calls
                data = self._nvml.nvmlEventSetWait(watch.events, math.ceil(timeout * 1000))
            except library.refusals(self._nvml) as e:
                if library.code(e) != TIMEOUT:
                    log.warning("events not read reason=%s", e)
                    threading.Event().wait(timeout)
                    self._unwatch()
                return []
        event = _event(data, watch.cards)
        return [] if event is None else [event]

    def renew(self) -> None:
        with self._waiting, self._lock:
            self._unwatch()
            self._interconnects.forget()
            self._tellings.forget()
            try:
                self._nvml.nvmlShutdown()
            except library.refusals(self._nvml) as e:
                log.warning("nvml shutdown failed reason=%s", e)
            try:
                self._nvml.nvmlInit()
            except library.refusals(self._nvml) as e:
                log.warning("nvml does not start again reason=%s", e)

    def asking(self) -> CardUUID | None:
        return self._asking

    def close(self) -> None:
        """Does not wait for a driver that hangs: the end of the process ends the session too."""
        if not self._waiting.acquire(timeout=2.0):
            return
        try:
            if not self._lock.acquire(timeout=2.0):
                return
            try:
                self._unwatch()
                self._nvml.nvmlShutdown()
            except library.refusals(self._nvml) as e:
                log.warning("nvml shutdown failed reason=%s", e)
            finally:
                self._lock.release()
        finally:
            self._waiting.release()

    def _count(self) -> int:
        try:
            return self._nvml.nvmlDeviceGetCount()
        except library.refusals(self._nvml) as e:
            if library.code(e) == UNINITIALIZED:  # a renewal found no driver; it may be back
                self._start_again()
            raise SetupError(f"NVML cannot count the cards ({e}); look at the driver's state with nvidia-smi") from None

    def _start_again(self) -> None:
        try:
            self._nvml.nvmlInit()
        except library.refusals(self._nvml) as e:
            log.warning("nvml does not start again reason=%s", e)

    def _card(self, index: int) -> Card | None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            return self._told(probe.card(self._nvml, index, handle, context=self._context), handle)
        except library.refusals(self._nvml) as e:
            log.warning("card left out index=%d reason=%s", index, e)
            return None

    def _reading(self, index: int) -> HealthReading:
        self._asking = self._uuids.get(index)
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            found = probe.reading(self._nvml, index, handle, context=self._context)
        except library.refusals(self._nvml) as e:
            return HealthReading(index=index, card=None, silence=library.silence(e), error=str(e))
        if found.card is not None:
            self._uuids[index] = found.card.uuid
            return msgspec.structs.replace(found, card=self._told(found.card, handle))
        return found

    def _told(self, card: Card, handle: Handle) -> Card:
        """The card with its interconnect and properties."""
        card = self._interconnects.joined(card)
        said = self._tellings.of(card, handle, group=self._interconnects.group(card))
        return msgspec.structs.replace(card, properties=said)

    def _watching(self) -> _Watch | None:
        """The event set of all cards that answer and have events; rebuilt when another card answers."""
        with self._lock:
            if self._stale:
                self._unwatch()
            if self._watch is None:
                try:
                    watch = _Watch(self._nvml.nvmlEventSetCreate())
                    for index in range(self._nvml.nvmlDeviceGetCount()):
                        self._register(watch, index)
                    self._watch = watch
                except library.refusals(self._nvml) as e:
                    log.debug("no events reason=%s", e)
            return self._watch

    def _register(self, watch: _Watch, index: int) -> None:
        nvml = self._nvml
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid = CardUUID(library.text(nvml.nvmlDeviceGetUUID(handle)))
            watch.tried.add(uuid)
            types = _WANTED & nvml.nvmlDeviceGetSupportedEventTypes(handle)
            if types:
                nvml.nvmlDeviceRegisterEvents(handle, types, watch.events)
                watch.cards[library.address(handle)] = uuid
        except library.refusals(nvml) as e:
            log.info("card without events index=%d reason=%s", index, e)

    def _unwatch(self) -> None:
        watch, self._watch, self._stale = self._watch, None, False
        if watch is not None:
            library.perhaps(self._nvml, lambda: self._nvml.nvmlEventSetFree(watch.events))


def _event(data: EventData, cards: dict[int, CardUUID]) -> CardEvent | None:
    """NVML names only the card here, no process (nvmlEventData_t)."""
    card = cards.get(library.address(data.device))
    if card is None:
        log.warning("event of an unknown card type=%d data=%d", data.eventType, data.eventData)
        return None
    if data.eventType == XID:
        return CardEvent(card, EventKind.XID, xid=data.eventData)
    return CardEvent(card, EventKind.UNCORRECTED)
