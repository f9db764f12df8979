"""A run: the cluster is put up once, every row is played in turn, as often as there are rounds."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from itertools import chain
from time import monotonic

import msgspec

from fractile.errors import SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.lab.cluster import objects
from fractile.lab.cluster.controlplane import webhook_url
from fractile.wire.kubernetes.objects import Node
from tests.load import audit, pods, seed, world
from tests.load.audit import Tail
from tests.load.figures import CONTROL_PLANE, SCHEDULER, Round, alone, rate_of, shares, sums, verbs_of
from tests.load.profiles import Profiles
from tests.load.programs import Cluster
from tests.load.scenarios import Scenario
from tests.serving.siege import besieged

_WARM_UP = 40  # pods
_SLOWEST = 5.0  # pods per second; a round that is slower has something wrong with it
_LEAST = 120.0  # seconds that a round may take
_QUIET = 2.0  # seconds before a round, for what is left of the one before: events, garbage
_WEBHOOKS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
_KUBECTL = 60.0
_BESIEGERS = [f"127.0.0.{number}" for number in range(2, 10)]
_ENDED = "fractile_placement_reservations_ended_total"


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """``done`` is told of each round as soon as it is over."""

    nodes: int
    running: int
    pods: int
    rounds: int
    scenarios: tuple[Scenario, ...]
    say: Callable[[str], None]
    done: Callable[[Round], None]
    profiles: Profiles


async def play(cluster: Cluster, run: Run) -> None:
    """All rounds. In every second one the rows come the other way round, so that what grows favours nobody."""
    # 1. The cluster as objects, and an API server that reads them.
    await _timed(run, "objects put into etcd", _fill(cluster, run))
    await _timed(run, "kube-apiserver started", cluster.start_api())
    access = credentials.load(cluster.place.kubeconfig)
    async with KubeClient(access, qps=1e6, burst=1_000_000, timeout=60) as client:
        await _timed(run, "manifests applied", _prepare(cluster, client, run))
        # 2. The rounds.
        turns = (run.scenarios if number % 2 else run.scenarios[::-1] for number in range(1, run.rounds + 1))
        for number, row in chain.from_iterable(((n, row) for row in turn) for n, turn in enumerate(turns, 1)):
            played = await _round(cluster, client, run, row, number)
            run.say(line_of(played))
            run.done(played)


async def _fill(cluster: Cluster, run: Run) -> None:
    await cluster.start_store()
    stored = world.objects(run.nodes, run.running)
    await asyncio.to_thread(seed.put_all, cluster.state, cluster.secrets, stored)


async def _prepare(cluster: Cluster, client: KubeClient, run: Run) -> None:
    await asyncio.to_thread(objects.apply_manifests, cluster.place, cluster.found, "")
    for name in (world.RUNNING, "default"):
        await pods.ensure_namespace(client, name)
    for row in run.scenarios:
        await pods.ensure_namespace(client, row.namespace, row)
    await objects.wait_policy(client)
    there, _ = await client.list("/api/v1/nodes", Node)
    if len(there) != run.nodes:
        raise SetupError(f"{len(there)} of {run.nodes} nodes are there")


async def _round(cluster: Cluster, client: KubeClient, run: Run, row: Scenario, number: int) -> Round:
    async with _programs(cluster, client, row):
        # 1. Connections, caches and code that is loaded late.
        await pods.schedule(client, row, _WARM_UP, prefix=f"warm-{number}", timeout=_LEAST)
        await pods.delete_all(client, row)
        await asyncio.sleep(_QUIET)
        # 2. What counts.
        log, writes = Tail(cluster.log(CONTROL_PLANE)), Tail(cluster.audit)
        ours, page, before = await _own_page(cluster, row), await cluster.metrics(SCHEDULER), cluster.used()
        timeout = max(_LEAST, run.pods / min(_SLOWEST, (row.pace or _SLOWEST) / 2))
        async with run.profiles.taken(cluster, row, number):
            seen = await pods.schedule(client, row, run.pods, prefix=f"load-{number}", timeout=timeout)
        after, later, ours_later = cluster.used(), await cluster.metrics(SCHEDULER), await _own_page(cluster, row)
        await asyncio.sleep(_QUIET)  # events are written a little later
        # 3. Gone again.
        written, said = audit.writes(writes.lines()), log.lines()
        result = Round(
            scenario=row.name,
            number=number,
            nodes=run.nodes,
            pods=run.pods,
            rate=rate_of(seen.bound),
            created=run.pods / (seen.created - seen.began),
            seconds=seen.bound[-1] - seen.began,
            load=os.getloadavg()[0],
            programs=shares(before, after, run.pods),
            verbs=verbs_of(said),
            writes={user: {what: n / run.pods for what, n in some.items()} for user, some in written.items()},
            attempts=_attempts(page, later),
            nominations={how: n / run.pods for how, n in _grown(ours, ours_later, _ENDED, "how").items() if n},
            alone=alone(said),
            algorithm=_algorithm(page, later) * 1000 / run.pods,
        )
        await pods.delete_all(client, row)
    return result


@asynccontextmanager
async def _programs(cluster: Cluster, client: KubeClient, row: Scenario) -> AsyncGenerator[None]:
    """kube-scheduler and, for a row with an extender, the control plane, for one round."""
    try:
        if row.extender:
            await cluster.start_control_plane(row)
        if row.webhook:
            await asyncio.to_thread(objects.apply_manifests, cluster.place, cluster.found, webhook_url(cluster.state))
            await objects.wait_webhook(client)
        async with _siege(cluster, row):
            await cluster.start_scheduler(row)
            yield
    finally:
        await cluster.stop(SCHEDULER)
        if row.webhook:
            for kind in _WEBHOOKS:
                await client.delete(f"/apis/admissionregistration.k8s.io/v1/{kind}")
        await cluster.stop(CONTROL_PLANE)


def _siege(cluster: Cluster, row: Scenario) -> AbstractAsyncContextManager[None]:
    """From addresses that are not kube-scheduler's, as a pod's are not."""
    slow, bodies = row.siege
    if not slow + bodies:
        return nullcontext()
    return besieged(cluster.state.ports.control_plane, slow=slow, bodies=bodies, hosts=_BESIEGERS)


async def _own_page(cluster: Cluster, row: Scenario) -> str:
    return await cluster.metrics(CONTROL_PLANE) if row.extender else ""


def _attempts(before: str, after: str) -> dict[str, int]:
    grown = _grown(before, after, "scheduler_schedule_attempts_total", "result")
    return {result: int(count) for result, count in grown.items()}


def _grown(before: str, after: str, name: str, label: str) -> dict[str, float]:
    first, last = sums(before, name, label), sums(after, name, label)
    return {key: count - first.get(key, 0) for key, count in last.items()}


def _algorithm(before: str, after: str) -> float:
    name = "scheduler_scheduling_algorithm_duration_seconds_sum"
    return sum(sums(after, name, "").values()) - sum(sums(before, name, "").values())


async def _timed(run: Run, what: str, work: Awaitable[None]) -> None:
    began = monotonic()
    await work
    run.say(f"  {what} ({monotonic() - began:.1f} s)")


def line_of(one: Round) -> str:
    """One round on one line."""
    cost = "  ".join(f"{name} {share.ms:.2f}" for name, share in one.programs.items())
    head = f"{one.nodes} nodes  round {one.number}  {one.scenario:<14} {one.rate:6.1f} pods/s"
    return f"{head}  {one.seconds:5.1f} s  load {one.load:4.1f}  ms for a pod: {cost}"


def rows(names: Sequence[str], table: dict[str, Scenario]) -> tuple[Scenario, ...]:
    """The rows of these names; SetupError names those that there are."""
    unknown = [name for name in names if name not in table]
    if unknown:
        raise SetupError(f"there is no row {unknown[0]!r}; the rows are {', '.join(table)}")
    return tuple(table[name] for name in names)
