"""What is done about use of cards outside the ledger: it is counted, said once in the log and on the pod, and, by
``--outside-ledger``, the pod is evicted.

    warn        nobody
    evict       pods that use a card of which they hold nothing, or that took the library away from their containers
    evict-all   also pods that hold a part of it, and use it around the library otherwise or beyond the quota

A finding counts when two looks in a row show it: between asking the driver and reading a region a process may allocate,
start or end. A pod is evicted when it has done so for the grace time, by whichever processes (``lasting``), one pod in
a minute, and never one that ``spared`` names. Failure rule: an event or eviction that the API server does not take is
tried again as long as the finding stands.
"""

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Literal

import msgspec

from fractile.agent.beyond import Beyond, Part
from fractile.agent.lasting import Lasting
from fractile.agent.leftover import Leftover
from fractile.agent.outside import Finding
from fractile.agent.owners import Owner, Owners
from fractile.agent.spared import Spared
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Clock
from fractile.policy.outside import announcement, sentence
from fractile.policy.outside import evicted as of_eviction
from fractile.wire.node_usage import Kind, Outside

Policy = Literal["warn", "evict", "evict-all"]
GRACE = 60.0  # seconds

REASON = "GPUOutsideLedger"
EVICTED = "GPUOutsideLedgerEvicted"

_AGAIN = 5.0  # seconds until the API server is asked once more
_SPARED = 60.0  # until a pod that was spared is looked at again
_BETWEEN = 60.0  # from one eviction to the next
_EVICTED_KINDS: dict[Policy, frozenset[Kind]] = {
    "warn": frozenset(),
    "evict": frozenset({"no-slice", "no-library"}),
    "evict-all": frozenset({"no-slice", "no-library", "not-in-ledger", "over-ledger", "over-quota"}),
}
_CALL = 5.0
_STARTING = 30.0  # in which kubelet may not have said yet which containers a pod has
_GRACE = 30  # seconds that the pod's processes have to end, as by default

log = logging.getLogger(__name__)


class _Case(msgspec.Struct):
    """A finding as long as it lasts. ``since`` in seconds since 1970, ``begun`` the same on the audit's clock;
    ``until``: the end of its grace time; ``spared``: why its pod was left alone when that was over, ``stays``: why it
    is as was last read; ``gone``: the UID of its pod, if the API server does not have that any more."""

    finding: Finding
    since: float
    begun: float
    until: float
    looks: int = 1
    owner: Owner | None = None
    told: bool = False
    evicted: bool = False
    spared: str = ""
    stays: str = ""
    gone: str = ""
    next_try: float = 0.0


