"""Where the programs of a local cluster are asked what they believe."""

from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from fractile.cli.options import debug_local
from fractile.errors import SetupError
from fractile.lab.cluster import plan, state
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.state import ClusterState
from fractile.lab.layout import ClusterLayout, layout
from fractile.main.debug_page import check_token_file


@pytest.fixture
def place(tmp_path: Path) -> ClusterLayout:
    return layout(tmp_path, "a")


@pytest.fixture
def kept(place: ClusterLayout) -> ClusterState:
    made = state.first(place, from_options("a", nodes=2), hollow="asked for", fractile=True, programs="/bin")
    state.save(place, made)
    return made


def test_the_control_plane_is_started_with_the_token_that_is_shown_to_it(
    place: ClusterLayout, kept: ClusterState
) -> None:
    (one,) = plan.make(place, kept, now=datetime.now(UTC)).control_planes
    there = debug_local.control_plane(place)
    check_token_file(there.token_file)  # as the program does at its start
    assert f"--debug-token-file={there.token_file}" in one.argv
    assert there.token_file.stat().st_mode & 0o077 == 0
    assert there.url == f"https://127.0.0.1:{kept.ports.control_plane}"
    assert there.ca.read_text().startswith("-----BEGIN CERTIFICATE-----")

    before = there.token_file.read_text()
    plan.make(place, kept, now=datetime.now(UTC))
    assert there.token_file.read_text() == before


def test_an_agent_is_found_by_the_name_of_its_node(place: ClusterLayout, kept: ClusterState) -> None:
    assert debug_local.agent(place, "node-2") == place.node(1).agent / "debug.sock"
    with pytest.raises(SetupError, match="there is no node 'node-3'"):
        debug_local.agent(place, "node-3")


def test_a_control_plane_that_has_no_token_says_what_to_do(place: ClusterLayout, kept: ClusterState) -> None:
    with pytest.raises(SetupError, match="run `fractile up --name a` again"):
        debug_local.control_plane(place)
    state.save(place, msgspec.structs.replace(kept, image="fractile.dev/fractile:1"))
    with pytest.raises(SetupError, match="runs in pods, for which this command has no token"):
        debug_local.control_plane(place)
