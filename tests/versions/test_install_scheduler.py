"""``fractile install-scheduler`` and the real kube-scheduler, which a played kubelet runs as the manifest says.

Versions as in test_versions. The manifest is kubeadm's, but for the port, an API server that speaks JSON only, and the
leader election, which that one does not serve.
"""

import asyncio
import os
import shutil
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fractile.cli.install_scheduler import command
from fractile.kube import paths
from fractile.wire.foreign import static_pod
from tests.fakes.apiserver import FakeApiServer
from tests.versions import extender, kubelet, scheduler
from tests.versions.test_versions import MINORS, ids, program
from tests.wire.golden_files import golden

OPEN = "--insecure-open-extender"

MANIFESTS = (20, 22, 24, 28, 31, 33, 36)


def node(root: Path, minor: int, server: FakeApiServer) -> kubelet.Node:
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("a mount namespace needs root and unshare (util-linux)")
    found = kubelet.Node(root, program(minor))
    found.manifest.parent.mkdir(parents=True)
    found.manifest.write_text(_manifest(minor))
    server.write_kubeconfig(root / "etc/kubernetes/scheduler.conf")
    (root / "proc").symlink_to("/proc")
    return found


def _manifest(minor: int) -> str:
    nearest = max(known for known in MANIFESTS if known <= minor)
    text = golden(f"kubeadm-kube-scheduler-1.{nearest}.yaml").decode()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    own = f"    - --leader-elect=false\n    - --secure-port={port}\n    - --kube-api-content-type=application/json\n"
    text = text.replace("    - --leader-elect=true\n", own)
    # An image that does not say its version, so that another one can be claimed.
    return text.replace(text[text.index("image: ") : text.index("\n", text.index("image: "))], "image: own:latest")


async def run(root: Path, *args: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, command, ["--root", str(root), *args])


@pytest.mark.parametrize("minor", MINORS, ids=ids)
async def test_it_asks_the_extender_a_wrong_change_is_taken_back_and_undone_it_is_as_before(
    minor: int, tmp_path: Path
) -> None:
    root = tmp_path / "node"
    async with FakeApiServer() as server, extender.listening(server, tmp_path) as (url, ca, asked):
        played = node(root, minor, server)
        before = played.manifest.read_text()
        async with kubelet.running(played):
            good = await run(root, "--extender", url, "--tls-ca", str(ca), OPEN, "--kubernetes", f"1.{minor}")
            assert good.exit_code == 0, good.output or good.exception
            assert "and is healthy" in good.stdout
            installed = played.manifest.read_text()
            await scheduler.fill(server)
            await _bound(server)
            assert len(asked.bodies["bind"]) == scheduler.PACKAGED

            wrong = "1.36" if minor < 24 else "1.20"  # whose configuration this version does not know
            bad = await run(
                root, "--policy", "most-allocated", "--form", "config", "--kubernetes", wrong, "--wait", "8"
            )
            assert "it was started" in str(bad.exception)
            assert "no kind" in str(bad.exception)  # of its log
            assert "kube-scheduler is healthy again" in str(bad.exception)
            assert played.manifest.read_text() == installed

            undone = await run(root, "--undo", "--wait", "0")
            assert undone.exit_code == 0
            assert static_pod.read(played.manifest.read_text()).ours == ""
    assert played.manifest.read_text() == before
    assert sorted(path.name for path in (root / "etc/kubernetes").iterdir()) == ["manifests", "scheduler.conf"]


async def _bound(server: FakeApiServer) -> None:
    deadline = asyncio.get_running_loop().time() + 60
    while not all(pod["spec"].get("nodeName") for pod in server.all(paths.pods())):
        assert asyncio.get_running_loop().time() < deadline, "pods wait"
        await asyncio.sleep(0.1)
