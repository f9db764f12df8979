"""Our HTTP client beside a bare aiohttp session: processor time of a GET of a pod, and the memory that each adds.

``pip install aiohttp`` first; without it only our client is measured. Each runs in a separate process, in turn, against
a server in a third one, and is imported there only, so that its memory can be told. Ours does what a call of ours does:
pacing, repeats, limits.
"""

import asyncio
import importlib
import importlib.util
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from fractile.kube import paths
from fractile.wire.kubernetes.objects import Pod
from tests.perf.measuring.report import Row

GETS = 4000
ROUNDS = 3
CLIENTS = ("ours", "aiohttp")
_POD = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "x"}]}}
_PATH = paths.pod("default", "p")

Get = Callable[[], Awaitable[object]]


def measure() -> list[Row]:
    clients = [name for name in CLIENTS if name == "ours" or importlib.util.find_spec(name)]
    with subprocess.Popen(_argv("serve"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        url = server.stdout.readline().strip()
        found = {name: list[list[float]]() for name in clients}
        for _ in range(ROUNDS):
            for name in clients:
                printed = subprocess.run(_argv(name, url), capture_output=True, text=True, check=True).stdout
                found[name].append([float(word) for word in printed.split()])
        server.stdin.close()
    return [row for name, rounds in found.items() for row in _rows(name, rounds)]


def _rows(name: str, rounds: list[list[float]]) -> list[Row]:
    times, memory = zip(*rounds, strict=True)
    note = f"of {ROUNDS} rounds: {min(times):.0f} to {max(times):.0f}"
    return [
        Row(f"a GET of a pod, {name}: processor time", statistics.median(times), "us", None, note),
        Row(f"memory added by the client, {name}", statistics.median(memory), "MiB"),
    ]


def _argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "tests.perf.http_client", *words]


async def _serve() -> None:
    from tests.fakes.apiserver import FakeApiServer

    async with FakeApiServer() as server:
        server.create(paths.pods("default"), _POD)
        print(server.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def _measured(name: str, url: str) -> None:
    before = _rss()
    async with (_ours if name == "ours" else _aiohttp)(url) as get:
        for _ in range(GETS // 20):
            await get()
        began = time.process_time()
        for _ in range(GETS):
            await get()
        taken = (time.process_time() - began) / GETS
    print(taken * 1e6, _rss() - before)


@asynccontextmanager
async def _ours(url: str) -> AsyncGenerator[Get]:
    from fractile.kube.client import KubeClient
    from fractile.kube.credentials import Credentials

    async with KubeClient(Credentials(url), qps=1e6, burst=10**6) as client:
        yield lambda: client.get(_PATH, Pod)


@asynccontextmanager
async def _aiohttp(url: str) -> AsyncGenerator[Get]:
    session_of = importlib.import_module("aiohttp").ClientSession
    decoder = msgspec.json.Decoder(Pod)
    async with session_of(url) as session:

        async def get() -> Pod:
            async with session.get(_PATH) as answer:
                return decoder.decode(await answer.read())

        yield get


def _rss() -> float:
    """MiB that are resident now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    asyncio.run(_serve() if sys.argv[1] == "serve" else _measured(sys.argv[1], sys.argv[2]))
