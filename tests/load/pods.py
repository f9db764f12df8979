"""The pods of a round: created at full speed, watched until the last is bound, and taken away."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import aclosing
from time import monotonic

import msgspec

from fractile.errors import ApiError, SetupError, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from tests.load.scenarios import Manifest, Scenario

_POLL = 0.2
_GONE = 240.0  # seconds to delete all


class _Condition(KubeStruct, frozen=True):
    type: str = ""
    message: str = ""


class _Spec(KubeStruct, frozen=True):
    node_name: str = ""


class _Status(KubeStruct, frozen=True):
    conditions: list[_Condition] | None = None


class BoundPod(KubeStruct, frozen=True):
    """Of a pod only what says whether it is bound."""

    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Seen(msgspec.Struct, frozen=True):
    """When each pod was bound, and when creating began and ended; monotonic seconds."""

    bound: list[float]
    began: float
    created: float


async def ensure_namespace(client: KubeClient, name: str, scenario: Scenario | None = None) -> None:
    """With the service account that kube-controller-manager would make, which the API server wants to see."""
    labels = dict(scenario.labels) if scenario else {}
    annotations = dict(scenario.annotations) if scenario else {}
    await _ensure(client, paths.namespaces(), {"name": name, "labels": labels, "annotations": annotations})
    await _ensure(client, f"{paths.namespace(name)}/serviceaccounts", {"name": "default"})


async def _ensure(client: KubeClient, path: str, metadata: Manifest) -> None:
    try:
        await client.create(path, {"metadata": metadata})
    except ApiError as e:
        if e.code != 409:
            raise


async def schedule(client: KubeClient, scenario: Scenario, count: int, *, prefix: str, timeout: float) -> Seen:
    """Create so many and see all of them bound; SetupError with a pod's own words when that takes too long."""
    made = [scenario.pod(f"{prefix}-{number:06d}", number) for number in range(count)]
    _, version = await client.list(paths.pods(scenario.namespace), BoundPod)
    bound: dict[str, float] = {}
    try:
        async with asyncio.timeout(timeout), asyncio.TaskGroup() as tasks:
            watching = tasks.create_task(_watch(client, scenario.namespace, version, bound))
            began = monotonic()
            await create(client, scenario, made)
            created = monotonic()
            while len(bound) < count:  # noqa: ASYNC110 - the watch fills it
                await asyncio.sleep(_POLL)
            watching.cancel()
    except TimeoutError:
        raise SetupError(await _why(client, scenario, len(bound), count, timeout)) from None
    return Seen(sorted(bound.values()), began, created)


async def create(client: KubeClient, scenario: Scenario, made: Sequence[Manifest]) -> None:
    """All of them, ``scenario.creators`` at a time, or one after the other at the row's pace."""
    if scenario.pace is not None:
        await _create_paced(client, scenario.namespace, made, 1 / scenario.pace)
        return
    rest = iter(made)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(scenario.creators):
            tasks.create_task(_create_some(client, scenario.namespace, rest))


async def _create_some(client: KubeClient, namespace: str, rest: Iterator[Manifest]) -> None:
    for manifest in rest:
        await client.create(paths.pods(namespace), manifest)


async def _create_paced(client: KubeClient, namespace: str, made: Sequence[Manifest], apart: float) -> None:
    """``apart``: seconds from one to the next; one that is late does not make the others come closer together."""
    for manifest in made:
        due = monotonic() + apart
        await client.create(paths.pods(namespace), manifest)
        await asyncio.sleep(max(0.0, due - monotonic()))


async def _watch(client: KubeClient, namespace: str, version: str, bound: dict[str, float]) -> None:
    """Forever. The API server ends the watch of who is too slow for it; then the list says who was bound meanwhile."""
    while True:
        try:
            async with aclosing(client.watch(paths.pods(namespace), BoundPod, resource_version=version)) as events:
                async for event in events:
                    if event.object is not None:
                        _note(event.object, bound)
        except (ApiError, Unreachable):
            await asyncio.sleep(_POLL)
        found, version = await client.list(paths.pods(namespace), BoundPod)
        for one in found:
            _note(one, bound)


def _note(pod: BoundPod, bound: dict[str, float]) -> None:
    if pod.spec.node_name:
        bound.setdefault(pod.metadata.name, monotonic())


async def delete_all(client: KubeClient, scenario: Scenario) -> None:
    """Nobody runs them, so they are gone at once; when this returns, nothing of them is left."""
    async with asyncio.timeout(_GONE):
        while (await client.list(paths.pods(scenario.namespace), BoundPod))[0]:
            try:
                await client.delete(paths.pods(scenario.namespace), grace_seconds=0)
            except (ApiError, Unreachable):  # thousands may take longer than one request may
                await asyncio.sleep(_POLL)


async def _why(client: KubeClient, scenario: Scenario, bound: int, count: int, timeout: float) -> str:
    left, _ = await client.list(paths.pods(scenario.namespace), BoundPod)
    waiting = (c.message for p in left if not p.spec.node_name for c in p.status.conditions or () if c.message)
    words = next(waiting, "no pod says why")
    return f"{scenario.name}: {bound} of {count} pods were bound after {timeout:.0f} s; one says: {words[:600]}"
