"""A pod's own mounts on the real cluster: refused by the API server, and by the agent where no policy was there."""

from collections.abc import Generator
from typing import Any

import pytest
import yaml

from fractile.agent.limits import fence
from fractile.lab.cluster import objects
from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from tests import mount_places

SENTENCE = "nothing may be mounted there"
POLICY = "mounts.fractile.dev"


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-fence")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def mounting(name: str, path: str) -> Manifest:
    """A pod with a part of a card, and an empty folder of its own at the path."""
    container = w.container(memory=1) | {"volumeMounts": [{"name": "mine", "mountPath": path}]}
    made = w.pod(name, container)
    made["spec"]["volumes"] = [{"name": "mine", "emptyDir": {}}]
    return made


def binding() -> dict[str, Any]:
    (found,) = (
        o
        for o in yaml.safe_load_all(objects.manifests())
        if o["kind"] == "ValidatingAdmissionPolicyBinding" and o["metadata"]["name"] == POLICY
    )
    return found


def taken(work: DemoWorkload, *pods: Manifest) -> bool:
    """False: the API server refused them, with the policy's sentence."""
    try:
        work.apply(pods)
    except KubectlFailed as e:
        if SENTENCE not in str(e):
            raise
        return False
    return True


@pytest.mark.parametrize("path", [*mount_places.OURS, "/proc/self/root/etc/ld.so.preload"])
def test_the_api_server_refuses_a_mount_over_the_library_or_its_limits(work: DemoWorkload, path: str) -> None:
    assert not taken(work, mounting("refused", path))


def test_the_agent_starts_no_container_with_such_a_mount(cluster: LocalCluster, work: DemoWorkload) -> None:
    """As before Kubernetes 1.30, or of a pod that is older than the policy."""
    pods = {
        f"at-{i}": mounting(f"at-{i}", path)
        for i, path in enumerate((*fence.OURS, "/proc/self/root/etc/ld.so.preload"))
    }
    cluster.kubectl("delete", "validatingadmissionpolicybinding", POLICY)
    try:
        work.wait_until(30, "the policy to be gone", lambda: taken(work, *pods.values()))
    finally:
        cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(binding()))
    for name in pods:
        work.wait_until(60, f"refusal of {name}", lambda n=name: any(SENTENCE in e["message"] for e in work.events(n)))
    assert all(p["status"]["phase"] == "Pending" for p in work.pods().values())
    work.delete()
    work.wait_until(30, "the policy", lambda: not taken(work, mounting("refused", "/etc")))
