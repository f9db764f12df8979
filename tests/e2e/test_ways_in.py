"""How a program comes into a container with a quota, and whether the library holds it there: on a real kubelet."""

from collections.abc import Generator

import pytest

from fractile.cluster.local import KubectlFailed, LocalCluster
from fractile.cluster.workload import Workload
from tests.e2e.test_limits import MIB, probe, tenant

AT = "n1"
QUOTA = 1024


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[Workload]:
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = Workload(cluster.kubectl, "e2e-ways-in")
    found.create_namespace()
    found.delete()
    work_pods = [tenant("quota", QUOTA, at=AT)]
    found.apply(work_pods)
    found.wait_running("quota", seconds=90)
    yield found
    found.delete(wait=120)


def inside(cluster: LocalCluster, work: Workload, script: str) -> str:
    return cluster.kubectl("-n", work.namespace, "exec", "quota", "--", "sh", "-c", script)


def total(text: str) -> int:
    (line,) = [line for line in text.splitlines() if line.startswith("{")]
    return int(line.split('"total":')[1].split(",")[0].split("}")[0])


def test_a_session_by_exec_is_held_to_the_quota(cluster: LocalCluster, work: Workload) -> None:
    assert probe(work, cluster, "quota", "info")["total"] == QUOTA * MIB


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("env -i SIMGPU_DIR=$SIMGPU_DIR /bin/probe info", id="with an empty environment"),
        pytest.param("cp /bin/probe /tmp/p && chmod 4755 /tmp/p && /tmp/p info", id="setuid, as root"),
        pytest.param(
            "cp /bin/probe /tmp/s && chmod 4755 /tmp/s && busybox su nobody -s /bin/sh -c '/tmp/s info'",
            id="setuid, as another user",
        ),
        pytest.param("setsid /bin/probe info", id="in another session, as of sshd"),
        pytest.param("busybox su nobody -s /bin/sh -c '/bin/probe info'", id="after a login as another user"),
        pytest.param("unset LD_PRELOAD; LD_PRELOAD= /bin/probe info", id="with LD_PRELOAD emptied"),
    ],
)
def test_a_program_is_held_to_the_quota(cluster: LocalCluster, work: Workload, way: str) -> None:
    assert total(inside(cluster, work, way)) == QUOTA * MIB


def test_a_static_program_gets_no_driver_from_the_loader(cluster: LocalCluster, work: Workload) -> None:
    """busybox is static: nothing is preloaded into it, and it has no loader that could bring it the driver."""
    with pytest.raises(KubectlFailed):
        inside(cluster, work, "grep -q libfractile /proc/self/maps")
