"""A receiver of a reflector's reports that checks each one, and a wait until it agrees with the server."""

import asyncio
import contextlib
import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fractile.kube import paths
from fractile.kube.backoff import Backoff
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone, Reflector
from fractile.wire.kubernetes.objects import Pod
from tests.fakes.apiserver import FakeApiServer

PODS = paths.pods()


class View:
    """What the reports add up to. Every deletion must come exactly once, and before a successor of the same name."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.pods: dict[tuple[str, str], tuple[str, str]] = {}  # (namespace, name) -> (uid, resourceVersion)
        self.reported: set[str] = set()  # uids
        self.dead: set[str] = set()

    def changed(self, pod: Pod) -> None:
        meta = pod.metadata
        key, now = (meta.namespace, meta.name), (meta.uid, meta.resource_version)
        self.log.append(f"changed {meta.name}")
        assert meta.uid not in self.dead, "reported after it was gone"
        assert self.pods.get(key, now)[0] == meta.uid, "a predecessor was not reported gone"
        assert self.pods.get(key) != now, "reported twice"
        assert int(self.pods.get(key, ("", "0"))[1]) < int(meta.resource_version), "went back in time"
        self.pods[key] = now
        self.reported.add(meta.uid)

    def gone(self, gone: Gone) -> None:
        self.log.append(f"gone {gone.name}")
        assert self.pods.pop((gone.namespace, gone.name))[0] == gone.uid
        assert gone.uid not in self.dead, "gone twice"
        self.dead.add(gone.uid)

    async def has_heard(self, *log: str) -> None:
        """Wait until the reports are these, in this order."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                while self.log != list(log):  # noqa: ASYNC110 - as in ``agrees``
                    await asyncio.sleep(0.002)
        assert self.log == list(log)

    async def agrees(self, server: FakeApiServer, *, seconds: float = 10) -> None:
        """Wait until the view is the server's; fails with both when it does not become so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while self.pods != truth(server):  # noqa: ASYNC110 - polls another party, there is no event
                    await asyncio.sleep(0.002)
        assert self.pods == truth(server)


def truth(server: FakeApiServer) -> dict[tuple[str, str], tuple[str, str]]:
    found = (o["metadata"] for o in server.all(PODS))
    return {(m["namespace"], m["name"]): (m["uid"], m["resourceVersion"]) for m in found}


def make_reflector(
    client: KubeClient, view: View, *, streaming: bool = False, silence: float = 5, field_selector: str = ""
) -> Reflector[Pod]:
    return Reflector(
        client,
        PODS,
        Pod,
        changed=view.changed,
        gone=view.gone,
        streaming=streaming,
        silence=silence,
        field_selector=field_selector,
        backoff=Backoff(base=0.001, cap=0.02, rng=random.Random(1)),
    )


@asynccontextmanager
async def running(reflector: Reflector[Pod]) -> AsyncGenerator[asyncio.Task[None], None]:
    """The reflector at work; an exception of it fails the test."""
    task = asyncio.create_task(reflector.run())
    try:
        yield task
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def create(server: FakeApiServer, name: str, *, node: str = "") -> None:
    server.create(paths.pods("default"), {"metadata": {"name": name}, "spec": {"nodeName": node}})


def touch(server: FakeApiServer, name: str) -> None:
    path = paths.pod("default", name)
    server.merge(path, {"metadata": {"annotations": {"touched": str(server.store.version)}}})


def delete(server: FakeApiServer, name: str) -> None:
    server.delete(paths.pod("default", name))
