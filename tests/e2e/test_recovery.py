"""Recovery on the real cluster: what the node forgets or loses costs no running container, and new pods start right.

What needs no real kubelet is at the level of the agent: tests/agent/test_kills.py, test_alone.py, test_path.py and
tests/property/test_identity_machine.py. A node that restarts is played there as well: the kernel of this one cannot.
"""

import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.cluster import demos
from fractile.cluster import workload as w
from fractile.cluster.local import LocalCluster
from fractile.cluster.stage import LocalStage
from fractile.cluster.workload import Manifest, Workload
from fractile.wire.kubelet_checkpoint import FILE_NAME

NODE = "n1"
SIZE = 3000


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[Workload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = Workload(cluster.kubectl, "e2e-recovery")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def start(work: Workload, *names: str) -> dict[str, Manifest]:
    work.apply([w.pod(name, w.container(memory=SIZE), nodes=[NODE]) for name in names])
    return dict(work.wait_running(*names, seconds=90))


def restarts(work: Workload, name: str) -> int:
    return work.pods()[name]["status"]["containerStatuses"][0]["restartCount"]


def registrations(cluster: LocalCluster) -> int:
    return cluster.log(f"{NODE}/agent").read_text().count("registered resource=aliyun.com/gpu-mem socket")


def slices(cluster: LocalCluster) -> Path:
    """The token directories of the node's agent."""
    state = next(a for a in _agent(cluster) if a.startswith("--state-dir="))
    return Path(state.partition("=")[2]) / "slices"


def _agent(cluster: LocalCluster) -> list[str]:
    process = cluster.process(f"{NODE}/agent")
    assert process is not None
    return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")


def test_a_kubelet_without_its_record_leaves_running_containers_and_double_books_nothing(
    cluster: LocalCluster, work: Workload
) -> None:
    start(work, "before")
    earlier = registrations(cluster)
    cluster.kill(f"{NODE}/kubelet")
    (cluster.kubelet_folder(NODE) / "device-plugins" / FILE_NAME).unlink()
    cluster.start(f"{NODE}/kubelet")
    work.wait_until(30, "the agent to be registered again", lambda: registrations(cluster) > earlier)
    pods = start(work, "after")
    assert restarts(work, "before") == 0
    both = {"before": work.pods()["before"], "after": pods["after"]}
    held = [s for pod in both.values() for c in w.placement_of(pod).containers for s in c.slices]
    assert all(sum(s.memory for s in held if s.card == one.card) <= 16_276 for one in held)
    for name in both:
        assert "gpu-mem" in str(both[name]["spec"])
        seen = work.environment(name, "main")
        assert seen["NVIDIA_VISIBLE_DEVICES"] == w.placement_of(both[name]).containers[0].slices[0].card


def test_an_agent_without_its_journal_leaves_running_containers_and_serves_new_ones(
    cluster: LocalCluster, work: Workload
) -> None:
    start(work, "before")
    folder = slices(cluster)
    assert list(folder.iterdir())
    cluster.kill(f"{NODE}/agent")
    shutil.rmtree(folder)
    earlier = registrations(cluster)
    cluster.start(f"{NODE}/agent")
    work.wait_until(30, "the agent to be registered again", lambda: registrations(cluster) > earlier)
    pods = start(work, "after")
    assert restarts(work, "before") == 0
    both = {"before": work.pods()["before"], "after": pods["after"]}
    demos.check_kubelet_record(LocalStage(cluster), work.namespace, both)
