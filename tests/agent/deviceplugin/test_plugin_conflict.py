"""Another plugin for one of our resources is seen by its socket or by its ids, and told once."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from fractile.agent.deviceplugin.plugin_conflict import REASON, PluginConflicts
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.dialects import table
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.units import MemoryUnit
from fractile.wire.foreign import kubelet_checkpoint
from tests.agent.world import CARDS, GPU, NODE
from tests.fakes.apiserver import FakeApiServer

OURS = [f"{CARDS[0].uuid}::{k}" for k in range(3)]
THEIRS = [CARDS[0].uuid, CARDS[1].uuid]


@contextmanager
def listening(path: Path) -> Generator[None]:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))
        one.listen()
        yield


def record(folder: Path, **registered: Sequence[str]) -> None:
    ids = {name.replace("_", "/").replace("nvidia", "nvidia.com"): list(some) for name, some in registered.items()}
    (folder / kubelet_checkpoint.FILE_NAME).write_bytes(kubelet_checkpoint.encode([], ids))


@asynccontextmanager
async def rivals(
    folder: Path, *, dialects: frozenset[str] = table.NAMES
) -> AsyncGenerator[tuple[PluginConflicts, FakeApiServer, EventRecorder], None]:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        async with KubeClient(server.credentials()) as client:
            events = EventRecorder(client, "test")
            sending = asyncio.create_task(events.run())
            current_catalog = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.GiB, dialects=dialects))
            yield PluginConflicts(client, current_catalog, events, node=NODE, plugins=folder), server, events
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sending


async def told(server: FakeApiServer, events: EventRecorder) -> list[str]:
    await events.flush(5.0)
    found = [e for e in server.all("/api/v1/events") if e["reason"] == REASON]
    assert all(e["involvedObject"]["kind"] == "Node" for e in found)
    return [e["message"] for e in found]


@pytest.mark.parametrize(
    ("registered", "seen"),
    [
        pytest.param({"nvidia_gpu": THEIRS}, {GPU: "another device plugin"}, id="whole cards, as NVIDIA's"),
        pytest.param({"nvidia_gpu": [*OURS, "GPU-strange::0"]}, {GPU: "another device plugin"}, id="a strange card"),
        pytest.param({"nvidia_gpu": OURS}, {}, id="ours"),
        pytest.param({"nvidia_gpu": []}, {}, id="none"),
        pytest.param({"nvidia_mig-1g.5gb": THEIRS}, {}, id="of a resource that we do not serve"),
    ],
)
async def test_ids_that_are_none_of_ours_are_seen(
    tmp_path: Path, registered: dict[str, list[str]], seen: dict[str, str]
) -> None:
    record(tmp_path, **registered)
    async with rivals(tmp_path) as (found, _, _):
        assert found.look() == seen


async def test_a_socket_counts_while_somebody_listens(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-gpu.sock"
    async with rivals(tmp_path) as (found, _, _):
        assert found.look() == {}
        with listening(path):
            assert found.look() == {GPU: "NVIDIA's or HAMi's device plugin"}
        assert path.exists()
        assert found.look() == {}


async def test_a_family_that_is_left_to_others_has_no_rivals(tmp_path: Path) -> None:
    record(tmp_path, nvidia_gpu=THEIRS)
    async with rivals(tmp_path, dialects=frozenset({"aliyun"})) as (found, _, _):
        with listening(tmp_path / "nvidia-gpu.sock"), listening(tmp_path / "vcore.sock"):
            assert found.look() == {}


@pytest.mark.parametrize("text", [b"", b"{}", b'{"Data":{"RegisteredDevices":{"nvidia.com/gpu":7}}}', b"\xff"])
async def test_a_record_that_cannot_be_read_says_nothing(tmp_path: Path, text: bytes) -> None:
    (tmp_path / kubelet_checkpoint.FILE_NAME).write_bytes(text)
    async with rivals(tmp_path) as (found, _, _):
        assert found.look() == {}


async def test_what_lasts_is_told_once_and_again_when_it_returns(tmp_path: Path) -> None:
    async with rivals(tmp_path) as (found, server, events):
        with listening(tmp_path / "nvidia-gpu.sock"):
            await found.round()
            assert await told(server, events) == []  # may be on its way out
            await found.round()
            await found.round()
            (message,) = await told(server, events)
            assert message.startswith(f"NVIDIA's or HAMi's device plugin also serves {GPU} on this node")
            assert "--dialects" in message
        await found.round()
        (tmp_path / "nvidia-gpu.sock").unlink()
        with listening(tmp_path / "nvidia-gpu.sock"):
            await found.round()
            await found.round()
        await events.flush(5.0)
        (again,) = (e for e in server.all("/api/v1/events") if e["reason"] == REASON)
        assert again["count"] == 2


async def test_an_api_server_that_is_away_stops_nothing(tmp_path: Path) -> None:
    record(tmp_path, nvidia_gpu=THEIRS)
    async with rivals(tmp_path) as (found, server, events):
        server.delete(paths.node(NODE))
        await found.round()
        await found.round()
        assert await told(server, events) == []
        assert found.look() == {GPU: "another device plugin"}
