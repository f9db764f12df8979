"""Tab completion of options that take a name of something: what it offers, and that no such option is without it."""

import asyncio
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from fractile.cli.options import debug_local
from fractile.kube import paths
from fractile.lab.cluster import state
from fractile.lab.cluster.spec import from_options
from fractile.lab.layout import layout
from fractile.main.cli import COMMANDS, cli
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.why.why_cluster import fill

ROOT = Path(__file__).parents[2]
PROGRAMS = {"control-plane", "agent", "alive", "simulated-cards", "service-proxy", "replica-proxy", "hollow-node"}
NO_NAMES = {
    ("up", "--nodes"): "a number",
    ("up", "--cards"): "a description",
    ("simulate", "--nodes"): "a file",
    ("simulate", "--pods"): "a file",
    ("plan", "--nodes"): "a file",
    ("plan", "--pods"): "a file",
    ("why", "--quota-configmap"): "a ConfigMap",
    ("quota", "--quota-configmap"): "a ConfigMap",
}
_SOMETHING = re.compile(r"node|pod|namespace|card|class", re.IGNORECASE)


def offered(*words: str) -> list[str]:
    """What the shell offers for the last word."""
    found = ShellComplete(cli, {}, "fractile", "_FRACTILE_COMPLETE").get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


async def in_thread(*words: str) -> list[str]:
    return await asyncio.to_thread(offered, *words)


def named() -> Iterator[tuple[str, click.Parameter]]:
    """Commands of a person, and their options that take a name of a node, pod, namespace, card or class."""
    for command in COMMANDS.keys() - PROGRAMS:
        for parameter in importlib.import_module(COMMANDS[command][0]).command.params:
            if isinstance(parameter.type, click.Choice) or getattr(parameter, "is_flag", False):
                continue
            said = [*parameter.opts, parameter.name or "", getattr(parameter, "metavar", None) or ""]
            if any(map(_SOMETHING.search, said)):
                yield command, parameter


def test_every_option_that_takes_the_name_of_something_completes_it() -> None:
    without = {
        (command, parameter.opts[-1])
        for command, parameter in named()
        if parameter._custom_shell_complete is None  # pyright: ignore[reportPrivateUsage]  # click has no other way
    }
    assert without == set(NO_NAMES)


@pytest.fixture
def filled(server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeApiServer:
    monkeypatch.setenv("KUBECONFIG", str(server.write_kubeconfig(tmp_path / "kubeconfig")))
    for name in ("team-a", "team-b"):
        server.create(paths.namespaces(), {"metadata": {"name": name}})
    return fill(server)


async def test_namespaces_are_completed(filled: FakeApiServer) -> None:
    for command in (("quota", "-n"), ("why", "--namespace")):
        assert await in_thread(*command, "te") == ["team-a", "team-b"]


async def test_pods_of_the_namespace_that_was_given_are_completed_by_name_alone(filled: FakeApiServer) -> None:
    filled.inject(Fault(path="/api/v1/pods", status=403, times=9))  # as for somebody who may read one namespace

    assert await in_thread("why", "-n", "default", "on") == ["on-n1", "on-n2"]
    assert await in_thread("why", "-n", "team-a", "on") == []


async def test_pods_of_the_current_namespace_are_completed_by_name_and_all_with_their_namespace(
    filled: FakeApiServer,
) -> None:
    filled.create(paths.pods("team-a"), {"metadata": {"name": "on-call", "namespace": "team-a"}})

    assert await in_thread("why", "on") == ["on-n1", "on-n2"]
    assert await in_thread("why", "team-a/") == ["team-a/on-call"]
    assert await in_thread("why", "") == ["default/on-n1", "default/on-n2", "on-n1", "on-n2", "team-a/on-call"]


async def test_somebody_who_may_read_one_namespace_gets_its_pods_without_an_option(filled: FakeApiServer) -> None:
    filled.inject(Fault(path="/api/v1/pods", status=403, times=9))

    assert await in_thread("why", "on") == ["on-n1", "on-n2"]


async def test_top_completes_nodes_with_cards(filled: FakeApiServer) -> None:
    filled.create(paths.nodes(), {"metadata": {"name": "n0-without-cards"}})

    assert await in_thread("top", "n") == ["n1", "n2", "n3"]


async def test_nothing_is_offered_where_no_cluster_answers(filled: FakeApiServer) -> None:
    filled.inject(Fault(path="", status=500, times=99))

    assert await in_thread("quota", "-n", "") == []


def test_debug_state_completes_the_nodes_of_the_local_cluster_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(debug_local, "default_clusters_dir", lambda: tmp_path)
    for name, nodes in (("fractile", 1), ("b", 3)):
        place = layout(tmp_path, name)
        spec = from_options(name, nodes=nodes)
        state.save(place, state.first(place, spec, hollow="asked for", fractile=True, programs="/bin"))

    assert offered("debug-state", "--node", "") == ["node-1"]
    assert offered("debug-state", "--name", "b", "--node", "node-") == ["node-1", "node-2", "node-3"]
    assert offered("debug-state", "--name", "b", "--node", "node-3") == ["node-3"]
    assert offered("debug-state", "--name", "none", "--node", "") == []
    assert offered("debug-state", "--name", "NO NAME", "--node", "") == []


def test_score_completes_the_pods_of_the_file_that_are_scored(tmp_path: Path) -> None:
    file = str(ROOT / "examples" / "score.yaml")
    pods = offered("score", "-f", file, "--pod", "")
    assert len(pods) > 0
    assert offered("score", "-f", file, "--pod", pods[0][:1]) == [p for p in pods if p.startswith(pods[0][:1])]
    assert offered("score", "-f", str(tmp_path / "none"), "--pod", "") == []
    assert offered("score", "-f", "-", "--pod", "") == []
    assert offered("score", "--pod", "") == []
