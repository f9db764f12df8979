"""Where the sums of a card do not fit: who was granted first keeps, and what still runs counts without its pod."""

import asyncio
from pathlib import Path
from typing import Any

from fractile.kube import paths
from fractile.region import directory
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import CARDS, GIB, GPU, Asks, World, world
from tests.region.writer import alive

A = CARDS[0]
GPU_MEMORY = "nvidia.com/gpumem"


def big(gib: int) -> Asks:
    """A container that asks by slots and memory: kubelet counts the slots only."""
    return Asks("main", 1, GPU, more=((GPU_MEMORY, gib * GIB),))


def region(w: World, pod: Pod) -> Path:
    started = w.kubelet.started(pod, "main")
    assert started is not None
    return Path(started.mounts[f"{directory.MOUNT}/{directory.REGION}"])


async def until(reached: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def events(w: World, reason: str) -> list[dict[str, Any]]:
    return [e for e in w.server.all("/api/v1/events") if e["reason"] == reason]


async def test_a_running_pods_container_starts_again_where_the_sums_do_not_fit_and_the_later_pod_waits() -> None:
    async with world() as w:
        first = w.admit(big(10), on={"main": [A]}, name="first")
        await w.kubelet.running(first)
        later = w.admit(big(6), on={"main": [A]}, name="later")
        await w.kubelet.running(later)
        # The API server says now that the later one has more than is left: an unlucky write, as of issue 19.
        given = w.annotations(later)["fractile.dev/placement"].replace("6144", "12288")
        w.annotate(later, {"fractile.dev/placement": given})
        w.kubelet.end_container(first, "main")
        await w.kubelet.running(first)
        started = w.kubelet.started(first, "main")
        assert started is not None


async def test_the_pod_that_came_later_is_refused_and_starts_when_the_first_has_gone() -> None:
    async with world() as w:
        first = w.admit(big(10), on={"main": [A]}, name="first")
        await w.kubelet.running(first)
        later = w.admit(big(12), on={"main": [A]}, name="later")
        await w.kubelet.refused("need 22528 MiB")
        w.kubelet.end_container(first, "main")
        await w.kubelet.running(first)
        assert w.kubelet.started(later, "main") is None
        w.delete(first)
        await w.kubelet.running(later)


async def test_what_a_force_deleted_pods_processes_hold_is_given_to_nobody() -> None:
    async with world() as w:
        old = w.admit(big(10), on={"main": [A]}, name="old")
        await w.kubelet.running(old)
        with alive(region(w, old), 0):
            w.delete(old)  # its object is gone, kubelet gives its devices away, and its processes still run
            new = w.admit(big(12), on={"main": [A]}, name="new")
            said = await w.kubelet.refused("need 22528 MiB")
            assert "default/old" in said
            await until(lambda: events(w, "GPUHeldByDeletedPod"))
            (event,) = events(w, "GPUHeldByDeletedPod")
            node = event["involvedObject"]
            assert (node["kind"], node["uid"]) == ("Node", w.server.get(paths.node(node["name"]))["metadata"]["uid"])
            assert "default/old" in event["message"]
            await until(lambda: status(w).get("departed"))
            assert status(w)["departed"] == {"memory": "10240Mi", "cores": 0, "slices": 1}
            assert status(w)["used"]["memory"] == "22528Mi"
            assert w.kubelet.started(new, "main") is None
            fitting = w.admit(Asks("main", 4), on={"main": [CARDS[1]]}, name="elsewhere")
            await w.kubelet.running(fitting)
        await w.kubelet.running(new)
        await until(lambda: not status(w).get("departed"))


def status(w: World) -> dict[str, Any]:
    return w.server.get(paths.extended_resource(A.uuid.lower())).get("status", {})
