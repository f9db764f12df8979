"""The class controllers in the program ``fractile control-plane``: its process against a fake API server."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from fractile.classes.nodes import NodeWithTaints
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone
from fractile.main.term.classes import ClassLoops
from fractile.model.units import NodeName
from fractile.reconcile.faults import Faults
from fractile.wire.fractile.resource_class import resource_name
from tests.builders import cluster
from tests.classes.class_world import class_object, gpu, labels, node, resource
from tests.fakes.apiserver import FakeApiServer
from tests.main.process import PROGRAM, control_plane, free_port


def fill(server: FakeApiServer) -> None:
    server.create(paths.nodes(), node("n1"))
    for index in (0, 1):
        server.create(paths.extended_resources(), resource(gpu("n1", index, model="NVIDIA Tesla K80")))
    body: dict[str, Any] = msgspec.to_builtins(class_object("part", labels(model="NVIDIA Tesla K80"), memory="4Gi"))
    body["metadata"] = {"name": "part"}
    server.create(paths.resource_classes(), body)


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait until it holds; twenty seconds at most."""
    async with asyncio.timeout(20):
        while True:
            if condition():
                return
            await asyncio.sleep(0.05)


async def reached(server: FakeApiServer, wanted: dict[str, str]) -> None:
    """The node says that it has these units."""

    def says() -> bool:
        said = server.get(paths.node("n1"))["status"]["capacity"]
        return all(said.get(resource_name(name)) == units for name, units in wanted.items())

    await eventually(says)


def units(server: FakeApiServer, name: str) -> dict[str, int]:
    return server.get(paths.resource_class(name)).get("status", {}).get("units", {})


async def test_statuses_capacities_and_default_classes_are_kept_up(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        fill(server)
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        options = ("--default-classes", "{vendor}.{model}")
        async with control_plane(kubeconfig, tmp_path, *options) as running:
            await running.ready()
            await reached(server, {"part": "8", "nvidia.tesla.k80": "2"})
            server.merge(f"{paths.node('n1')}/status", {"status": {"capacity": {resource_name("part"): "0"}}})
            await reached(server, {"part": "8"})
            await eventually(lambda: units(server, "part") == {"total": 8, "free": 8})
            written = len(server.writes())
            await asyncio.sleep(5)
            assert server.writes()[written:] == []


async def test_two_programs_at_one_server_come_to_rest(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        fill(server)
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        async with control_plane(kubeconfig, tmp_path) as first, control_plane(kubeconfig, tmp_path) as second:
            await first.ready()
            await second.ready()
            await reached(server, {"part": "8"})
            await asyncio.sleep(5)
            written = len(server.writes())
            await asyncio.sleep(5)
            assert server.writes()[written:] == []
            assert written <= 9  # two for each of three objects; seven were seen once, at a load of 28, unexplained


async def test_a_template_of_which_no_name_can_come_ends_the_program_with_a_sentence(tmp_path: Path) -> None:
    async with FakeApiServer() as server:
        kubeconfig = server.write_kubeconfig(tmp_path / "kubeconfig")
        options = ("--kubeconfig", str(kubeconfig), "--listen", f"127.0.0.1:{free_port()}")
        command = ("control-plane", *options, "--default-classes", "{serial}")
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", PROGRAM, *command], capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 1
        assert "fractile: --default-classes '{serial}' must contain {model}" in done.stderr


async def test_a_node_that_brings_out_an_error_of_ours_is_shown_to_the_others_and_hides_no_other_node() -> None:
    def broken(about: NodeWithTaints | Gone) -> None:
        if (about.name if isinstance(about, Gone) else about.metadata.name) == "n1":
            raise RecursionError("too deep")

    shown, gone, faults = list[str](), list[str](), Faults()
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        for name in ("n1", "n2"):
            server.create(paths.nodes(), node(name))
        watched = ClassLoops(
            cluster({}),
            client,
            node_changed=(broken, lambda node: shown.append(node.metadata.name)),
            node_gone=(broken, lambda node: gone.append(node.name)),
            faults=faults,
        )
        running = asyncio.create_task(watched.nodes.run())
        await eventually(lambda: len(shown) == 2)
        for name in ("n1", "n2"):
            server.delete(paths.node(NodeName(name)))
        await eventually(lambda: len(gone) == 2)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert (sorted(shown), sorted(gone), faults.counts) == (["n1", "n2"], ["n1", "n2"], {"nodes": 2})
