"""The control plane's process while its port is besieged: kube-scheduler is served, memory and descriptors are bounded,
the lead is kept. The full size, 3,000 connections at 5,000 nodes, is ``python -m tests.perf siege``."""

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import msgspec
import pytest

from fractile.kube import paths
from tests.builders import cards, container, pod, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.process import control_plane, free_port
from tests.perf.memory import memory_of
from tests.serving.scheduler_client import Authorities, SchedulerClient
from tests.serving.siege import besieged

pytestmark = pytest.mark.slow

SLOW, BODIES = 600, 24
HOSTS = ("127.0.0.2", "127.0.0.3", "127.0.0.4")  # pods, which do not share kube-scheduler's address
GROWTH = 100.0  # MB; 24 bodies of 52 MiB are 1,300
DESCRIPTORS = 400


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    async with FakeApiServer() as made:
        for card in cards("n1"):
            made.create(paths.extended_resources(), resource(card, "n1"))
        yield made


async def test_kube_scheduler_is_served_by_a_control_plane_that_is_besieged(
    server: FakeApiServer, tmp_path: Path
) -> None:
    port, known = free_port(), Authorities(tmp_path)
    options = (*known.options, f"--listen=127.0.0.1:{port}", "--lease=default/fractile", "--lease-seconds=6")
    kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
    async with control_plane(kubeconfig, tmp_path, *options) as running:
        scheduler = SchedulerClient(port, known.trust())
        await scheduler.until_ready()
        before, _ = memory_of(running.pid)
        async with besieged(port, slow=SLOW, bodies=BODIES, hosts=HOSTS):
            most = 0
            for number in range(120):
                name = f"p-{number}"
                body = msgspec.to_builtins(pod(name, container(memory=100)))
                body["metadata"].pop("uid")
                made = server.create(paths.pods("default"), body)
                asked = msgspec.json.encode({"Pod": made, "NodeNames": ["n1"]})
                assert (await scheduler.ask("filter", asked))["NodeNames"] == ["n1"]
                assert await scheduler.bind(name, made["metadata"]["uid"], "n1") == ""
                most = max(most, len(os.listdir(f"/proc/{running.pid}/fd")))
                await asyncio.sleep(0.05)
            probe = SchedulerClient(port, known.trust(""))  # kubelet and Prometheus
            assert (await probe.get("/readyz"))[0] == 200
            assert (await probe.get("/metrics"))[0] == 200
        _, peak = memory_of(running.pid)
        assert peak - before < GROWTH
        assert most < DESCRIPTORS
        for verb, taken in scheduler.taken.items():
            assert sorted(taken)[len(taken) * 95 // 100] < 1.0, verb  # others use this machine, too
        log = running.log.read_text()
        assert log.count(" leading ") <= 1
        assert "Traceback" not in log
