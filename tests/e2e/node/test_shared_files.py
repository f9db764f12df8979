"""On a real node: the one file that a container may write takes no disk, runs nowhere, and outlives the agent."""

import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos.workload import DemoWorkload
from fractile.lab.machine import mounts
from tests.e2e.node.test_limits import probe, renew_agent, tenant

pytestmark = pytest.mark.long

AT = "n1"
REGION = "/etc/fractile/shared/region"
HOSTILE = f"""
dd if=/dev/zero of={REGION} bs=1M seek=1 count=64 conv=notrunc 2>&1 | grep -o 'No space left'
cat /bin/true >{REGION}.program 2>&1 | grep -o 'Read-only file system'
chmod 4755 {REGION} && {REGION} 2>&1 | grep -o 'Permission denied'
"""


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-shared-files")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def mounted(cluster: LocalCluster) -> list[str]:
    """The regions that are mounted on the node, by the namespace of its kubelet's containers."""
    pin = cluster.place.pin(cluster.state.node(AT).index)
    lines = cluster_mounts(pin)
    return [line for line in lines if line.startswith(mounts.AGENT) and line.endswith("/shared/region")]


def cluster_mounts(pin: Path) -> list[str]:
    said = subprocess.run(
        [*mounts.enter(pin), "cat", "/proc/self/mountinfo"], check=True, capture_output=True, text=True
    )
    return [line.split()[4] for line in said.stdout.splitlines()]


def sh(cluster: LocalCluster, work: DemoWorkload, pod: str, script: str) -> str:
    try:
        return cluster.kubectl("-n", work.namespace, "exec", pod, "--", "sh", "-c", f"{script}\ntrue")
    except KubectlFailed as e:
        return str(e)


def test_it_cannot_grow_runs_nothing_outlives_the_agent_and_goes_with_its_pod(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    before = len(mounted(cluster))
    work.apply([tenant("one", 1024, at=AT)])
    work.wait_running("one", seconds=90)
    assert len(mounted(cluster)) == before + 1
    said = sh(cluster, work, "one", HOSTILE)
    assert "No space left" in said, said
    assert "Permission denied" in said, said
    total = probe(work, cluster, "one", "info")["total"]
    renew_agent(cluster, AT)
    assert probe(work, cluster, "one", "info")["total"] == total
    assert len(mounted(cluster)) == before + 1
