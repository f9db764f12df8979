"""Rules about how cards may be cut, in the whole program: the file, a node's pool, and a change of the file."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fractile.kube import paths
from tests.builders import cards, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.process import control_plane
from tests.main.test_control_plane import bind, fitting, kubeconfig, submit

RULES = "version: 1\ndefault: {maxSlices: 2}\npools:\n  quarters: {fractions: [1/4]}\n"


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    """An API server with the nodes n1 and n2, of one card each; n2 is of the pool ``quarters``."""
    async with FakeApiServer() as made:
        for name, labels in (("n1", {}), ("n2", {"fractile.dev/pool": "quarters"})):
            made.create(paths.nodes(), {"metadata": {"name": name, "labels": labels}})
            made.create(paths.extended_resources(), resource(cards(name, 1)[0], name))
        yield made


async def test_cards_are_cut_as_the_file_says_and_a_change_of_it_is_seen(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "sharing.yaml"
    file.write_text(RULES)
    async with control_plane(kubeconfig(server, tmp_path), tmp_path, "--sharing", str(file)) as running:
        await running.ready()
        both = ("n1", "n2")
        assert await fitting(running, submit(server, "quarter", 4069), both) == ["n1", "n2"]
        assert await fitting(running, submit(server, "third", 5000), both) == ["n1"]
        for name in ("a", "b"):
            assert await bind(running, submit(server, name, 1000)) == ""
        assert "take no more slices" in await bind(running, submit(server, "c", 1000))
        asked = submit(server, "d", 1000)
        assert await fitting(running, asked, ("n1",)) == []
        file.write_text("version: 1\n")
        for _ in range(200):  # the file is looked at every 2 s
            if await fitting(running, asked, ("n1",)):
                break
            await asyncio.sleep(0.1)
        assert await bind(running, asked) == ""


async def test_a_wrong_file_ends_the_program_with_file_line_and_remedy(server: FakeApiServer, tmp_path: Path) -> None:
    file = tmp_path / "sharing.yaml"
    file.write_text("version: 1\ndefault:\n  maxSlices: several\n")
    async with control_plane(kubeconfig(server, tmp_path), tmp_path, "--sharing", str(file)) as running:
        assert await running.ended() != 0
        said = running.log.read_text()
    assert "sharing.yaml: line 3: maxSlices is 'several'; write a number" in said
    assert "Traceback" not in said
