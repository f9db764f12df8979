"""``fractile install-scheduler`` where kubelet itself runs kube-scheduler, as a static pod, by kubeadm's manifest.

The cluster's own kube-scheduler is stopped meanwhile. The node gets an /etc of its own, a copy in its mount namespace,
since kubeadm's paths cannot be chosen.
"""

import shutil
import subprocess
from collections.abc import Generator
from pathlib import Path

import msgspec
import pytest
import yaml

from fractile.lab.cluster import nodeimages
from fractile.lab.cluster.controlplane import fractile_program
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.lab.machine import images, mounts
from fractile.lab.machine.programs import Programs
from fractile.wire.foreign import static_pod
from tests.e2e.conftest import not_on_chart
from tests.main.process import free_port
from tests.wire.golden_files import golden

pytestmark = [pytest.mark.long, pytest.mark.e2e, not_on_chart("the extender knows the cluster's own certificate")]

MANIFEST = golden("kubeadm-kube-scheduler-1.36.yaml").decode()  # what kubeadm 1.36.3 wrote
IMAGE = static_pod.read(MANIFEST).image
OWN = "kube-scheduler"
Done = subprocess.CompletedProcess[str]
PATIENCE = 60.0  # seconds until kubelet has started or ended a pod


class ControlPlaneNode(msgspec.Struct, frozen=True):
    """``root``: its file system, as far as install-scheduler looks at it."""

    cluster: LocalCluster
    work: DemoWorkload
    root: Path

    @property
    def manifest(self) -> Path:
        return self.root / "etc/kubernetes/manifests/kube-scheduler.yaml"

    def run(self, *args: str) -> Done:
        argv = [*fractile_program(), "install-scheduler", "--root", str(self.root), *args]
        return subprocess.run(argv, capture_output=True, text=True, timeout=400, check=False)

    def files(self) -> list[str]:
        return sorted(path.name for path in (self.root / "etc/kubernetes").iterdir())

    def runs(self) -> str:
        """Whether it is ready, of each static pod that the API server knows: "True" when one is and runs."""
        shown = "{.items[*].status.conditions[?(@.type=='Ready')].status}"
        return self.cluster.kubectl(
            "-n", "kube-system", "get", "pods", "-l", "component=kube-scheduler", "-o", f"jsonpath={shown}"
        ).strip()


@pytest.fixture
def node(cluster: LocalCluster, tmp_path: Path) -> Generator[ControlPlaneNode]:
    cluster.up()
    place, state = cluster.place, cluster.state
    there = state.nodes[0]
    work = DemoWorkload(cluster.kubectl, "e2e-install-scheduler")
    work.create_namespace()
    # 1. The node's file system as kubeadm leaves it.
    root = tmp_path / "node"
    shutil.copytree("/etc", root / "etc", symlinks=True, ignore_dangling_symlinks=True, ignore=unlike_files)
    kubernetes = root / "etc/kubernetes"
    shutil.rmtree(kubernetes, ignore_errors=True)  # of this machine
    (kubernetes / "manifests").mkdir(parents=True)
    flat = cluster.kubectl(
        "config", "view", "--flatten", "--raw", f"--kubeconfig={place.config / 'kube-scheduler.kubeconfig'}"
    )
    (kubernetes / "scheduler.conf").write_text(flat)
    (root / "proc").symlink_to("/proc")
    (root / "var").mkdir()
    (root / "var/log").symlink_to(place.node(there.index).root / "log")
    # 2. What kubelet is to run.
    archive = tmp_path / "kube-scheduler.tar"
    archive.write_bytes(images.program_archive(IMAGE, Path(Programs.at(state.programs)[OWN])))
    nodeimages.import_archive(place, there.index, archive)
    found = ControlPlaneNode(cluster, work, root)
    inside = mounts.enter(place.pin(there.index))
    subprocess.run([*inside, "mount", "--bind", str(root / "etc"), "/etc"], check=True)
    try:
        cluster.kill(OWN)
        cluster.restart(f"{there.name}/kubelet", f"--pod-manifest-path={kubernetes / 'manifests'}")
        yield found
    finally:
        found.manifest.unlink(missing_ok=True)
        work.wait_until(PATIENCE, "the static pod to end", lambda: not found.runs())
        work.delete(wait=120)
        cluster.kill(f"{there.name}/kubelet")
        subprocess.run([*inside, "umount", "--lazy", "/etc"], check=True)
        shutil.rmtree(root / "etc")  # pytest would keep this copy of the machine's own
        cluster.up()


def unlike_files(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied: sockets and the like."""
    return [
        name
        for name in names
        if not (path := Path(folder, name)).is_symlink() and not (path.is_file() or path.is_dir())
    ]


def kubeadm_manifest() -> str:
    """Kubeadm's, with a port that is free here."""
    port = free_port()
    text = MANIFEST.replace("containerPort: 10259", f"containerPort: {port}")
    return text.replace("    - --leader-elect=true\n", f"    - --leader-elect=true\n    - --secure-port={port}\n")


def test_kubelet_restarts_kube_scheduler_with_the_extender_and_undone_it_is_as_before(node: ControlPlaneNode) -> None:
    cluster, work = node.cluster, node.work
    before = kubeadm_manifest()
    node.manifest.write_text(before)
    work.wait_until(PATIENCE, "kubelet to run kube-scheduler", lambda: node.runs() == "True")
    work.apply([w.pod("plain", w.container())])
    work.wait_running("plain", seconds=PATIENCE)

    own = yaml.safe_load((cluster.place.config / "kube-scheduler.yaml").read_text())["extenders"][0]
    tls = own["tlsConfig"]
    credentials = ("--tls-ca", tls["caFile"], "--tls-cert", tls["certFile"], "--tls-key", tls["keyFile"])
    wanted = ("--extender", own["urlPrefix"], *credentials)
    shown = node.run(*wanted, "--dry-run")
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert node.manifest.read_text() == before

    hasty = node.run(*wanted, "--wait", "1")
    assert hasty.returncode == 1
    assert "kube-scheduler is healthy again" in hasty.stderr
    assert node.manifest.read_text() == before

    done = node.run(*wanted)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "and is healthy" in done.stdout
    assert static_pod.read(node.manifest.read_text()).ours
    work.apply([w.pod("gpu", w.container(memory=2000))])
    gpu = work.wait_running("gpu", seconds=PATIENCE)["gpu"]
    assert w.placement_of(gpu).containers[0].slices[0].memory == 2000
    again = node.run(*wanted)
    assert "Nothing to do" in again.stdout

    undone = node.run("--undo")
    assert undone.returncode == 0, undone.stdout + done.stderr
    assert node.manifest.read_text() == before
    assert node.files() == ["manifests", "scheduler.conf"]
    work.apply([w.pod("later", w.container())])
    work.wait_running("later", "gpu", seconds=PATIENCE)
