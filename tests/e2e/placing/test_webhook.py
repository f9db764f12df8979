"""The admission webhook on the real cluster: what people write, and what happens while it is dead."""

import json
import time
from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest

V100 = "class.fractile.dev/nvidia.tesla.v100"
GPU = "fractile.dev/gpu"
CLASSES: list[Manifest] = [
    {
        "apiVersion": "fractile.dev/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": "nvidia.tesla.v100"},
        "spec": {"selector": {"matchLabels": {"model": "Tesla-V100"}}},
    },
]


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, and a class."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-webhook")
    found.create_namespace()
    found.delete()
    found.apply(CLASSES)
    yield found
    cluster.kubectl("-n", found.namespace, "delete", "deployment,quota", "--all", "--ignore-not-found")
    found.delete(wait=120)
    cluster.kubectl("delete", "resourceclass", "nvidia.tesla.v100", "--ignore-not-found")


def asking(limits: Manifest) -> Manifest:
    made = w.container()
    made["resources"] = {"limits": limits}
    return made


def limits_of(work: DemoWorkload, name: str) -> Manifest:
    limits: Manifest = work.pods()[name]["spec"]["containers"][0]["resources"]["limits"]
    return limits


def refusal(work: DemoWorkload, pod: Manifest) -> str:
    """Why the API server does not take the pod."""
    with pytest.raises(KubectlFailed) as failed:
        work.apply([pod])
    return str(failed.value)


def known(work: DemoWorkload) -> None:
    """Wait until the webhook knows the class, which it learns from a watch."""

    def translated() -> bool:
        try:
            work.apply([w.pod("probe", asking({"nvidia.tesla.v100": "0"}))])
        except KubectlFailed:
            return False
        return True

    work.wait_until(20, "the class to be known", translated)
    work.delete("probe")


def test_a_class_is_asked_for_by_its_bare_name_in_pods_deployments_and_quotas(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    known(work)
    work.apply([w.pod("bare", asking({"nvidia.tesla.v100": "1"}))])
    assert limits_of(work, "bare") == {V100: "1", GPU: "1"}
    (placed,) = w.placement_of(work.wait_running("bare")["bare"]).containers
    assert [s.cores for s in placed.slices] == [100]
    quota: Manifest = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"nvidia.tesla.v100": "2"}},
    }
    template = w.pod("unused", asking({"nvidia.tesla.v100": "1"}))
    deployment: Manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "d"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": template["metadata"]["labels"]},
            "template": {"metadata": {"labels": template["metadata"]["labels"]}, "spec": template["spec"]},
        },
    }
    work.apply([quota, deployment])
    work.wait_until(60, "a pod of the deployment", lambda: sum(w.ready(p) for p in work.pods().values()) == 2)
    used = json.loads(cluster.kubectl("-n", work.namespace, "get", "quota", "q", "-o", "json"))["status"]["used"]
    assert used == {f"requests.{V100}": "2"}
    assert "exceeded quota: q" in refusal(work, w.pod("third", asking({"nvidia.tesla.v100": "1"})))


def test_memory_alone_means_one_card_and_nonsense_is_refused_with_a_sentence(work: DemoWorkload) -> None:
    work.apply([w.pod("hami", asking({"nvidia.com/gpumem": "1000"}))])
    assert limits_of(work, "hami")["nvidia.com/gpu"] == "1"
    work.wait_running("hami")
    both = asking({"aliyun.com/gpu-mem": "1", "nvidia.com/gpu": "1"})
    assert "use the names of one family only" in refusal(work, w.pod("both", both))
    bound = w.pod("bound", asking({GPU: "1"}))
    bound["spec"]["nodeName"] = "n1"
    assert "sets spec.nodeName to n1" in refusal(work, bound)
    seeing = asking({GPU: "1"}) | {"securityContext": {"privileged": True}}
    assert "would see all cards of its node without limits" in refusal(work, w.pod("seeing", seeing))
    forged = w.pod("forged", w.container(memory=1))
    forged["metadata"]["annotations"] = {"fractile.dev/placement": "{}"}
    assert "written by Fractile alone" in refusal(work, forged)


@pytest.mark.long
def test_while_the_webhook_is_dead_nobody_waits_and_only_pods_by_class_are_refused(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    cluster.kill("control-plane")
    try:
        for name, limits in (
            ("plain", {}),
            ("aliyun", {"aliyun.com/gpu-mem": "100"}),
            ("nvidia", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "100"}),
        ):
            began = time.monotonic()
            work.pods()
            usual = time.monotonic() - began
            work.apply([w.pod(name, asking(limits))])
            assert time.monotonic() - began < 3 + 2 * usual, (
                f"{name} waited for the whole time that the API server gives it"
            )
        by_class = w.pod("class", asking({V100: "1"}))
        assert "Fractile's admission webhook has not seen it" in refusal(work, by_class)
        bare = w.pod("bare", asking({"nvidia.tesla.v100": "1"}))
        assert "must be a standard resource type or fully qualified" in refusal(work, bare)
        work.apply([w.pod("by-hand", asking({V100: "1", GPU: "1"}))])
        work.wait_running("plain")
    finally:
        cluster.start("control-plane")
    work.wait_running("aliyun", "nvidia", "by-hand", seconds=120)
