"""What the agent costs at rest with 8 cards and 64 slices: containers with a process each that holds memory."""

import asyncio
import os
from pathlib import Path

from fractile.lab.machine import native as native_parts
from fractile.lab.progress import Progress
from tests.agent.simnode import Node, node
from tests.agent.world import card
from tests.perf.measuring.report import Row

CARDS = 8
SLICES = 64
WINDOW = 60.0  # seconds
SCRAPE = 15.0
CPU = 1.0  # percent of a core
RSS = 60.0  # MB


async def measure() -> list[Row]:
    said: list[str] = []
    native = native_parts.ensure(os.environ, Progress(said.append))
    if not native:
        return [Row("agent with slices: not measured", 0, "", None, "".join(said).strip())]
    cards = [card(n) for n in range(CARDS)]
    async with node(Path(native), cards=cards) as n:
        await asyncio.sleep(3)
        alone = _resident(n.process.pid)
        for number in range(SLICES):
            of = cards[number % CARDS]
            _, token = await n.container(1, card=of)
            await n.host.start(
                [f"{native}/probe", "fill", "3600"], b"{", token=token, environment={"NVIDIA_VISIBLE_DEVICES": of.uuid}
            )
        usage = await n.until(
            lambda u: sum(bool(c.driver_bytes) for x in u.containers for c in x.cards) == SLICES, seconds=120
        )
        assert usage.outside == (), usage.outside
        await asyncio.sleep(10)
        return [Row("agent with NVML and no slices: RSS", alone, "MB", RSS), *await _at_rest(n)]


async def _at_rest(n: Node) -> list[Row]:
    before, began = processor_time(n.process.pid), asyncio.get_running_loop().time()
    size = 0
    while (left := began + WINDOW - asyncio.get_running_loop().time()) > 0:
        await asyncio.sleep(min(left, SCRAPE))
        size = len((await n.http.get("/metrics")).content)
    seconds = asyncio.get_running_loop().time() - began
    percent = 100 * (processor_time(n.process.pid) - before) / seconds
    note = f"{CARDS} cards, {SLICES} slices with a process each, a scrape every {SCRAPE:.0f} s, {seconds:.0f} s"
    return [
        Row("agent with slices: processor time", percent, "% of a core", CPU, note),
        Row("agent with slices: RSS", _resident(n.process.pid), "MB", RSS, note),
        Row("agent with slices: page of metrics", size / 1e3, "kB"),
    ]


def processor_time(pid: int) -> float:
    """Seconds of user and system time, of the program and not of its arbiter."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