class Audit:
    """``observe`` is called after every look and never waits; ``run`` tells and evicts; ``outside`` is what stands,
    ``beyond`` what it comes to."""

    def __init__(
        self,
        client: KubeClient,
        events: EventRecorder,
        owners: Owners,
        spared: Spared,
        *,
        policy: Policy,
        grace: float = GRACE,
        clock: Clock = time.monotonic,
        now: Clock = time.time,
    ) -> None:
        self._client = client
        self._events = events
        self._owners = owners
        self._spared = spared
        self._kinds = _EVICTED_KINDS[policy]
        self._grace = grace
        self._next_eviction = 0.0
        self._clock = clock
        self._now = now
        self._cases: dict[tuple[str, ...], _Case] = {}
        self._lasting = Lasting()
        self._leftover = Leftover(events, owners)
        self._wake = asyncio.Event()
        self.found: dict[Kind, int] = {}  # since the agent started
        self.evictions = 0

    @property
    def doubtful(self) -> bool:
        """Whether another look should come soon, to confirm what was seen once."""
        return any(case.looks == 1 for case in self._cases.values())

    @property
    def outside(self) -> tuple[Outside, ...]:
        """Of a pod that will be evicted, when at the earliest."""
        standing = [case for case in self._cases.values() if case.looks > 1]
        return tuple(
            msgspec.structs.replace(_outside(case), evicted_in_seconds=self._evicted_in(case)) for case in standing
        )

    def _evicted_in(self, case: _Case) -> float | None:
        """One pod in a minute; a case without a known owner, or one that was not told yet, is nobody's yet."""
        if case.finding.kind not in self._kinds or not case.told or case.owner is None or case.stays:
            return None
        if case.evicted:
            return 0.0
        return round(max(0.0, case.until - self._clock(), self._next_eviction - self._clock()), 1)

    @property
    def beyond(self) -> Beyond:
        """What the findings that stand come to, by container and card."""
        found: dict[Part, int] = {}
        doubtful: set[Part] = set()
        for case in self._cases.values():
            finding = case.finding
            if finding.granted is None or not finding.beyond:
                continue
            part = finding.granted.token, finding.card
            if case.looks > 1:
                found[part] = found.get(part, 0) + finding.beyond
            else:
                doubtful.add(part)
        return Beyond(found, frozenset(doubtful))

    def observe(self, findings: Sequence[Finding]) -> None:
        """Compare with the look before."""
        present = {finding.key: finding for finding in findings}
        for key in [key for key in self._cases if key not in present]:
            case = self._cases.pop(key)
            if case.owner is not None and not case.stays:
                self._lasting.ended(case.owner, case.finding, case.begun, self._clock())
            if case.looks > 1:
                log.info("outside the ledger no more kind=%s card=%s %s", key[0], key[1], _who(case))
        for key, finding in present.items():
            case = self._cases.setdefault(
                key, _Case(finding, self._now(), self._clock(), self._clock() + self._grace, 0)
            )
            case.finding = _placed(finding, case.owner)
            case.looks += 1
            if case.looks == 2:
                self.found[finding.kind] = self.found.get(finding.kind, 0) + 1
                self._owned(case, _granted_owner(finding))
                self._wake.set()
        self._lasting.forget(self._clock())

    def _owned(self, case: _Case, owner: Owner | None) -> None:
        """Whose it is; earlier processes may have used up a part of its grace time."""
        case.owner = owner
        if owner is not None:
            case.until = case.begun + self._grace - self._lasting.seconds(owner, case.finding, case.begun)

    async def run(self) -> None:
        """Work forever."""
        while True:
            self._wake.clear()
            await self.act()
            try:
                async with asyncio.timeout(_AGAIN):
                    await self._wake.wait()
            except TimeoutError:
                continue

    async def act(self) -> None:
        """Say and do what is due; a few calls of the API server at most."""
        for case in [c for c in self._cases.values() if c.looks > 1]:
            if not case.gone and self._clock() >= case.begun + _STARTING:
                case.gone = await self._leftover.look(case.finding, case.owner)
                case.told = case.told or bool(case.gone)
            if self._due(case):
                case.next_try = self._clock() + _AGAIN
                await self._tell(case)
                await self._evict(case)

    def _due(self, case: _Case) -> bool:
        return (not case.told or self._to_evict(case)) and self._clock() >= case.next_try

    def _to_evict(self, case: _Case) -> bool:
        """Whether it is time for that, as far as the finding says."""
        mine = case.finding.kind in self._kinds and case.owner is not None and not case.evicted
        return mine and self._clock() >= case.until

    async def _tell(self, case: _Case) -> None:
        if case.told:
            return
        finding = case.finding
        if case.owner is None and finding.process is not None and finding.process.places:
            owner = await self._owners.of(finding.process.places)
            if owner is not None and _container_to_come(owner, finding) and self._clock() < case.begun + _STARTING:
                return  # asked again: whether that container was given the library depends on which one it is
            finding = case.finding = _placed(finding, owner)
            if finding.kind == "no-library":
                self.found["no-library"] = self.found.get("no-library", 0) + 1
            self._owned(case, owner)
            if case.owner is None:
                log.warning("outside the ledger kind=%s card=%s %s", finding.kind, finding.card, _who(case))
                return  # asked again: the API server may not know the pod's containers yet
        case.told = True
        log.warning(
            "outside the ledger kind=%s card=%s %s bytes=%s accounted=%s",
            *(finding.kind, finding.card, _who(case), finding.bytes, finding.accounted),
        )
        if case.owner is not None:
            threat = await self._threat(case, case.owner)
            self._events.emit(_reference(case.owner), REASON, sentence(_outside(case)) + threat)

    async def _threat(self, case: _Case, owner: Owner) -> str:
        """What becomes of the pod, as far as that can be said now."""
        if case.finding.kind not in self._kinds:
            return ""
        case.stays = await self._why(owner, case.finding) or ""
        return f"; the pod stays: it {case.stays}" if case.stays else announcement(case.until - case.begun)

    async def _why(self, owner: Owner, finding: Finding) -> str | None:
        """Why the pod is spared."""
        card = finding.card if finding.kind == "no-slice" else None  # of which it must hold nothing
        library = finding.kind == "no-library" and "not-in-ledger" not in self._kinds
        return await self._spared.why(owner, card, given_library=library)

    async def _evict(self, case: _Case) -> None:
        owner = case.owner
        if owner is None or not self._to_evict(case) or self._clock() < self._next_eviction:
            return
        if any(c.evicted and c.owner is not None and c.owner.uid == owner.uid for c in self._cases.values()):
            case.evicted = True
            return
        spared = await self._why(owner, case.finding)
        if spared is None:
            return
        case.stays = spared
        if spared:
            if spared != case.spared:
                log.warning("not evicted pod=%s/%s reason=%r", owner.namespace, owner.pod, f"it {spared}")
            case.spared, case.next_try = spared, self._clock() + _SPARED
            return
        # Not the API's eviction: it does not say where the pod is, so agents have no right to it (36-agents.yaml); a
        # disruption budget of the pod's owner could forbid it for ever. Nor does the owner say how long it may take.
        path = paths.pod(owner.namespace, owner.pod)
        try:
            async with asyncio.timeout(_CALL):
                await self._client.delete(path, uid=owner.uid, grace_seconds=_GRACE)
        except (ApiError, Unreachable, WireError, TimeoutError) as e:
            case.evicted = isinstance(e, ApiError) and e.code in (404, 409)  # gone, or another pod by now
            log.warning("not evicted pod=%s/%s reason=%s", owner.namespace, owner.pod, e or "no answer")
            return
        case.evicted = True
        self._next_eviction = self._clock() + _BETWEEN
        self.evictions += 1
        log.warning("evicted pod=%s/%s kind=%s", owner.namespace, owner.pod, case.finding.kind)
        self._events.emit(_reference(owner), EVICTED, of_eviction(_outside(case)))


