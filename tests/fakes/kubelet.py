"""A fake kubelet at the wire: the played one of ``fractile hollow-node``, without an API server behind it.

    async with FakeKubelet(root, rng=random.Random(1)) as kubelet:
        ...                       # an agent registers in kubelet.plugin_directory
        kubelet.add(pod)          # as kubelet's watch would
        await kubelet.running(pod)
        await kubelet.restart()

tests/contract/test_kubelet.py holds it to what the real kubelet does.
"""

import asyncio
import contextlib
import random
from pathlib import Path
from types import TracebackType
from typing import Self

from fractile.lab.hollow.devices import Panicked
from fractile.lab.hollow.kubelet import Fate, HollowKubelet, KubeletTiming, StartedContainer
from fractile.model.units import PodUID
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from fractile.wire.kubernetes.objects import Pod

QUICK = KubeletTiming(admission=0.4, retry_first=0.05, retry_most=0.2)
_PATIENCE = 20.0  # seconds


class FakeKubelet:
    """An async context manager. ``root`` must be short: unix sockets are in it."""

    def __init__(self, root: Path, *, rng: random.Random, timing: KubeletTiming = QUICK) -> None:
        self.refusals: list[str] = []  # every error that a person would see in an event
        self._changed = asyncio.Event()
        self._kubelet = HollowKubelet(root, report=self._report, rng=rng, timing=timing)
        self._life: asyncio.Task[None] | None = None
        self.root = root
        self.plugin_directory = self._kubelet.plugin_directory
        self.pod_resources_socket = self._kubelet.pod_resources_socket

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    def start(self) -> None:
        self._life = asyncio.create_task(self._kubelet.run())

    async def stop(self) -> None:
        """Kubelet dies; its containers live on. Never while it opens its sockets: a gRPC server that is given up there
        removes its path late, when the next kubelet's socket has it."""
        if self._life is not None:
            serving = asyncio.ensure_future(self._kubelet.serving.wait())
            await asyncio.wait({serving, self._life}, timeout=_PATIENCE, return_when=asyncio.FIRST_COMPLETED)
            serving.cancel()
            self._life.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                try:
                    await self._life
                except* Panicked:  # it has died by itself
                    pass
            self._life = None

    async def restart(self) -> None:
        await self.stop()
        self.start()

    async def reboot(self, *, forgets: bool = False) -> None:
        """The machine goes down and comes back: every container starts again, with the devices of the record, or, when
        that is lost, with those that it is given then."""
        await self.stop()
        self._kubelet.power_off()
        if forgets:
            (self.plugin_directory / FILE_NAME).unlink(missing_ok=True)
        self.start()

    async def lose_checkpoint(self) -> None:
        """Kubelet restarts without its record; its containers live on, and it does not know what they hold."""
        await self.stop()
        (self.plugin_directory / FILE_NAME).unlink(missing_ok=True)
        self.start()

    def keep_busy(self, pod: Pod, container: str) -> None:
        """This init container runs until ``end_container``; to be said before ``add``."""
        self._kubelet.keep_busy(_uid(pod), container)

    def end_container(self, pod: Pod, container: str, *, for_good: bool = False) -> None:
        """The container of a running pod, or a busy init container, ends; the former is started again or not."""
        self._kubelet.end_container(_uid(pod), container, for_good=for_good)

    def add(self, pod: Pod) -> None:
        self._kubelet.add(pod)

    def remove(self, pod: Pod) -> None:
        self._kubelet.remove(_uid(pod))

    def fate(self, pod: Pod) -> Fate | None:
        return self._kubelet.fate(_uid(pod))

    def started(self, pod: Pod, container: str) -> StartedContainer | None:
        return self._kubelet.started(_uid(pod), container)

    def capacity(self) -> dict[str, tuple[int, int]]:
        return self._kubelet.capacity()

    async def registered(self, resource: str, count: int) -> None:
        """Until so many devices of the resource are allocatable."""
        async with asyncio.timeout(_PATIENCE):
            while self.capacity().get(resource, (0, 0))[1] != count:  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    async def phase(self, pod: Pod, *phases: str) -> Fate:
        """Until the pod is in one of these phases."""
        try:
            async with asyncio.timeout(_PATIENCE):
                while True:
                    self._changed.clear()
                    fate = self.fate(pod)
                    if fate is not None and fate.phase in phases:
                        return fate
                    assert self._life is None or not self._life.done(), "the fake kubelet has died"
                    await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"{pod.metadata.name} is not {phases}: {self.fate(pod)}") from None

    async def running(self, pod: Pod) -> None:
        await self.phase(pod, "Running")

    async def refused(self, text: str) -> str:
        """Until some container was refused with a message that holds the text."""
        async with asyncio.timeout(_PATIENCE):
            while not (found := [m for m in self.refusals if text in m]):
                self._changed.clear()
                await self._changed.wait()
        return found[-1]

    def _report(self, fate: Fate) -> None:
        if fate.message:
            self.refusals.append(fate.message)
        self._changed.set()


def _uid(pod: Pod) -> PodUID:
    return PodUID(pod.metadata.uid)
