"""Publishes which cards of the node can serve new pods now, and which pods hold them: the status of its
ExtendedResources.

Kubelet fails a pod permanently when it admits it while no plugin is registered (evidence/kubelet.md#no-plugin). So an
agent that is stopped first withdraws its cards, waits until Bindings that are already on their way have been served,
and only then disconnects from kubelet; one that starts offers them again when kubelet has accepted its plugins. A sick
card is published as unhealthy in every state. Running pods are not affected.

Level-triggered: the wanted status of each card is compared with what was written; ``forget`` drops the latter. Which
pods hold a card is written every two seconds at most. Writes are server-side applies: the agent owns the fields of the
status. The control plane marks cards of a lost node, and removes the mark when the node is ready: an agent on such a
node gets a conflict, and then writes for a healthy card only which pods hold it. Failure rule: it continues. An API
server that does not answer delays neither the stop nor, for long, the start; an agent that is killed withdraws nothing,
and pods bound until it is back may fail.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime

import msgspec

from fractile.agent.devices.publish_holders import NOBODY, DeviceHold
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock, Sleep
from fractile.model.card import Card
from fractile.model.health import HEALTHY, HealthVerdict
from fractile.model.units import CardUUID
from fractile.wire.fractile.extended_resource import (
    API_VERSION,
    ENFORCED,
    KIND,
    LOST,
    NODE_LOST,
    NOT_ENFORCED,
    PENDING,
    UNHEALTHY,
    ExtendedResource,
    ExtendedResourceStatus,
    object_name,
)
from fractile.wire.fractile.extended_resource import HEALTHY as HEALTHY_PHASES

FIELD_MANAGER = "fractile-agent"

_DRAIN = 1.0  # seconds until a pod that is bound is in the node's view; measured: well below half of it
_ADMISSION = 8.0  # seconds more for kubelet to admit those pods; milliseconds, unless the machine is overloaded
_ASK = 0.1
_PATIENCE = 3.0  # for the API server while stopping
_FAILED = 1.0
_ROUND = 2.0
_OWN = ("isolation", "boundTo", "used", "departed")  # what the agent writes for a card whose node is lost

log = logging.getLogger(__name__)

_Status = dict[str, object]
VerdictOf = Callable[[CardUUID], HealthVerdict]
Holders = Callable[[], Mapping[CardUUID, DeviceHold] | None]
Arriving = Callable[[], Awaitable[Sequence[str]]]


async def _nobody() -> Sequence[str]:
    return ()


class Availability:
    """``run`` offers the cards once kubelet watches them; ``withdraw`` takes them back before the agent stops.

    ``verdict`` gives a card's health, ``stamp`` turns its times into those of the API; ``known`` is set once the
    knowledge of earlier agents is included: before that, no card is published as healthy. ``holders`` gives the pods
    that hold the cards, None while that is not known: until then no card is offered.
    """

    def __init__(
        self,
        client: KubeClient,
        current_catalog: CurrentCatalog,
        *,
        registered: asyncio.Event,
        known: asyncio.Event | None = None,
        enforced: bool = False,
        verdict: VerdictOf = lambda card: HEALTHY,
        stamp: Callable[[float], str] = lambda moment: "",
        holders: Holders = dict,
        arriving: Arriving = _nobody,
        sleep: Sleep = asyncio.sleep,
        wall: Callable[[], float] = time.time,
        clock: Clock = time.monotonic,
    ) -> None:
        self._client = client
        self._current_catalog = current_catalog
        self._ready = (registered, known) if known else (registered,)
        self._isolation = ENFORCED if enforced else NOT_ENFORCED
        self._verdict = verdict
        self._stamp = stamp
        self._holders = holders
        self._arriving = arriving
        self._sleep = sleep
        self._wall = wall
        self._clock = clock
        self._withdrawn = False
        self._writing = asyncio.Lock()
        self._written: dict[CardUUID, _Status] = {}
        self._at: dict[CardUUID, float] = {}  # time of the last write
        self._again = asyncio.Event()

    async def run(self) -> None:
        """Work until cancelled."""
        self._withdrawn = False
        while True:
            catalog = self._current_catalog.catalog
            if await self._write(catalog.all):
                await self._next(catalog)
            else:
                await self._sleep(_FAILED)

    async def withdraw(self) -> None:
        """Returns when no pod is on its way to this node, or the API server or kubelet has had its time."""
        self._withdrawn = True
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._write(self._current_catalog.catalog.all)
        except TimeoutError:
            log.warning("cards not withdrawn reason=%r", "the API server does not answer")
            return
        await self._sleep(_DRAIN)
        until = self._clock() + _ADMISSION
        while awaited := await self._arriving():
            if self._clock() > until:
                log.warning("no longer waiting for pods=%s", ",".join(awaited))
                return
            await self._sleep(_ASK)

    def forget(self, card: CardUUID) -> None:
        """The card's object is new, or another client wrote its status."""
        self._written.pop(card, None)
        self._again.set()

    async def _next(self, catalog: Catalog) -> None:
        """Wait until something changes, or a round has passed."""
        waits = {
            asyncio.ensure_future(self._current_catalog.changed(catalog)),
            asyncio.ensure_future(self._forgotten(catalog)),
        }
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

    async def _write(self, cards: Iterable[Card]) -> bool:
        """Write what is due; returns whether all objects have the wanted status."""
        done = True
        async with self._writing:
            held = self._holders()
            for card in cards:
                wanted = self._wanted(card, held)
                if wanted is None or not self._due(card.uuid, wanted):
                    continue
                done = await self._tell(card.uuid, wanted) and done
        return done

    def _due(self, card: CardUUID, wanted: _Status) -> bool:
        """Whether it differs from what was written; if only the use differs, not too soon after the last write."""
        written = self._written.get(card)
        if wanted == written:
            return False
        used_only = written is not None and written["phase"] in HEALTHY_PHASES and wanted["phase"] in HEALTHY_PHASES
        return not used_only or self._clock() - self._at.get(card, 0.0) >= _ROUND

    def _wanted(self, card: Card, held: Mapping[CardUUID, DeviceHold] | None) -> _Status | None:
        """None: there is nothing to write yet."""
        use = {} if held is None else _use(card, held.get(card.uuid, NOBODY))
        verdict = self._verdict(card.uuid)
        if not verdict.healthy:
            return {
                "phase": UNHEALTHY,
                "isolation": self._isolation,
                "reason": verdict.reason,
                "message": verdict.message,
                "lastTransitionTime": self._stamp(verdict.since),
                "returnsAt": None if verdict.until is None else self._stamp(verdict.until),
                **use,
            }
        if not (self._withdrawn or (self._all_ready() and held is not None)):
            return None
        phase = PENDING if self._withdrawn or held is None else held.get(card.uuid, NOBODY).phase(card)
        before = self._written.get(card.uuid, {})
        since = before.get("lastTransitionTime") if before.get("phase") == phase else self._now()
        return {
            "phase": phase,
            "isolation": self._isolation,
            "reason": None,
            "message": None,
            "lastTransitionTime": since,
            "returnsAt": None,
            **use,
        }

    async def _tell(self, card: CardUUID, wanted: _Status) -> bool:
        try:
            await self._apply_unless_lost(object_name(card), wanted)
        except (ApiError, Unreachable, WireError) as e:
            if not (isinstance(e, ApiError) and e.code == 404):  # the inventory will create it
                log.warning("phase not written card=%s phase=%s reason=%s", card, wanted["phase"], e)
            return False
        self._at[card] = self._clock()
        if wanted["phase"] != self._written.get(card, {}).get("phase"):
            log.info("card=%s phase=%s reason=%s", card, wanted["phase"], wanted["reason"] or "-")
        self._written[card] = wanted
        return True

    async def _apply_unless_lost(self, name: str, wanted: _Status) -> None:
        """Apply the status; a sick or withdrawn card is written even if its node is lost."""
        if "used" not in wanted:  # not known yet: keep the object's value
            wanted = {**_use_of(await self._seen(name)), **wanted}
        # Empty texts remove those that another client wrote with another phase.
        over = {**wanted, "reason": wanted["reason"] or "", "message": wanted["message"] or ""}
        if wanted["phase"] not in HEALTHY_PHASES:
            await self._apply(name, over, force=True)
            return
        try:
            await self._apply(name, wanted, force=False)
        except ApiError as e:
            if e.code != 409:
                raise
            seen = await self._seen(name)
            lost = (seen.phase, seen.reason) == (LOST, NODE_LOST)
            own = {field: wanted[field] for field in _OWN if field in wanted}
            await self._apply(name, own if lost else over, force=True)

    async def _apply(self, name: str, status: _Status, *, force: bool) -> None:
        said = {field: value for field, value in status.items() if value is not None}
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}, "status": said}
        path = f"{paths.extended_resource(name)}/status"
        await self._client.apply(path, body, field_manager=FIELD_MANAGER, force=force)

    async def _seen(self, name: str) -> ExtendedResourceStatus:
        found, _ = await self._client.list(
            paths.extended_resources(), ExtendedResource, field_selector=f"metadata.name={name}"
        )
        return found[0].status if found else ExtendedResourceStatus()

    def _now(self) -> str:
        return datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _use(card: Card, held: DeviceHold) -> _Status:
    """The fields of the card's use; fields that are left out are removed from the object."""
    return _use_of(ExtendedResourceStatus(used=held.used(card), bound_to=list(held.by), departed=held.departed))


def _use_of(status: ExtendedResourceStatus) -> _Status:
    used = status.used
    found: _Status = {}
    if used is not None:
        memory = {"memory": used.memory} if used.memory else {}
        found["used"] = {**memory, "cores": used.cores, "slices": used.slices}
    if status.departed is not None:
        found["departed"] = msgspec.to_builtins(status.departed) | {"cores": status.departed.cores}
    if status.bound_to:
        found["boundTo"] = [msgspec.to_builtins(by) for by in status.bound_to]
    return found
