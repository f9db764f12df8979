"""Objects that the contract tests write to an API server, and a watch of them."""

import asyncio
from contextlib import aclosing

from fractile.wire.kubernetes import queued
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from tests.contract.conftest import Api

WAIT = 10.0


class ConfigMap(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    data: dict[str, str] | None = None


class Event(KubeStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    involved_object: dict[str, str] | None = None
    reason: str = ""
    message: str = ""
    type: str = ""
    count: int = 0


def config_map(name: str, **data: str) -> dict[str, object]:
    return {"metadata": {"name": name}, "data": data}


def pod(name: str, **metadata: object) -> dict[str, object]:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


def gated_pod(name: str, *others: str) -> dict[str, object]:
    gates = [{"name": gate} for gate in (queued.GATE, *others)]
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], "schedulingGates": gates},
    }


def lease(name: str, holder: str, **metadata: object) -> dict[str, object]:
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, **metadata},
        "spec": {"holderIdentity": holder},
    }


async def take(
    api: Api, path: str, count: int, *, version: str = "", field_selector: str = ""
) -> list[tuple[str, str]]:
    """The first events of a watch, as (type, name)."""
    found: list[tuple[str, str]] = []
    watch = api.client.watch(path, ConfigMap, resource_version=version, field_selector=field_selector)
    async with asyncio.timeout(WAIT), aclosing(watch) as events:
        async for event in events:
            found.append((event.type.value, event.metadata.name))
            if len(found) == count:
                return found
    raise AssertionError(f"the watch ended after {found}")
