"""What a long run needs in the cluster before its first pod: a namespace and classes, which may be there already."""

import asyncio
from collections.abc import Mapping

from fractile.errors import ApiError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.wire.kubernetes.objects import Namespace

_ACCOUNT = 30.0  # seconds for kube-controller-manager to make the namespace's account


async def prepare(client: KubeClient, namespace: str, classes: Mapping[str, Mapping[str, object]]) -> None:
    """``classes``: specs by name."""
    await _ensure(client, paths.namespaces(), {"metadata": {"name": namespace}})
    for name, spec in classes.items():
        of = {"apiVersion": "fractile.dev/v1alpha1", "kind": "ResourceClass", "metadata": {"name": name}}
        await _ensure(client, paths.resource_classes(), {**of, "spec": dict(spec)})
    account = f"{paths.namespace(namespace)}/serviceaccounts/default"
    async with asyncio.timeout(_ACCOUNT):
        while not await _exists(client, account):  # noqa: ASYNC110 - another program makes it
            await asyncio.sleep(0.2)


async def _ensure(client: KubeClient, path: str, body: Mapping[str, object]) -> None:
    try:
        await client.create(path, body)
    except ApiError as e:
        if e.code != 409:
            raise


async def _exists(client: KubeClient, path: str) -> bool:
    try:
        await client.get(path, Namespace)  # of which only the metadata are read
    except ApiError:
        return False
    return True
