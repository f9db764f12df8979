"""The arbiter's answer: from the real one, and from what is not one."""

import asyncio
import shutil
import subprocess
import tempfile
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fractile.agent.usage.arbiter_client import ArbiterClient
from fractile.errors import WireError
from fractile.region.directory import put
from fractile.wire.fractile import arbiter_status
from fractile.wire.fractile.arbiter_status import ArbiterStatus
from tests.region.examples import LIMITS
from tests.wire.golden_files import golden

STATUS = golden("arbiter-status.json")


@pytest.fixture
def folder() -> Generator[Path]:
    made = Path(tempfile.mkdtemp(prefix="fr-"))  # pytest's own paths are too long for sockets
    yield made
    shutil.rmtree(made)


@asynccontextmanager
async def answering(socket: Path, *parts: bytes, hang: bool = False) -> AsyncGenerator[None]:
    release = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
        if hang:
            await release.wait()
        writer.close()

    server = await asyncio.start_unix_server(answer, socket)
    async with server:
        yield
        release.set()


async def test_the_answer_may_come_in_pieces(folder: Path) -> None:
    async with answering(folder / "s", STATUS[:100], STATUS[100:]):
        status = await ArbiterClient(folder / "s").status()
    assert status is not None
    (card,) = status.cards
    assert [(s.slice, s.held_ns > 0) for s in card.slices] == [("five", True), ("three", True)]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"{", id="half a word"),
        pytest.param(b"\xff\xfe", id="no text"),
        pytest.param(b'{"version":99,"nowNs":1,"cards":[]}', id="another version"),
        pytest.param(b'{"version":1,"nowNs":1,"cards":[{"card":3}]}', id="another form"),
        pytest.param(b"[" * (5 * 2**20), id="without end"),
    ],
)
async def test_what_makes_no_sense_is_no_status(folder: Path, answer: bytes) -> None:
    async with answering(folder / "s", answer):
        assert await ArbiterClient(folder / "s").status() is None


async def test_without_an_arbiter_there_is_no_status(folder: Path) -> None:
    assert await ArbiterClient(folder / "absent").status() is None
    (folder / "file").write_text("")
    assert await ArbiterClient(folder / "file").status() is None


async def test_an_arbiter_that_hangs_is_not_waited_for(folder: Path) -> None:
    async with answering(folder / "s", STATUS[:50], hang=True):
        began = asyncio.get_running_loop().time()
        assert await ArbiterClient(folder / "s").status() is None
        assert asyncio.get_running_loop().time() - began < 3


def test_a_status_of_another_version_is_refused() -> None:
    with pytest.raises(WireError, match="version 2"):
        arbiter_status.decode(b'{"version":2,"nowNs":1}')
    assert isinstance(arbiter_status.decode(STATUS), ArbiterStatus)


async def test_the_real_arbiter_is_understood(folder: Path, native: Path) -> None:
    directory = folder / "slices" / "t1"
    directory.mkdir(parents=True)
    put(directory, LIMITS)
    program = native / "fractile-arbiter"
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", program, "--slices", folder / "slices"), stderr=subprocess.DEVNULL
    )
    try:
        arbiter = ArbiterClient(folder / "arbiter.sock")
        async with asyncio.timeout(10):
            while (status := await arbiter.status()) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    finally:
        process.terminate()
        await process.wait()
    assert [(c.card, [s.slice for s in c.slices]) for c in status.cards] == [(c.uuid, ["t1"]) for c in LIMITS.cards]
