"""200 pods started on one node with a real kubelet, beside as many without GPUs, in the same run.

A local cluster of its own is started and taken down: one node with 8 cards, kube-scheduler and all. Times are from the
first pod's creation until the API server shows the last one ready. It takes minutes: no part of ``make bench``.
"""

import asyncio
import signal
import sys
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from fractile.dialects.aliyun import MEMORY
from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.up import UpOptions
from fractile.lab.machine.images import PAUSE
from fractile.model.units import MemoryUnit
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from tests.e2e.conftest import why_not
from tests.perf.measuring.report import Row
from tests.perf.usage import processor_time

NAME = "many"
NAMESPACE = "default"
PODS = 200
ROUNDS = 2
CARDS = "8x Tesla-V100 32GiB"
PATIENCE = 240.0  # seconds for all pods to come, and for all to go
PROGRAMS = ("agent", "kubelet", "containerd")


class _Condition(KubeStruct, frozen=True):
    type: str = ""
    status: str = ""


class _Status(KubeStruct, frozen=True):
    phase: str = ""
    conditions: list[_Condition] | None = None


class _Pod(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()

    @property
    def ready(self) -> bool:
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions or ())


class Start(msgspec.Struct, frozen=True):
    """Seconds until all are ready, and of the processor by program."""

    seconds: float
    processor: dict[str, float]


async def measure() -> list[Row]:
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the cluster goes with us
    if reason := why_not():
        return [Row("200 pods on a real kubelet: not measured", 0, "", None, reason)]
    async with _cluster() as cluster, KubeClient(credentials.load(cluster.kubeconfig)) as client:
        await _until(client, lambda pods: not pods)
        starts: dict[bool, list[Start]] = {False: [], True: []}
        for _ in range(ROUNDS):
            for gpu in starts:
                starts[gpu].append(await _start(client, cluster, gpu=gpu))
                print(f"  {'with a slice each' if gpu else 'without GPUs'}: {starts[gpu][-1]}", file=sys.stderr)
    return _rows(starts[False], starts[True])


@asynccontextmanager
async def _cluster() -> AsyncGenerator[LocalCluster]:
    cluster = LocalCluster(NAME)
    await asyncio.to_thread(cluster.down)
    try:
        wish = UpOptions(spec=from_options(NAME, nodes=1, cards=CARDS, unit=MemoryUnit.GiB))
        await asyncio.to_thread(cluster.up, wish)
        yield cluster
    finally:
        await asyncio.to_thread(cluster.down)


async def _start(client: KubeClient, cluster: LocalCluster, *, gpu: bool) -> Start:
    before = _processor(cluster)
    began = time.monotonic()
    async with asyncio.TaskGroup() as tasks:
        for n in range(PODS):
            tasks.create_task(client.create(paths.pods(NAMESPACE), _manifest(n, gpu=gpu)))
    await _until(client, lambda pods: sum(pod.ready for pod in pods) == PODS)
    seconds = time.monotonic() - began
    processor = {name: spent - before[name] for name, spent in _processor(cluster).items()}
    async with asyncio.TaskGroup() as tasks:
        for n in range(PODS):
            tasks.create_task(client.delete(paths.pod(NAMESPACE, f"p{n}")))
    await _until(client, lambda pods: not pods)
    return Start(seconds, processor)


def _manifest(n: int, *, gpu: bool) -> dict[str, object]:
    container: dict[str, object] = {"name": "main", "image": PAUSE, "imagePullPolicy": "Never"}
    if gpu:
        container["resources"] = {"limits": {MEMORY: "1"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p{n}"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "enableServiceLinks": False,
            "dnsPolicy": "Default",
            "automountServiceAccountToken": False,
            "containers": [container],
        },
    }


async def _until(client: KubeClient, right: Callable[[Sequence[_Pod]], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not right((await client.list(paths.pods(NAMESPACE), _Pod))[0]):  # noqa: ASYNC110
            await asyncio.sleep(0.25)


def _processor(cluster: LocalCluster) -> dict[str, float]:
    node = cluster.nodes[0]
    found = {name: cluster.process(f"{node}/{name}") for name in PROGRAMS}
    return {name: processor_time(process.pid) for name, process in found.items() if process is not None}


def _rows(without: list[Start], having: list[Start]) -> list[Row]:
    note = f"real kubelet, {PODS} pods of one container; best of {ROUNDS}, in turn"
    best = {False: min(s.seconds for s in without), True: min(s.seconds for s in having)}
    rows = [
        Row(f"{PODS} pods without GPUs on a real kubelet", best[False], "s", None, note),
        Row(f"{PODS} pods with a slice each on a real kubelet", best[True], "s", None, note),
        Row("ratio", best[True] / best[False], "", None),
        Row("what a slice adds to a pod", (best[True] - best[False]) * 1000 / PODS, "ms", None),
    ]
    for program in PROGRAMS:
        for what, starts in (("without GPUs", without), ("with a slice", having)):
            spent = min(s.processor[program] for s in starts) * 1000 / PODS
            rows.append(Row(f"processor time of {program} for a pod {what}", spent, "ms", None))
    return rows
