"""What the agent says of its audit when it starts."""

import logging
from pathlib import Path

import pytest

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.journal import Journal
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.events import EventRecorder
from fractile.main.agent_usage import UsageOptions, usage_loops
from fractile.model.units import MemoryUnit, NodeName
from tests.agent.world import CARDS


async def test_the_log_says_what_becomes_of_use_outside_the_ledger(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with KubeClient(Credentials("http://127.0.0.1:1")) as client:
        for loop in usage_loops(
            client,
            EventRecorder(client, "test"),
            current_catalog=CurrentCatalog(Catalog.of(CARDS, MemoryUnit.GiB)),
            pods=NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB),
            journal=Journal(tmp_path / "slices", new_token=lambda: "t"),
            kubelet=Kubelet(tmp_path / "none.sock", tmp_path / "none"),
            state=tmp_path,
            options=UsageOptions(policy="evict", grace=30.0),
        ):
            loop.close()
    assert "outside ledger policy=evict grace=30 audited=False" in caplog.messages
