"""What is done about use of cards outside the ledger: it is counted, reported once in the log and on the pod, and,
depending on ``--outside-ledger``, the pod is evicted.

    warn        no pod
    evict       pods that use a card of which they hold nothing, or that removed the library from their containers
    evict-all   also pods that hold a part of it, and use it around the library in another way or beyond the quota

A finding counts when two polls in a row show it: between the query to the driver and the read of a region a process may
allocate, start or end. What a single poll shows for certain may be shown by two processes of the pod (``streaks``). A
pod is evicted when it has done so for the grace time, with any of its processes (``lasting``), one pod a minute, and
never a pod that ``spared`` names. If its processes use the card when their time to end is over, the agent ends them
(``overdue``). Failure rule: an event or eviction that the API server does not accept is retried as long as the finding
stands.
"""

import asyncio
import logging
import time
from collections.abc import Sequence

import msgspec

from fractile.agent.audit.ending import Ender
from fractile.agent.audit.lasting import Lasting
from fractile.agent.audit.leftover import Leftover
from fractile.agent.audit.otherwise import Otherwise
from fractile.agent.audit.overdue import Overdue
from fractile.agent.audit.spared import Spared
from fractile.agent.audit.streaks import Streak, Streaks
from fractile.agent.audit.unaccounted import Finding
from fractile.agent.limits.beyond import Beyond, Part
from fractile.agent.node.owners import Owners, ProcessOwner
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.pacing import Clock
from fractile.policy.outside import EVICTED_KINDS, Policy, announcement, sentence, staying
from fractile.policy.outside import evicted as of_eviction
from fractile.wire.output.node_usage import Kind, Outside

GRACE = 60.0  # seconds

REASON = "GPUOutsideLedger"
EVICTED = "GPUOutsideLedgerEvicted"

_AGAIN = 5.0  # seconds until the API server is called again
_SPARED = 60.0  # until a spared pod is checked again
_BETWEEN = 60.0  # between two evictions
_CALL = 5.0
_STARTING = 30.0  # in which kubelet may not have reported a pod's containers yet
_GRACE = 30  # seconds that the pod's processes have to end, Kubernetes' default, or less if the pod says so
_MARGIN = 10  # allowed to kubelet beyond that
_FRESH = 3.0  # seconds for which a process that a poll showed on the card counts as still there

log = logging.getLogger(__name__)


class _Case(msgspec.Struct):
    """A finding as long as it lasts. ``since`` in seconds since 1970, ``begun`` the same on the audit's clock;
    ``until``: the end of its grace time; ``spared``: why its pod was spared then; ``stays``: the latest reason;
    ``gone``: the UID of its pod, if the API server no longer has it; ``seen``: when a poll showed it last;
    ``evictable``: its pod could be evicted when the finding was reported."""

    finding: Finding
    since: float
    begun: float
    until: float
    looks: int = 0
    seen: float = 0.0
    found: bool = False
    owner: ProcessOwner | None = None
    told: bool = False
    evicted: bool = False
    spared: str = ""
    stays: str = ""
    gone: str = ""
    evictable: bool = False
    next_try: float = 0.0
    next_end: float = 0.0


