"""One leader among the replicas, by a coordination.k8s.io/v1 Lease.

    acquire: the lease is free, ours, or its record did not change for its duration ──> write ourselves in
    renew:   every ``retry`` seconds; when no renewal succeeded for ``deadline`` seconds, we lead no more
    release: write an empty holder, so that the next one need not wait; not while a write of ours may still arrive

Two rules keep two replicas from leading at once. Time is monotonic and our own: a record is stale when *we* saw it
unchanged for its duration, whatever clock wrote it. And each write names the resourceVersion that it read, so of two
that try at once the API server refuses one (409). ``deadline`` is below ``duration``: we stop before others may start,
and what lies between is for calls that are still on their way. A lease that is missing may have been deleted under its
holder, who leads on until it looks again: it is waited for as for one that is held.
Failure rule: closed. Any doubt (no answer, an error) counts as a failed renewal.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec

from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.pacing import Clock, Sleep
from fractile.wire.kubernetes.objects import Lease

_MOST_TRANSITIONS = 2**31 - 1
_NEVER = float("-inf")
_MISSING = "missing"  # stands for the resourceVersion of a lease that is not there
_LONGEST = 60.0  # seconds; what a record may say of itself, or a nonsensical one would be honoured for years

log = logging.getLogger(__name__)


class LeaseTiming(msgspec.Struct, frozen=True):
    """Seconds. Shorter than those of the Kubernetes components (15, 10, 2), so that a leader that was killed is
    followed within 17 s; ``look`` is how often those who wait read the lease."""

    duration: float = 12.0
    deadline: float = 8.0
    retry: float = 2.0
    look: float = 0.5


DEFAULT = LeaseTiming()


class LeaderElector:
    """``identity`` must be unique among the replicas and new at each start (host name and a random part)."""

    def __init__(
        self,
        client: KubeClient,
        *,
        namespace: str,
        name: str,
        identity: str,
        timing: LeaseTiming = DEFAULT,
        rng: random.Random | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.identity = identity
        self.inherited = False  # whether the lease was not given back by who led before: a write of theirs may arrive
        self.transitions = 0  # grows with each change of leader: a fence for what a late leader wrote
        self._client = client
        self._namespace = namespace
        self._name = name
        self._timing = timing
        self._rng = rng or random.Random()
        self._clock = clock
        self._sleep = sleep
        self._now = now
        self._seen = ("", 0.0)  # the resourceVersion of the record and when we first saw it
        self._renewed = _NEVER  # when the last successful write was begun

    @property
    def leading(self) -> bool:
        """Whether we lead at this very moment; false as soon as others may think that they do."""
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds for which we surely lead on, whatever happens; 0 or less when we do not."""
        return self._renewed + self._timing.deadline - self._clock()

    @property
    def term(self) -> str:
        """Names this very lead: holder and transitions as the Lease has them, for a check at the API server."""
        return f"{self.identity}/{self.transitions}"

    async def run(self, work: Callable[[], Awaitable[None]], *, settled: Callable[[], bool] = lambda: True) -> None:
        """Wait until we lead, then run ``work``; returns when it ends or when the lead is lost, which cancels it.
        ``settled``: whether it is known what became of each write of the work; else the lease is not given back."""
        await self.acquire()
        try:
            async with asyncio.TaskGroup() as group:
                working = group.create_task(_as_coroutine(work))
                renewing = group.create_task(self._hold(working))
                await asyncio.wait([working])
                renewing.cancel()
        finally:
            if settled():
                await self.release()
            else:
                self._renewed = _NEVER
                log.warning("lease not released, it runs out by itself reason=a write may still arrive")

    async def acquire(self) -> None:
        """Wait until we lead."""
        while not await self._try():
            await self._sleep(self._timing.look * self._rng.uniform(1.0, 1.2))
        log.info("leading lease=%s/%s identity=%s", self._namespace, self._name, self.identity)

    async def hold(self) -> None:
        """Renew; returns when the lead is lost."""
        while self.leading:
            await self._sleep(max(0.0, min(self._timing.retry, self.left)))
            try:
                # A slow answer must not keep us from noticing that the time is up.
                async with asyncio.timeout(max(0.0, self.left)):
                    await self._try()
            except TimeoutError:
                pass
        log.warning("lead lost lease=%s/%s identity=%s", self._namespace, self._name, self.identity)

    async def release(self) -> None:
        """Give the lead back, so that another replica need not wait for the lease to run out."""
        led, self._renewed = self._renewed != _NEVER, _NEVER  # from before the write on: the next may lead at once
        if not led:
            return
        try:
            async with asyncio.timeout(self._timing.retry):
                lease = await self._read()
                if lease is not None and lease.spec.holder_identity == self.identity:
                    await self._write(lease, holder="")
        except (ApiError, Unreachable, WireError, TimeoutError) as e:
            log.warning("lease not released, it runs out by itself reason=%s", str(e) or type(e).__name__)

    async def _hold(self, working: asyncio.Task[None]) -> None:
        await self.hold()
        working.cancel()

    async def _try(self) -> bool:
        """One round: read, decide, write. True when we lead after it."""
        begun, leading = self._clock(), self.leading
        try:
            lease = await self._read()
            if not self._ours_to_take(lease):
                if lease is not None:
                    self._renewed = _NEVER  # somebody else leads: be sure that we do not
                return False
            await self._write(lease, holder=self.identity)
        except (ApiError, Unreachable, WireError) as e:
            if not (isinstance(e, ApiError) and e.code == 409):  # 409: another replica was faster
                log.warning("lease round failed lease=%s/%s reason=%s", self._namespace, self._name, e)
            return False
        self._renewed = begun
        if not leading:
            self.inherited = lease is None or bool(lease.spec.holder_identity)
        return True

    def _ours_to_take(self, lease: Lease | None) -> bool:
        holder = lease.spec.holder_identity if lease is not None else _MISSING
        if not holder or holder == self.identity or (lease is None and self.leading):
            return True
        version = lease.metadata.resource_version if lease is not None else _MISSING
        if self._seen[0] != version:
            self._seen = (version, self._clock())
        return self._clock() - self._seen[1] > self._duration(lease)

    def _duration(self, lease: Lease | None) -> float:
        said = lease.spec.lease_duration_seconds if lease is not None else None
        return self._timing.duration if said is None else min(max(said, 1), _LONGEST)

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(paths.lease(self._namespace, self._name), Lease)
        except ApiError as e:
            if e.code != 404:
                raise
            return None

    async def _write(self, lease: Lease | None, *, holder: str) -> None:
        before = lease.spec if lease is not None else None
        same = before is not None and before.holder_identity == self.identity
        transitions = before.lease_transitions or 0 if before is not None else 0
        if same and self.leading:
            transitions = self.transitions  # an edit of the Lease must not change the term in which bindings are sent
        elif before is not None and not same:
            transitions = self._after(transitions)
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        metadata: dict[str, object] = {"name": self._name, "namespace": self._namespace}
        body: dict[str, object] = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": holder,
                "leaseDurationSeconds": max(1, int(self._timing.duration)) if holder else 1,
                "acquireTime": before.acquire_time if same and before is not None else stamp,
                "renewTime": stamp,
                "leaseTransitions": transitions,
            },
        }
        if lease is None:
            await self._client.create(paths.leases(self._namespace), body)
        else:
            metadata["resourceVersion"] = lease.metadata.resource_version
            await self._client.replace(paths.lease(self._namespace, self._name), body)
        self.transitions = transitions

    def _after(self, transitions: int) -> int:
        """The next number. The API server takes 32 bits: nobody could lead any more after whoever wrote the last of
        them, so that one is followed by a number that hardly any term had."""
        return transitions + 1 if transitions < _MOST_TRANSITIONS else self._rng.randrange(1, 2**30)


async def _as_coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()
