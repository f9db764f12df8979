"""Tells the control plane which cards of the node can serve new pods now: the status of its ExtendedResources.

Kubelet fails a pod for good when it admits it while no plugin is registered (node.md 3.4). So an agent that is told to
stop first withdraws its cards, waits until Bindings that are already on their way have been served, and only then lets
go of kubelet; one that starts offers them again when kubelet has taken its plugins. A sick card is unhealthy whatever
else holds. Running pods notice nothing.

Level-triggered: what each card should say is compared with what was written; ``forget`` says that it stands there no
longer. Failure rule: it goes on. An API server that does not answer delays neither the stop nor, for long, the start;
an agent that is killed withdraws nothing, and pods bound until it is back may fail.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from fractile.agent.catalog import Catalog, Stock
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Sleep
from fractile.model.card import Card
from fractile.model.health import HEALTHY, Verdict
from fractile.model.units import CardUUID
from fractile.wire.extended_resource import AVAILABLE, ENFORCED, NOT_ENFORCED, PENDING, UNHEALTHY, object_name

_DRAIN = 1.0  # seconds from Binding to admission; measured: well below half of it
_PATIENCE = 3.0  # for the API server while stopping
_FAILED = 1.0
_ROUND = 5.0

log = logging.getLogger(__name__)

_Status = dict[str, str | None]
VerdictOf = Callable[[CardUUID], Verdict]


class Availability:
    """``run`` offers the cards once kubelet listens; ``withdraw`` takes them back before the agent stops.

    ``verdict`` says how a card is, ``stamp`` turns its times into those of the API; ``known`` is set once what earlier
    agents knew counts too: before, no card is called healthy.
    """

    def __init__(
        self,
        client: KubeClient,
        stock: Stock,
        *,
        registered: asyncio.Event,
        known: asyncio.Event | None = None,
        enforced: bool = False,
        verdict: VerdictOf = lambda card: HEALTHY,
        stamp: Callable[[float], str] = lambda moment: "",
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._stock = stock
        self._ready = (registered, known) if known else (registered,)
        self._isolation = ENFORCED if enforced else NOT_ENFORCED
        self._verdict = verdict
        self._stamp = stamp
        self._sleep = sleep
        self._wall = wall
        self._withdrawn = False
        self._writing = asyncio.Lock()
        self._written: dict[CardUUID, _Status] = {}
        self._again = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self._withdrawn = False
        while True:
            catalog = self._stock.catalog
            if await self._write(catalog.cards):
                await self._next(catalog)
            else:
                await self._sleep(_FAILED)

    async def withdraw(self) -> None:
        """Returns when no pod is on its way to this node any more, or when the API server has had its time."""
        self._withdrawn = True
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._write(self._stock.catalog.cards)
        except TimeoutError:
            log.warning("cards not withdrawn reason=%r", "the API server does not answer")
            return
        await self._sleep(_DRAIN)

    def forget(self, card: CardUUID) -> None:
        """The card's object is new, or somebody else wrote its status."""
        self._written.pop(card, None)
        self._again.set()

    async def _next(self, catalog: Catalog) -> None:
        """Until something is different, or a round has passed."""
        waits = {asyncio.ensure_future(self._stock.changed(catalog)), asyncio.ensure_future(self._forgotten(catalog))}
        if not self._all_ready():
            waits.add(asyncio.ensure_future(self._readiness(catalog)))
        try:
            await asyncio.wait(waits, timeout=_ROUND, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _forgotten(self, catalog: Catalog) -> Catalog:
        await self._again.wait()
        self._again.clear()
        return catalog

    async def _readiness(self, catalog: Catalog) -> Catalog:
        for event in self._ready:
            await event.wait()
        return catalog

    def _all_ready(self) -> bool:
        return all(event.is_set() for event in self._ready)

    async def _write(self, cards: Sequence[Card]) -> bool:
        """Whether all objects say what they should."""
        done = True
        async with self._writing:
            for card in cards:
                wanted = self._wanted(card.uuid)
                if wanted is None or wanted == self._written.get(card.uuid):
                    continue
                done = await self._patch(card.uuid, wanted) and done
        return done

    def _wanted(self, card: CardUUID) -> _Status | None:
        """None: nothing is known yet that the object does not say already."""
        verdict = self._verdict(card)
        if not verdict.healthy:
            return {
                "phase": UNHEALTHY,
                "isolation": self._isolation,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": self._stamp(verdict.since),
                "returnsAt": None if verdict.until is None else self._stamp(verdict.until),
            }
        if not (self._withdrawn or self._all_ready()):
            return None
        phase = PENDING if self._withdrawn else AVAILABLE
        before = self._written.get(card, {})
        since = before.get("lastTransitionTime") if before.get("phase") == phase else self._now()
        return {
            "phase": phase,
            "isolation": self._isolation,
            "reason": None,
            "message": None,
            "lastTransitionTime": since,
            "returnsAt": None,
        }

    async def _patch(self, card: CardUUID, wanted: _Status) -> bool:
        path = f"{paths.extended_resource(object_name(card))}/status"
        try:
            await self._client.merge_patch(path, {"status": wanted})
        except (ApiError, Unreachable, WireError) as e:
            if not (isinstance(e, ApiError) and e.code == 404):  # the inventory will make it
                log.warning("phase not written card=%s phase=%s reason=%s", card, wanted["phase"], e)
            return False
        if wanted != self._written.get(card):
            log.info("card=%s phase=%s reason=%s", card, wanted["phase"], wanted["reason"] or "-")
        self._written[card] = wanted
        return True

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
