"""What the pages cost: one rendering for each look, however many ask."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fractile.agent.audit.audit import OutsideAudit
from fractile.agent.audit.ending import Ender
from fractile.agent.audit.spared import Spared
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.beyond import BeyondWriter
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.slices import Granted, Slices
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.owners import Owners
from fractile.agent.node.pods import NodePods
from fractile.agent.node.procfs import ProcFs
from fractile.agent.usage.arbiter_client import ArbiterClient
from fractile.agent.usage.http import PageRequest
from fractile.agent.usage.look import Eye
from fractile.agent.usage.loop import UsageLoop
from fractile.agent.usage.pages import Pages
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.events import EventRecorder
from fractile.metrics.exposition import OPENMETRICS, TEXT
from fractile.model.units import MemoryUnit
from tests.agent.audit.test_departed import LIMITS, UID
from tests.agent.world import CARDS, NODE

PLAIN = PageRequest("/metrics", {})
OPEN = PageRequest("/metrics", {"accept": "application/openmetrics-text; version=1.0.0"})


@pytest.fixture
async def usage(tmp_path: Path) -> AsyncGenerator[UsageLoop]:
    """Of a node without containers; nothing of it reaches an API server."""
    async with KubeClient(Credentials("http://127.0.0.1:1")) as client:
        current_catalog = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.GiB))
        pods = NodePods(client, node=NODE, unit=MemoryUnit.GiB)
        events = EventRecorder(client, "test")
        journal = Journal(tmp_path / "slices", new_token=lambda: "t")
        spared = Spared(client, (), Kubelet(tmp_path / "none.sock", tmp_path / "none").record)
        yield UsageLoop(
            Eye(Slices(journal), None, ProcFs(), enforced=True),
            current_catalog=current_catalog,
            pods=pods,
            audit=OutsideAudit(client, events, Owners(client, pods), spared, Ender(), policy="warn"),
            beyond=BeyondWriter(journal),
            arbiter=ArbiterClient(tmp_path / "arbiter.sock"),
            departed=lambda: (Granted("t", tmp_path, 1.0, LIMITS),),
        )


async def test_all_who_scrape_between_two_looks_get_the_same_bytes(usage: UsageLoop) -> None:
    registered = 0

    def registrations() -> dict[str, int]:
        nonlocal registered
        registered += 1  # asked for once in each rendering
        return {"registered": registered}

    pages = Pages(usage, registrations=registrations)
    for looks in (1, 2):
        await usage.round()
        first, *others = [await pages.metrics(PLAIN) for _ in range(3)]
        assert [o.body for o in others] == [first.body] * 2
        assert registered == looks
        assert b'registrations_total{node="%s",outcome="registered"} %d' % (NODE.encode(), looks) in first.body


async def test_the_two_formats_are_kept_apart(usage: UsageLoop) -> None:
    pages = Pages(usage)
    await usage.round()
    for _ in range(2):
        plain, openmetrics = await pages.metrics(PLAIN), await pages.metrics(OPEN)
        assert (plain.content_type, openmetrics.content_type) == (TEXT, OPENMETRICS)
        assert not plain.body.endswith(b"# EOF\n")
        assert openmetrics.body.endswith(b"# EOF\n")


async def test_what_a_deleted_pod_still_holds_is_in_the_picture(usage: UsageLoop) -> None:
    await usage.round()
    (found,) = usage.present.departed
    assert (found.namespace, found.pod, found.container, found.pod_uid) == ("ns", "p", "main", UID)
    assert (found.card, found.limit_bytes, found.cores) == ("GPU-a", 300 * 2**20, 20)
    assert usage.present.containers == ()


async def test_a_look_that_hangs_is_shown_although_no_new_one_is_there(usage: UsageLoop) -> None:
    pages = Pages(usage)
    await usage.round()
    await pages.metrics(PLAIN)
    usage.late += 1
    assert b'fractile_agent_looks_late_total{node="%s"} 1' % NODE.encode() in (await pages.metrics(PLAIN)).body
