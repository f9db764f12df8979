"""Replicas of the control plane with a lease on the real API server.

Without the chart they are two more beside the cluster's own; the pods that they bind name a scheduler that does not
exist: the test asks the replicas, as kube-scheduler would. With the chart they are its pods, and kube-scheduler asks.
"""

import asyncio
import json
import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from fractile.lab.cluster.chart import NAMESPACE
from fractile.lab.cluster.interrupted import interrupted
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.main.leading import DEFAULT_LEASE
from fractile.wire.kubernetes.objects import Pod
from tests.e2e.conftest import CHART, not_on_chart
from tests.main.process import Running, control_plane
from tests.main.test_leading import alive, is_ready, stopped

pytestmark = pytest.mark.long

NODE = "n2"
ALMOST_A_CARD = 16_000


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-leading")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def waiting(work: DemoWorkload, name: str) -> Pod:
    made = w.pod(name, w.container(memory=ALMOST_A_CARD))
    made["spec"]["schedulerName"] = "nobody"
    work.apply([made])
    return msgspec.convert(work.pods()[name], Pod)


async def bind(running: Running, asked: Pod) -> str:
    meta = asked.metadata
    body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": NODE}
    async with httpx2.AsyncClient(base_url=running.url, trust_env=False, timeout=60) as http:  # longer than a pause
        return (await http.post("/scheduler/bind", content=msgspec.json.encode(body))).json()["Error"]


def card_of(made: Manifest) -> str:
    return w.placement_of(made).containers[0].slices[0].card


@not_on_chart("its replicas are pods, and kube-scheduler asks them: see below")
async def test_a_paused_leader_is_followed_and_what_it_sends_late_is_refused_by_the_api_server(
    cluster: LocalCluster, work: DemoWorkload, tmp_path: Path
) -> None:
    kubeconfig = cluster.place.config / "control-plane.kubeconfig"
    option = f"--lease={DEFAULT_LEASE}"
    late, prompt = waiting(work, "late"), waiting(work, "prompt")
    async with control_plane(kubeconfig, tmp_path, option, program=interrupted("stop", "allowed")) as old:
        await old.ready(60)
        async with control_plane(kubeconfig, tmp_path, option) as new:
            await alive(new)
            assert not await is_ready(new)

            # 1. The leader stops between the check of its lease and the write: as good as killed, for the other.
            asking = asyncio.create_task(bind(old, late))
            await stopped(old.pid)
            began = time.monotonic()
            await new.ready(30)
            report("after a kill or a pause", time.monotonic() - began, most=17)

            # 2. The next one gives the same card to another pod; then the first continues.
            assert await bind(new, prompt) == ""
            os.kill(old.pid, signal.SIGCONT)
            assert "another replica of fractile leads now" in await asking
            pods = work.pods()
            assert w.node_of(pods["late"]) == ""
            assert w.node_of(pods["prompt"]) == NODE
            assert not await is_ready(old)

            # 3. It takes over again, and knows what was bound meanwhile.
            await asyncio.sleep(1)
            began = time.monotonic()
            new.process.send_signal(signal.SIGTERM)
            await old.ready(30)
            report("after a clean stop", time.monotonic() - began, most=3)
            assert await bind(old, late) == ""
    both = await asyncio.to_thread(work.wait_running, "late", "prompt")
    assert card_of(both["late"]) != card_of(both["prompt"])
    terms = [leader(one) for one in (both["prompt"], both["late"])]
    assert int(terms[1].rpartition("/")[2]) > int(terms[0].rpartition("/")[2])


def leader(made: Manifest) -> Any:
    return w.annotations(made)["fractile.dev/leader"]


def report(what: str, seconds: float, *, most: float) -> None:
    print(f"hand-over {what}: {seconds:.2f} s")
    assert seconds <= most


# ---- replicas that are pods ----


def holder(cluster: LocalCluster) -> str:
    lease = json.loads(cluster.kubectl("-n", NAMESPACE, "get", "lease", "fractile-control-plane", "-o", "json"))
    return lease["spec"].get("holderIdentity") or ""


def leads(cluster: LocalCluster) -> list[str]:
    """The replicas that are ready."""
    found = cluster.kubectl(
        *("-n", NAMESPACE, "get", "pods", "-l", "app.kubernetes.io/component=control-plane"),
        *("-o", r"jsonpath={range .items[?(@.status.containerStatuses[0].ready==true)]}{.metadata.name}{'\n'}{end}"),
    )
    return found.split()


def until_another_holds(cluster: LocalCluster, before: str, what: str, *, most: float) -> str:
    began = time.monotonic()
    while (now := holder(cluster)) in ("", before):
        assert time.monotonic() - began < most + 5, f"nobody leads {what}"
        time.sleep(0.1)
    report(what, time.monotonic() - began, most=most)
    return now


@pytest.mark.skipif(not CHART, reason="replicas are pods with the chart only: FRACTILE_TEST_CHART=1")
def test_a_replica_that_is_a_pod_takes_over_from_one_that_is_paused_and_from_one_that_goes(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([w.pod("before", w.container(memory=ALMOST_A_CARD), nodes=[NODE])])
    work.wait_running("before")
    first, (old,) = holder(cluster), leads(cluster)
    cluster.kill("control-plane", signal.SIGSTOP)
    try:
        second = until_another_holds(cluster, first, "after a pause", most=17)
        work.apply([w.pod("paused", w.container(memory=ALMOST_A_CARD), nodes=[NODE])])
        work.wait_running("paused", seconds=60)
    finally:
        cluster.kill("control-plane", signal.SIGCONT)
    time.sleep(3)  # long enough for the old one to say that it leads, if it thought so
    assert holder(cluster) == second
    (new,) = leads(cluster)
    assert new != old

    cluster.kubectl("-n", NAMESPACE, "delete", "pod", new, "--wait=false")
    until_another_holds(cluster, second, "after a clean stop", most=3)
    work.delete("before")
    work.apply([w.pod("after", w.container(memory=ALMOST_A_CARD), nodes=[NODE])])
    pods = work.wait_running("paused", "after", seconds=60)
    assert card_of(pods["paused"]) != card_of(pods["after"])