class OutsideAudit:
    """Call ``observe`` after every poll; it never waits. ``run`` reports and evicts; ``outside`` are the confirmed
    findings, ``beyond`` their sums."""

    def __init__(
        self,
        client: KubeClient,
        events: EventRecorder,
        owners: Owners,
        spared: Spared,
        ender: Ender,
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
        self._kinds = EVICTED_KINDS[policy]
        self._otherwise = Otherwise(self._why, policy=policy, grace=grace, clock=clock)
        self._grace = grace
        self._next_eviction = 0.0
        self._clock = clock
        self._now = now
        self._cases: dict[tuple[str, ...], _Case] = {}
        self._lasting = Lasting()
        self._streaks = Streaks(owners.outermost)
        self._leftover = Leftover(events, owners)
        self.overdue = Overdue(events, ender, patience=_GRACE + _MARGIN, clock=clock)
        self._wake = asyncio.Event()
        self.found: dict[Kind, int] = {}  # since the agent started
        self.evictions = 0

    @property
    def unconfirmed(self) -> bool:
        """Whether another poll should follow soon, to confirm a finding."""
        return any(case.looks == 1 for case in self._cases.values())

    @property
    def outside(self) -> tuple[Outside, ...]:
        """The confirmed findings: each with the earliest time of its pod's eviction, or with the reason why it
        stays."""
        standing = [case for case in self._cases.values() if case.looks > 1]
        return tuple(
            msgspec.structs.replace(
                _outside(case), evicted_in_seconds=self._evicted_in(case), spared=case.stays or self._left_alone(case)
            )
            for case in standing
        )

    def _left_alone(self, case: _Case) -> str:
        """The rest of a sentence that begins with the pod; "" if the policy evicts it, or there is no pod."""
        if case.owner is None or case.finding.kind in self._kinds:
            return ""
        return f"is not evicted for that while {self._otherwise.sentence(case.owner, case.finding)}"

    def _evicted_in(self, case: _Case) -> float | None:
        """One pod a minute; None for a case without a known owner, or that was not reported yet."""
        if case.finding.kind not in self._kinds or not case.told or case.owner is None or case.stays:
            return None
        if case.evicted:
            return 0.0
        return round(max(0.0, case.until - self._clock(), self._next_eviction - self._clock()), 1)

    @property
    def beyond(self) -> Beyond:
        """Bytes of the confirmed findings, by container and card."""
        found: dict[Part, int] = {}
        unconfirmed: set[Part] = set()
        for case in self._cases.values():
            finding = case.finding
            if finding.granted is None or not finding.beyond:
                continue
            part = finding.granted.token, finding.card
            if case.looks > 1:
                found[part] = found.get(part, 0) + finding.beyond
            else:
                unconfirmed.add(part)
        return Beyond(found, frozenset(unconfirmed))

    def observe(self, findings: Sequence[Finding]) -> None:
        """Compare with the poll before."""
        now = self._clock()
        findings = [finding for finding in findings if not self._unrecorded(finding)]
        for streak in self._streaks.look(findings, since=self._now(), now=now):
            if streak.owner is not None and not streak.stays:
                self._lasting.ended(streak.owner, streak.finding, streak.begun, now)
        present = {finding.key: finding for finding in findings}
        for key in [key for key in self._cases if key not in present]:
            case = self._cases.pop(key)
            if case.owner is not None and not case.stays and self._streaks.alone(case.finding):
                self._lasting.ended(case.owner, case.finding, case.begun, now)
            if case.looks > 1:
                log.info("no longer outside the ledger kind=%s card=%s %s", key[0], key[1], _who(case))
        for key, finding in present.items():
            self._look(self._cases.get(key) or self._begin(key, finding), finding)
        self._lasting.forget(now)
        self.overdue.forget()

    def _unrecorded(self, finding: Finding) -> bool:
        """Whether the process has a directory of ours and its pod a part of the card: then the node's record of that
        was removed, not by the pod, and ``restore`` rebuilds it."""
        process = finding.process
        if finding.kind != "no-slice" or process is None or not process.token:
            return False
        return self._owners.holds(process.places, finding.card)

    def _begin(self, key: tuple[str, ...], finding: Finding) -> _Case:
        """A case, which begins with the first poll that showed the pod's processes on the card."""
        streak = self._streaks.of(finding) or Streak(finding, self._now(), self._clock())
        return self._cases.setdefault(key, _Case(finding, streak.since, streak.begun, streak.begun + self._grace))

    def _look(self, case: _Case, finding: Finding) -> None:
        """Add one poll to the case."""
        streak = self._streaks.of(finding)
        case.finding = _placed(finding, case.owner)
        case.looks = streak.looks if streak is not None else case.looks + 1
        case.seen = self._clock()
        if case.looks < 2 or case.found:
            return
        case.found = True
        if streak is None or not streak.found:
            self.found[finding.kind] = self.found.get(finding.kind, 0) + 1
        if streak is not None:
            streak.found = True
        self._owned(case, _granted_owner(finding))
        self._wake.set()

    def _owned(self, case: _Case, owner: ProcessOwner | None) -> None:
        """Set the case's owner; earlier processes may have used up a part of its grace time."""
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
        """Report and do what is due; a few calls of the API server at most."""
        for case in [c for c in self._cases.values() if c.looks > 1]:
            self._known(case)
            if not case.gone and self._clock() >= case.begun + _STARTING:
                case.gone = await self._leftover.look(case.finding, case.owner)
                case.told = case.told or bool(case.gone)
            if self._due(case):
                case.next_try = self._clock() + _AGAIN
                await self._tell(case)
                await self._evict(case)
            if case.told and case.owner is not None and not case.gone and case.finding.kind not in self._kinds:
                await self._otherwise.ask(case.owner, case.finding)
            await self._end(case)

    def _due(self, case: _Case) -> bool:
        return (not case.told or self._to_evict(case)) and self._clock() >= case.next_try

    def _to_evict(self, case: _Case) -> bool:
        """Whether the pod is to be evicted now, by kind and time of the finding."""
        mine = case.finding.kind in self._kinds and case.owner is not None and not case.evicted
        return mine and self._clock() >= case.until

    async def _tell(self, case: _Case) -> None:
        if case.told:
            return
        finding = case.finding
        if case.owner is None and finding.process is not None and finding.process.places:
            owner = await self._owners.of(finding.process.places)
            if self._unrecorded(finding):  # known now that the owner is; the next poll leaves it out
                return
            if owner is not None and _container_to_come(owner, finding) and self._clock() < case.begun + _STARTING:
                return  # retried: whether that container was given the library depends on which one it is
            finding = case.finding = _placed(finding, owner)
            if finding.kind == "no-library":
                self.found["no-library"] = self.found.get("no-library", 0) + 1
            self._owned(case, owner)
            if case.owner is None:
                log.warning("outside the ledger kind=%s card=%s %s", finding.kind, finding.card, _who(case))
                return  # retried: the API server may not know the pod's containers yet
        case.told = True
        log.warning(
            "outside the ledger kind=%s card=%s %s bytes=%s accounted=%s",
            *(finding.kind, finding.card, _who(case), finding.bytes, finding.accounted),
        )
        if case.owner is not None:
            threat = await self._threat(case, case.owner)
            outside = msgspec.structs.replace(_outside(case), spared=case.stays or self._left_alone(case))
            self._events.emit(_reference(case.owner), REASON, sentence(outside, self._owners.node) + threat)
            if (streak := self._streaks.of(finding)) is not None:
                streak.told, streak.owner, streak.finding = True, case.owner, finding
                streak.stays, streak.evictable = case.stays, case.evictable

    def _known(self, case: _Case) -> None:
        """Take over what another process of the pod has already established."""
        if case.told:
            return
        finding, streak = case.finding, self._streaks.of(case.finding)
        if streak is not None and streak.told and streak.owner is not None:
            self._owned(case, case.owner or _other(streak.owner, streak.finding, finding))
            case.told, case.stays, case.evictable = True, streak.stays, streak.evictable
            case.spared, case.next_try = streak.spared, streak.next_try
        elif case.owner is None and finding.process is not None:
            owner = self.overdue.owner(self._owners.outermost(finding.process.places))
            if owner is not None:  # the API server may no longer have it
                self._owned(case, owner)

    async def _threat(self, case: _Case, owner: ProcessOwner) -> str:
        """What will happen to the pod, as far as it is known now."""
        if case.finding.kind not in self._kinds:
            await self._otherwise.ask(owner, case.finding)
            return staying(self._otherwise.sentence(owner, case.finding))
        why = await self._why(owner, case.finding)
        case.stays, case.evictable = why or "", why == ""
        return staying(f"it {case.stays}") if case.stays else announcement(case.until - case.begun)

    async def _why(self, owner: ProcessOwner, finding: Finding) -> str | None:
        """Why the pod is spared; "" if it is not, None if that is not known now."""
        card = finding.card if finding.kind == "no-slice" else None  # of which an evicted pod must hold nothing
        library = finding.kind == "no-library" and "not-in-ledger" not in self._kinds
        return await self._spared.why(owner, card, given_library=library)

    async def _evict(self, case: _Case) -> None:
        owner = case.owner
        if owner is None or not self._to_evict(case):
            return
        if self._evicted(owner):
            case.evicted = True
            return
        if self._clock() < self._next_eviction:
            return
        spared = await self._why(owner, case.finding)
        if spared is None:
            return
        case.stays = spared
        if spared:
            if spared != case.spared:
                log.warning("not evicted pod=%s/%s reason=%r", owner.namespace, owner.pod, f"it {spared}")
            case.spared, case.next_try = spared, self._clock() + _SPARED
            if (streak := self._streaks.of(case.finding)) is not None:
                streak.stays, streak.spared, streak.next_try = spared, spared, case.next_try
            return
        # Not the Eviction API: its request does not say where the pod is, so agents have no right to it
        # (36-agents.yaml), and a disruption budget of the pod's owner could forbid it permanently. Nor may the owner
        # prolong the deletion.
        path = paths.pod(owner.namespace, owner.pod)
        try:
            async with asyncio.timeout(_CALL):
                grace = await self._spared.grace(owner, most=_GRACE)
                await self._client.delete(path, uid=owner.uid, grace_seconds=grace)
        except (ApiError, Unreachable, WireError, TimeoutError) as e:
            case.evicted = isinstance(e, ApiError) and e.code in (404, 409)  # gone, or another pod by now
            if case.evicted and case.evictable:  # deleted by force after the report; its processes are still there
                self.overdue.evicted(owner, self._owners.containers(owner.uid))
            log.warning("not evicted pod=%s/%s reason=%s", owner.namespace, owner.pod, e or "no answer")
            return
        case.evicted = True
        self.overdue.evicted(owner, self._owners.containers(owner.uid))
        self._next_eviction = self._clock() + _BETWEEN
        self.evictions += 1
        log.warning("evicted pod=%s/%s kind=%s", owner.namespace, owner.pod, case.finding.kind)
        self._events.emit(_reference(owner), EVICTED, of_eviction(_outside(case), self._owners.node))

    def _evicted(self, owner: ProcessOwner) -> bool:
        """Whether the pod was evicted because of another process, which may have ended since."""
        return self.overdue.owner(owner.uid) is not None or any(
            c.evicted and c.owner is not None and c.owner.uid == owner.uid for c in self._cases.values()
        )

    async def _end(self, case: _Case) -> None:
        """End what outlived the eviction, if it is still on the card and the pod may still be evicted."""
        owner = case.owner
        if owner is None or not case.evicted or self._clock() < case.next_end or not self.overdue.due(owner.uid):
            return
        case.next_end = self._clock() + _AGAIN
        if await self._why(owner, case.finding) != "" or not self._on_card(case):
            return
        if not await self.overdue.end(owner.uid, case.finding.processes, case.finding.card):
            case.next_end = self._clock() + _BETWEEN

    def _on_card(self, case: _Case) -> bool:
        return any(c is case for c in self._cases.values()) and self._clock() - case.seen <= _FRESH


def _placed(finding: Finding, owner: ProcessOwner | None) -> Finding:
    """The finding, with its kind corrected once its container is known: a container without a slice of the card was
    given no library that the process could see."""
    if owner is None or not owner.container or owner.container not in finding.containers:
        return finding
    return msgspec.structs.replace(finding, kind="no-library")


def _other(owner: ProcessOwner, told: Finding, finding: Finding) -> ProcessOwner:
    """The owner of another process of the pod, which may be in another container."""
    places = [f.process.places for f in (told, finding) if f.process is not None]
    return owner if places[0] == places[-1] else msgspec.structs.replace(owner, container="")


def _container_to_come(owner: ProcessOwner, finding: Finding) -> bool:
    return bool(finding.containers) and not owner.container


def _granted_owner(finding: Finding) -> ProcessOwner | None:
    if finding.granted is None:
        return None
    limits = finding.granted.limits
    return ProcessOwner(limits.pod_uid, limits.namespace, limits.pod, limits.container)


def _reference(owner: ProcessOwner) -> ObjectRef:
    return ObjectRef("Pod", owner.namespace, owner.pod, owner.uid)


def _who(case: _Case) -> str:
    process = case.finding.process
    owner = case.owner
    return (
        f"pid={process.pid if process else 0} command={process.command if process else '-'!r} "
        f"pod={f'{owner.namespace}/{owner.pod}' if owner else '-'} container={owner.container if owner else '-'}"
    )


def _outside(case: _Case) -> Outside:
    finding, process, owner = case.finding, case.finding.process, case.owner or ProcessOwner("", "", "")
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
