"""One leader among the replicas, by a coordination.k8s.io/v1 Lease.

    acquire: the lease is free, ours, or its record did not change for its duration ──> write our identity
    renew:   every ``retry`` seconds; when no renewal succeeded for ``deadline`` seconds, we no longer lead
    release: write an empty holder, so that the next one need not wait; not while a write of ours may still arrive

Two rules keep two replicas from leading at the same time. Time is monotonic and local: a record is stale when *we* saw
it unchanged for its duration, whatever clock wrote it. And each write names the resourceVersion that was read, so of
two simultaneous writes the API server refuses one (409). ``deadline`` is less than ``duration``: we stop before others
may start, and the time between is for calls that are still on their way. A missing lease may have been deleted under
its holder, which leads until its next check, so it is waited for like a held one.
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
_MISSING = "missing"  # stands for the resourceVersion of a lease that does not exist
_LONGEST = 60.0  # seconds; limits the duration in a record, or a nonsensical one would be honoured for years

log = logging.getLogger(__name__)


class LeaseTiming(msgspec.Struct, frozen=True):
    """Seconds. Shorter than those of the Kubernetes components (15, 10, 2), so that a killed leader is replaced within
    17 s; ``look`` is how often waiting replicas read the lease."""

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
        self.inherited = False  # whether the former leader did not release the lease: its last write may still arrive
        self.transitions = 0  # grows with each change of leader: a fence against late writes of a former leader
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
        """Whether we lead at this moment; False as soon as another replica may lead."""
        return self.left > 0

    @property
    def left(self) -> float:
        """Seconds for which we surely lead, whatever happens; 0 or less when we do not."""
        return self._renewed + self._timing.deadline - self._clock()

    @property
    def term(self) -> str:
        """The name of this term, holder and transitions as in the Lease, for a check at the API server."""
        return f"{self.identity}/{self.transitions}"

    async def run(self, work: Callable[[], Awaitable[None]], *, settled: Callable[[], bool] = lambda: True) -> None:
        """Wait until we lead, then run ``work``; returns when it ends or when the lead is lost, which cancels it.
        ``settled``: whether the outcome of every write of the work is known; otherwise the lease is not released."""
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
                log.warning("lease not released, so it will expire reason=a write may still arrive")

    async def acquire(self) -> None:
        """Wait until we lead."""
        while not await self._try():
            await self._sleep(self._timing.look * self._rng.uniform(1.0, 1.2))
        log.info("leading lease=%s/%s identity=%s", self._namespace, self._name, self.identity)

    async def hold(self) -> None:
        """Renew the lease; returns when the lead is lost."""
        while self.leading:
            await self._sleep(max(0.0, min(self._timing.retry, self.left)))
            try:
                # A slow answer must not keep us from noticing that the time is over.
                async with asyncio.timeout(max(0.0, self.left)):
                    await self._try()
            except TimeoutError:
                pass
        log.warning("lead lost lease=%s/%s identity=%s", self._namespace, self._name, self.identity)

    async def release(self) -> None:
        """Release the lease, so that another replica need not wait until it expires."""
        led, self._renewed = self._renewed != _NEVER, _NEVER  # before the write: the next leader may start immediately
        if not led:
            return
        try:
            async with asyncio.timeout(self._timing.retry):
                lease = await self._read()
                if lease is not None and lease.spec.holder_identity == self.identity:
                    await self._write(lease, holder="")
        except (ApiError, Unreachable, WireError, TimeoutError) as e:
            log.warning("lease not released, so it will expire reason=%s", str(e) or type(e).__name__)

    async def _hold(self, working: asyncio.Task[None]) -> None:
        await self.hold()
        working.cancel()

    async def _try(self) -> bool:
        """Read, decide and write once; True when we lead after it."""
        begun, leading = self._clock(), self.leading
        try:
            lease = await self._read()
            if not self._ours_to_take(lease):
                if lease is not None:
                    self._renewed = _NEVER  # another replica leads, so make sure that we do not
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
            transitions = self.transitions  # an edit of the Lease must not change the term that bindings carry
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
        """The next number of transitions. The API server takes 32 bits: after the largest number no replica could lead
        any longer, so it is followed by a random one that hardly any term has had."""
        return transitions + 1 if transitions < _MOST_TRANSITIONS else self._rng.randrange(1, 2**30)


async def _as_coroutine(work: Callable[[], Awaitable[None]]) -> None:
    await work()
