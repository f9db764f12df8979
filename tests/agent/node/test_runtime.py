"""How the node's container runtime hands out cards."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fractile.agent.node.runtime import REASON, RuntimeCheck, Setup, read, sentence
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.units import NodeName
from tests.fakes.apiserver import FakeApiServer, Fault

CONTAINERD_2 = """
version = 2
imports = ["/etc/containerd/conf.d/*.toml"]
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "runc"
"""
CONTAINERD_3 = """
version = 3
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "nvidia"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
"""
NVIDIA = """
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false
[nvidia-container-runtime]
mode = "legacy"
"""
REFUSED = "accept-nvidia-visible-devices-envvar-when-unprivileged = false\n"
ETC_NVIDIA = "etc/nvidia-container-runtime/config.toml"


def host(folder: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("version", "files", "expected"),
    [
        pytest.param("containerd://2.1.4", {}, Setup("containerd"), id="nothing can be read"),
        pytest.param("", {"etc/containerd/config.toml": CONTAINERD_3}, Setup(), id="no version"),
        pytest.param("firecracker://1", {}, Setup(), id="another runtime"),
        pytest.param(
            "containerd://2.1.4",
            {"etc/containerd/config.toml": CONTAINERD_3, ETC_NVIDIA: NVIDIA},
            Setup("containerd", "default", "accepted", "legacy"),
            id="containerd 2, NVIDIA's runtime the default",
        ),
        pytest.param(
            "containerd://1.7.0",
            {"etc/containerd/config.toml": CONTAINERD_2, ETC_NVIDIA: REFUSED},
            Setup("containerd", "not-default", "refused", "auto"),
            id="containerd 1, the variable refused",
        ),
        pytest.param(
            "containerd://1.7.0",
            {
                "etc/containerd/config.toml": CONTAINERD_2,
                "etc/containerd/conf.d/99-nvidia.toml": CONTAINERD_3,
                "usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml": NVIDIA,
            },
            Setup("containerd", "default", "accepted", "legacy"),
            id="a file of NVIDIA's operator, imported",
        ),
        pytest.param(
            "containerd://1.7.0", {"etc/containerd/config.toml": "version = ["}, Setup("containerd"), id="no TOML"
        ),
        pytest.param(
            "containerd://1.7.0",
            {"etc/containerd/config.toml": "version = 2\n"},
            Setup("containerd", "not-default"),
            id="containerd says nothing: runc",
        ),
        pytest.param(
            "cri-o://1.31",
            {"etc/crio/crio.conf.d/99-nvidia.conf": '[crio.runtime]\ndefault_runtime = "nvidia"\n'},
            Setup("cri-o", "default"),
            id="CRI-O",
        ),
        pytest.param(
            "docker://27",
            {"etc/docker/daemon.json": '{"default-runtime": "nvidia"}'},
            Setup("docker", "default"),
            id="Docker",
        ),
    ],
)
def test_what_the_files_say(tmp_path: Path, version: str, files: dict[str, str], expected: Setup) -> None:
    assert read(host(tmp_path, files), version) == expected


def test_where_an_image_could_take_all_cards_it_is_a_warning_with_what_to_do() -> None:
    matters, text = sentence(Setup("containerd", "default", "accepted", "legacy"))
    assert matters
    assert "sees all cards" in text
    assert "RuntimeClass" in text


def test_where_our_own_pods_would_see_no_card_it_is_a_warning_too() -> None:
    matters, text = sentence(Setup("containerd", "default", "refused", "auto"))
    assert matters
    assert "will see none" in text


@pytest.mark.parametrize(
    ("setup", "says", "open_question"),
    [
        pytest.param(
            Setup("docker", "unknown", "accepted", "auto"),
            "could not read /etc/docker/daemon.json; ",
            True,
            id="docker",
        ),
        pytest.param(Setup(), "the agent supports only containerd, CRI-O and Docker", True, id="another runtime"),
        pytest.param(
            Setup("containerd", "default"),
            "(the agent could not read /usr/local/nvidia/toolkit/.config/nvidia-container-runtime/config.toml or "
            "/etc/nvidia-container-runtime/config.toml)",
            True,
            id="NVIDIA's file",
        ),
        pytest.param(
            Setup("containerd", "not-default"), "NVIDIA's runtime is not its default", False, id="runc the default"
        ),
    ],
)
def test_what_is_unknown_has_its_cause_and_what_follows(setup: Setup, says: str, open_question: bool) -> None:
    matters, text = sentence(setup)
    assert not matters
    assert says in text
    assert ("it is not known whether a container gets all cards" in text) is open_question
    assert ("docs/operate/security.md, How a node hands out cards" in text) is open_question
    assert len(text) <= 1024, "what an event holds"


async def said(files: dict[str, str], folder: Path, **more: Any) -> tuple[Setup, list[dict[str, Any]]]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        server.create(paths.nodes(), {"metadata": {"name": "n1"}})
        info = {"nodeInfo": {"containerRuntimeVersion": "containerd://2.1.4"}}
        server.merge(f"{paths.node(NodeName('n1'))}/status", {"status": info})
        server.inject(Fault(method="GET", path="/nodes/n1", times=1, status=403))
        events = EventRecorder(client, "test")
        running = asyncio.create_task(events.run())
        try:
            check = RuntimeCheck(
                client,
                events,
                node=NodeName("n1"),
                host=host(folder, files),
                sleep=lambda seconds: asyncio.sleep(0),
                **more,
            )
            await check.run()
            await events.flush(5)
            return check.setup, server.all("/api/v1/events")
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_the_node_gets_one_event(tmp_path: Path) -> None:
    setup, (event,) = await said({"etc/containerd/config.toml": CONTAINERD_3, ETC_NVIDIA: NVIDIA}, tmp_path)
    assert setup == Setup("containerd", "default", "accepted", "legacy")
    assert (event["reason"], event["type"], event["involvedObject"]["kind"]) == (REASON, "Warning", "Node")


async def test_what_is_unknown_is_said_and_is_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    setup, (event,) = await said({}, tmp_path)
    assert setup == Setup("containerd")
    assert event["type"] == "Normal"
    assert event["message"].startswith(
        "the node's container runtime is containerd; whether NVIDIA's runtime is its default is not known: the agent "
        "could not read /etc/containerd/config.toml, "
    )
    assert event["message"] in [r.getMessage() for r in caplog.records], "the log says the same, and no more"


async def test_with_simulated_cards_nobody_is_warned(tmp_path: Path) -> None:
    files = {"etc/containerd/config.toml": CONTAINERD_3, ETC_NVIDIA: NVIDIA}
    _, (event,) = await said(files, tmp_path, real=False)
    assert event["type"] == "Normal"
