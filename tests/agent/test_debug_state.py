"""/debug/state of the agent: on its socket it says what it believes, and on its page it says where to look."""

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fractile.agent.usage.http import HttpServer, PageRequest, Response
from fractile.wire.output import debug_state
from fractile.wire.output.debug_state import AgentState
from tests.agent.limits.test_enforce import until
from tests.agent.world import CARDS, NODE, Asks, World, world


async def asked(socket: Path, path: str = debug_state.PATH) -> tuple[str, bytes]:
    """The status line and the body."""
    async with asyncio.timeout(10):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()
    return head.split(b"\r\n")[0].decode(), body


async def state(w: World) -> AgentState:
    _, body = await asked(w.root / "state" / "debug.sock")
    found = debug_state.decode(body)
    assert isinstance(found, AgentState)
    return found


async def test_the_agent_says_what_it_believes_of_plugins_devices_directories_and_watches() -> None:
    async with world() as w:
        await w.ready()
        pod = w.bind(Asks("c", 2), on={"c": [CARDS[0]]})
        w.kubelet.add(w.pod(pod))
        await until(lambda: w.kubelet.started(pod, "c") is not None)
        seen = await state(w)
        assert (seen.node, seen.pods, seen.library) == (NODE, 1, "")
        assert {p.resource: (p.registered, p.healthy) for p in seen.plugins}["aliyun.com/gpu-mem"] == (True, 32)
        assert [(d.uuid, d.healthy, d.reason) for d in seen.devices] == [(c.uuid, True, "") for c in CARDS]
        (directory,) = seen.directories
        assert (directory.pod, directory.container, list(directory.cards)) == ("p1", "c", [CARDS[0].uuid])
        (feed,) = seen.feeds
        assert (feed.path, feed.synced, feed.objects) == ("/api/v1/pods", True, 1)
        assert feed.age is not None
        assert feed.age < 30
        assert seen.process.pid == os.getpid()
        assert any("Registrar" in name for name in seen.process.tasks)


async def test_a_card_that_is_lost_is_shown_with_the_reason() -> None:
    async with world() as w:
        await w.ready()
        w.hurt(CARDS[1], lost=True)
        async with asyncio.timeout(10):
            while (await state(w)).devices[1].healthy:  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.05)
        seen = await state(w)
        assert seen.devices[1].reason == "CardLost"
        assert {p.healthy for p in seen.plugins if p.resource == "aliyun.com/gpu-mem"} == {16}


async def test_nobody_but_the_owner_may_open_the_socket(tmp_path: Path) -> None:
    async def shown(_: PageRequest) -> Response:
        return Response(b"here")

    path = tmp_path / "debug.sock"
    path.write_text("left behind by a killed agent")
    server = HttpServer(path, {"/x": shown})
    running = asyncio.create_task(server.run())
    await server.listening.wait()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert await asked(path, "/x") == ("HTTP/1.1 200 OK", b"here")
    assert (await asked(path, "/y"))[0] == "HTTP/1.1 404 Not Found"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_the_agent_loads_none_of_what_only_the_control_plane_needs() -> None:
    heavy = ("numpy", "starlette", "uvicorn", "httpx2", "yaml", "opentelemetry")
    program = f"import sys, fractile.main.agent; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
