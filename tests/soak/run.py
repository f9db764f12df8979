"""The churn, and a look at all programs every few seconds; then the wait until an empty cluster is clean."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from random import Random

import msgspec

from fractile.errors import ApiError, FractileError
from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from tests.chaos.acts.prepared import prepare
from tests.chaos.judging.snapshot import SeenPod
from tests.chaos.rounds import SWEPT
from tests.soak import churn
from tests.soak.churn import Birth
from tests.soak.samples import Sample
from tests.soak.world import World

NAMESPACE = "soak"
_PASSES = (FractileError, OSError, TimeoutError)
_ANSWER = 10.0  # seconds for an answer of the API server
_LOOK = 1.0  # seconds between two looks at the pods
_CLEAN = SWEPT + 90.0  # seconds until an empty cluster has no directories any more


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """``rate``: pods a second; ``seconds`` of churn; ``period``: seconds between two samples; ``most``: pods at a time,
    beyond which none is made; ``clean``: whether to wait at the end until all is swept."""

    seconds: float
    rate: float = 1.0
    seed: int = 1
    period: float = 10.0
    most: int = 40
    clean: bool = True


class Outcome(msgspec.Struct, kw_only=True):
    """``pods`` were made, ``ran`` of them were seen to run, ``failed`` ended by themselves, ``held_back`` were too many
    at a time; ``left``: sentences about what an empty cluster still has in its books."""

    samples: list[Sample] = []
    pods: int = 0
    ran: int = 0
    failed: int = 0
    held_back: int = 0
    left: list[str] = []


class _Alive(msgspec.Struct):
    birth: Birth
    made: float
    ran: float | None = None


class Soak:
    """One soak; ``say`` is told how it goes."""

    def __init__(
        self,
        world: World,
        client: KubeClient,
        settings: Settings,
        *,
        say: Callable[[str], None],
        keep: Callable[[list[Sample]], None] = lambda samples: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._world, self._client, self._settings = world, client, settings
        self._say, self._keep, self._clock = say, keep, clock
        self._alive: dict[str, _Alive] = {}
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        began = self._clock()
        async with asyncio.TaskGroup() as tasks:
            loops = [tasks.create_task(one) for one in (self._births(began), self._deaths(), self._looks(began))]
            await asyncio.sleep(self._settings.seconds)
            for loop in loops:
                loop.cancel()
        await self._empty()
        if self._settings.clean:
            self.outcome.left = await self._clean()
        return self.outcome

    async def _births(self, began: float) -> None:
        number = 0
        while True:
            number += 1
            await asyncio.sleep(max(0.0, began + number / self._settings.rate - self._clock()))
            if len(self._alive) >= self._settings.most:
                self.outcome.held_back += 1
                continue
            with contextlib.suppress(*_PASSES):
                await self._create(churn.birth(self._settings.seed, number))

    async def _create(self, one: Birth) -> None:
        body = churn.manifest(self._settings.seed, one, native=self._world.native)
        async with asyncio.timeout(_ANSWER):
            await self._client.create(paths.pods(NAMESPACE), body)
        self.outcome.pods += 1
        self._alive[one.name] = _Alive(one, self._clock())

    async def _deaths(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            with contextlib.suppress(*_PASSES):
                async with asyncio.timeout(_ANSWER * 2):
                    await self._reap()

    async def _reap(self) -> None:
        """Delete whose time has come. A pod is forgotten when it is gone."""
        asked = self._clock()
        found, _ = await self._client.list(paths.pods(NAMESPACE), SeenPod)
        seen, now = {p.name: p for p in found}, self._clock()
        for name, one in list(self._alive.items()):
            pod = seen.get(name)
            if pod is None:
                if one.made < asked:
                    del self._alive[name]
                continue
            if pod.running and one.ran is None:
                one.ran = now
                self.outcome.ran += 1
            if pod.leaving:
                continue
            ended = pod.finished
            self.outcome.failed += ended
            if ended or churn.overdue(one.birth, ran=None if one.ran is None else now - one.ran, age=now - one.made):
                await _delete(self._client, name)

    async def _looks(self, began: float) -> None:
        turn = 0
        while True:
            await asyncio.sleep(max(0.0, began + turn * self._settings.period - self._clock()))
            with contextlib.suppress(*_PASSES):
                found = await self._world.look(self._clock() - began)
                self.outcome.samples += found
                if turn % 30 == 0:
                    self._keep(self.outcome.samples)
                    self._say(self._line(self._clock() - began, found))
            turn += 1

    def _line(self, seconds: float, found: list[Sample]) -> str:
        memory = " ".join(f"{s.program}={s.rss / 1024:.1f}" for s in found if not s.program.endswith("kubelet"))
        done = self.outcome
        return f"{seconds / 60:5.1f} min pods={done.pods} ran={done.ran} alive={len(self._alive)} MiB: {memory}"

    async def _empty(self) -> None:
        """Delete all pods and wait until they are gone."""
        async with asyncio.timeout(180):
            while True:
                with contextlib.suppress(*_PASSES):
                    found, _ = await self._client.list(paths.pods(NAMESPACE), SeenPod)
                    if not found:
                        return
                    for pod in found:
                        if not pod.leaving:
                            await _delete(self._client, pod.name)
                await asyncio.sleep(_LOOK)

    async def _clean(self) -> list[str]:
        """Until no book has an entry; what still has one when the time is over."""
        deadline = self._clock() + _CLEAN
        while True:
            left = await self._world.entries()
            if not any(left.values()):
                return []
            if self._clock() > deadline:
                return [f"{name}: {count} entries although no pod is left" for name, count in left.items() if count]
            await asyncio.sleep(5)


async def soak(
    world: World, settings: Settings, *, say: Callable[[str], None], keep: Callable[[list[Sample]], None]
) -> Outcome:
    """Prepare the cluster, and run."""
    access = credentials.load(world.cluster.kubeconfig)
    async with KubeClient(access, timeout=_ANSWER, rng=Random(settings.seed)) as client:
        await prepare(client, NAMESPACE, churn.CLASSES)
        return await Soak(world, client, settings, say=say, keep=keep).run()


async def _delete(client: KubeClient, name: str) -> None:
    try:
        await client.delete(paths.pod(NAMESPACE, name))
    except ApiError as e:
        if e.code != 404:
            raise
