"""``fractile alive``: kubelet's probe of the agent, as a process of its own."""

import asyncio
import sys
from pathlib import Path

import pytest

from fractile.agent.debug_state import SOCKET
from fractile.agent.usage import http
from fractile.agent.usage.http import Address, HttpServer, PageRequest, Response
from fractile.main import agent, alive
from tests.main.process import PROGRAM


async def healthy(request: PageRequest) -> Response:
    return Response(b"ok\n")


async def broken(request: PageRequest) -> Response:
    raise RuntimeError("a bug")


async def probe(folder: Path) -> tuple[int, str]:
    """Exit status and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "alive", f"--state-dir={folder}", "--timeout=2"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    return process.returncode or 0, said.decode()


async def test_it_succeeds_while_slow_connections_hold_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_READ", 60.0)
    page = HttpServer(Address("127.0.0.1", 0), {"/healthz": healthy})
    own = HttpServer(tmp_path / SOCKET, {"/healthz": healthy})
    running = [asyncio.create_task(one.run()) for one in (page, own)]
    await asyncio.wait_for(asyncio.gather(page.listening.wait(), own.listening.wait()), 10)
    slow = [await asyncio.open_connection("127.0.0.1", page.port) for _ in range(1000)]
    try:
        assert await probe(tmp_path) == (0, "ok\n")
    finally:
        for _, writer in slow:
            writer.close()
        for one in running:
            one.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def test_it_fails_where_no_agent_listens_or_one_does_not_answer_well(tmp_path: Path) -> None:
    status, said = await probe(tmp_path)
    assert status == 1
    assert said.startswith("fractile: the agent does not answer at ")
    server = HttpServer(tmp_path / SOCKET, {"/healthz": broken})
    running = asyncio.create_task(server.run())
    await asyncio.wait_for(server.listening.wait(), 10)
    assert (await probe(tmp_path))[0] == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_it_does_not_wait_for_ever_for_an_agent_that_hangs(tmp_path: Path) -> None:
    server = await asyncio.start_unix_server(lambda reader, writer: None, path=str(tmp_path / SOCKET))
    async with server:
        status, said = await asyncio.wait_for(probe(tmp_path), 30)
        assert status == 1
        assert "timed out" in said


def test_it_looks_where_the_agent_keeps_its_state() -> None:
    """Both take their option from one definition."""
    mine, agents = (next(p for p in one.params if p.name == "state_dir") for one in (alive.command, agent.command))
    assert (mine.opts, mine.default) == (agents.opts, agents.default)
    for module in (alive, agent):
        assert '"--state-dir",' not in Path(str(module.__file__)).read_text()