def _placed(finding: Finding, owner: Owner | None) -> Finding:
    """The finding, when it is known in which of its pod's containers the process is: one without a slice of the card
    was given no library that it could see."""
    if owner is None or not owner.container or owner.container not in finding.containers:
        return finding
    return msgspec.structs.replace(finding, kind="no-library")


def _container_to_come(owner: Owner, finding: Finding) -> bool:
    return bool(finding.containers) and not owner.container


def _granted_owner(finding: Finding) -> Owner | None:
    if finding.granted is None:
        return None
    limits = finding.granted.limits
    return Owner(limits.pod_uid, limits.namespace, limits.pod, limits.container)


def _reference(owner: Owner) -> ObjectRef:
    return ObjectRef("Pod", owner.namespace, owner.pod, owner.uid)


def _who(case: _Case) -> str:
    process = case.finding.process
    owner = case.owner
    return (
        f"pid={process.pid if process else 0} command={process.command if process else '-'!r} "
        f"pod={f'{owner.namespace}/{owner.pod}' if owner else '-'} container={owner.container if owner else '-'}"
    )


def _outside(case: _Case) -> Outside:
    finding, process, owner = case.finding, case.finding.process, case.owner or Owner("", "", "")
    return Outside(
        kind=finding.kind,
        card=finding.card,
        since=case.since,
        pid=process.pid if process else 0,
        command=process.command if process else "",
        bytes=finding.bytes,
        accounted_bytes=finding.accounted,
        pod_uid=owner.uid or case.gone,
        namespace=owner.namespace,
        pod=owner.pod,
        container=owner.container,
        unseen=finding.unseen,
        spared=case.stays,
    )
