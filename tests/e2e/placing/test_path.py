"""What a user or an administrator meets on the real cluster beyond the demonstrations: mistakes, restarts, views."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

from fractile.dialects import aliyun
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.stage import LocalStage
from fractile.lab.demos import demos
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.region import page, shared
from fractile.wire.fractile import placement


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-path")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def inspect(cluster: LocalCluster, *args: str) -> Any:
    """What `fractile inspect -o json` says."""
    program = Path(sys.executable).with_name("fractile")
    command = [str(program), "inspect", "-o", "json", "--kubeconfig", str(cluster.kubeconfig), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=dict(os.environ))
    return json.loads(done.stdout)


def card_of(pod: Manifest) -> str:
    return w.placement_of(pod).containers[0].slices[0].card


def log_of(cluster: LocalCluster) -> str:
    return cluster.log("control-plane").read_text()


def test_a_pod_that_asks_for_no_gpu_never_reaches_the_extender(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([w.pod("plain", w.container())])
    pod = work.wait_running("plain")["plain"]
    assert placement.ANNOTATION not in w.annotations(pod)
    assert f"{work.namespace}/plain" not in log_of(cluster)


def test_a_container_that_asks_in_two_families_of_names_is_told_so(work: DemoWorkload) -> None:
    both = w.container(memory=100)
    both["resources"]["limits"]["nvidia.com/gpu"] = "1"
    unseen = {"fractile.dev/webhook": "ignore"}  # by the webhook, which says so when the pod is created
    work.apply([w.pod("both", both, labels=unseen)])
    families = "container main asks for aliyun.com/gpu-mem and nvidia.com/gpu; use the names of one family only"
    assert families in work.wait_refused("both")
    mixed = w.container(memory=100, count=1)
    work.apply([w.pod("mixed", mixed, labels=unseen)])
    reason = work.wait_refused("mixed")
    assert "container main asks for both aliyun.com/gpu-mem and aliyun.com/gpu-count" in reason


def test_a_pod_larger_than_any_card_is_told_that_waiting_does_not_help(work: DemoWorkload) -> None:
    work.apply([w.pod("huge", w.container(memory=20_000))])
    reason = work.wait_refused("huge")
    assert "20000 MiB requested on one card, the largest card here has 16276 MiB" in reason
    assert "Preemption is not helpful" in reason


def test_containers_of_a_pod_use_several_cards_when_no_single_one_has_room(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    two = [w.container(name, memory=10_000) for name in ("a", "b")]
    work.apply([w.pod("two", *two, nodes=["n3"])])
    pod = work.wait_running("two")["two"]
    placed = w.placement_of(pod)
    cards = {c.container: c.slices[0].card for c in placed.containers}
    assert len(set(cards.values())) == 2
    assert w.annotations(pod)[aliyun.IDX] == "0,1"
    for name, card in cards.items():
        assert work.environment("two", name)[aliyun.VISIBLE] == card
    demos.check_kubelet_record(LocalStage(cluster), work.namespace, {"two": pod})


@pytest.mark.parametrize("user", [0, 1000])
def test_a_container_reads_its_limits_and_may_write_nothing_but_its_region(
    cluster: LocalCluster, work: DemoWorkload, user: int
) -> None:
    container = w.container(memory=4069) | {"securityContext": {"runAsUser": user}}
    work.apply([w.pod("mounts", container, nodes=["n1"])])
    pod = work.wait_running("mounts")["mounts"]

    def inside(script: str) -> str:
        return cluster.kubectl("-n", work.namespace, "exec", "mounts", "--", "sh", "-c", script)

    seen = page.decode(bytes.fromhex(inside("od -An -v -tx1 /etc/fractile/limits")))
    assert (seen.pod_uid, seen.pod, seen.container) == (pod["metadata"]["uid"], "mounts", "main")
    assert [(c.uuid, c.memory, c.context) for c in seen.cards] == [(card_of(pod), 4069 * 2**20, 256 * 2**20)]

    tried = ["/etc/fractile/limits", "/etc/fractile/ids", "/etc/fractile/new", "/etc/fractile/shared/region"]
    written = inside("".join(f"(: >>{path}) 2>/dev/null && echo {path}\n" for path in tried) + "true").split()
    assert written == ["/etc/fractile/shared/region"]
    assert int(inside("stat -c %s /etc/fractile/shared/region")) == shared.RegionShape(1).size
    header = bytes.fromhex(inside("od -An -v -tx1 -N 128 /etc/fractile/shared/region"))
    assert header == shared.header(shared.RegionShape(1), seen.generation)


def test_a_container_that_starts_again_finds_the_same_page_and_region(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([w.pod("again", w.container(memory=4069), nodes=["n1"])])
    work.wait_running("again")
    look = ("-n", work.namespace, "exec", "again", "--", "sh", "-c")
    files = "cd /etc/fractile; stat -c %i limits shared/region; md5sum limits"
    before = cluster.kubectl(*look, files)
    cluster.kubectl(*look, "(sleep 1; kill -TERM 1) </dev/null >/dev/null 2>&1 &")  # after this shell has ended well

    def restarted() -> bool:
        status = work.pods()["again"]["status"]["containerStatuses"][0]
        return status["restartCount"] == 1 and "running" in status["state"]

    work.wait_until(60, "the container to run again", restarted)
    assert cluster.kubectl(*look, files) == before


def test_inspect_counts_what_is_held_also_while_the_control_plane_is_down(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([w.pod("held", w.container(memory=5000), nodes=["n2"])])
    card = card_of(work.wait_running("held")["held"])
    cluster.kill("control-plane")
    try:
        report = inspect(cluster, "n2")
    finally:
        cluster.start("control-plane")
    (node,) = report["nodes"]
    held = {c["uuid"]: c["allocatedMiB"] for c in node["cards"]}
    assert held[card] == 5000
    assert sum(held.values()) == 5000


def test_a_pod_bound_past_fractile_gets_no_card_and_an_event(cluster: LocalCluster, work: DemoWorkload) -> None:
    bypass = w.pod("bypass", w.container(memory=500))
    bypass["spec"]["schedulerName"] = "nobody"
    work.apply([bypass])
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "bypass"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n2"},
    }
    path = f"/api/v1/namespaces/{work.namespace}/pods/bypass/binding"
    cluster.kubectl("create", "--raw", path, "-f", "-", stdin=json.dumps(binding))
    for reason in ("PlacementIgnored", "Failed"):
        wait_event(work, "bypass", reason)
    assert w.phase(work.pods()["bypass"]) == "Pending"
    assert sum(c["allocatedMiB"] for c in inspect(cluster, "n2")["nodes"][0]["cards"]) == 0


@pytest.mark.long
def test_while_the_agent_is_away_new_pods_wait_and_running_ones_go_on(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([w.pod("before", w.container(memory=3000), nodes=["n1"])])
    before = work.wait_running("before")["before"]
    cluster.kill("n1/agent", signal.SIGTERM)
    work.apply([w.pod("after", w.container(memory=3000), nodes=["n1"])])
    refused = work.wait_refused("after")  # by us, or by kube-scheduler, once kubelet has noticed as well
    assert "no usable cards reported" in refused or "Insufficient aliyun.com/gpu-mem" in refused
    cluster.start("n1/agent")
    after = work.wait_running("after", seconds=60)["after"]
    assert card_of(before) == card_of(after)
    assert work.pods()["before"]["status"]["containerStatuses"][0]["restartCount"] == 0
    demos.check_kubelet_record(LocalStage(cluster), work.namespace, {"before": before, "after": after})


def test_an_agent_that_is_killed_comes_back_and_serves_new_pods(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([w.pod("before", w.container(memory=3000), nodes=["n1"])])
    before = work.wait_running("before")["before"]
    earlier = registrations(cluster, "n1")
    cluster.restart("n1/agent")
    work.wait_until(20, "the agent to be registered again", lambda: registrations(cluster, "n1") > earlier)
    work.apply([w.pod("after", w.container(memory=3000), nodes=["n1"])])
    after = work.wait_running("after", seconds=60)["after"]
    assert work.pods()["before"]["status"]["containerStatuses"][0]["restartCount"] == 0
    demos.check_kubelet_record(LocalStage(cluster), work.namespace, {"before": before, "after": after})


@pytest.mark.long
def test_pods_created_while_the_control_plane_is_down_run_when_it_is_back(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    cluster.kill("control-plane")
    work.apply([w.pod("patient", w.container(memory=1000))])
    work.wait_refused("patient")
    cluster.start("control-plane")
    work.wait_running("patient", seconds=60)


def test_a_deployment_is_packed_node_by_node(work: DemoWorkload) -> None:
    template = w.pod("x", w.container(memory=4069), nodes=["n1", "n2", "n3"], labels={"app": "packed"})
    template["metadata"].pop("name")
    for key in ("apiVersion", "kind"):
        template.pop(key)
    work.apply(
        [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "packed"},
                "spec": {
                    "replicas": 8,
                    "selector": {"matchLabels": {"app": "packed"}},
                    "template": {"metadata": template["metadata"], "spec": template["spec"]},
                },
            }
        ]
    )
    try:
        names = wait_count(work, 8)
        running = work.wait_running(*names)
        cards = sorted(card_of(p) for p in running.values())
        assert len(set(cards)) <= 3, f"8 x 4069 MiB fill two cards, they are on {len(set(cards))}"
    finally:
        work.delete_deployment("packed")


def registrations(cluster: LocalCluster, node: str) -> int:
    """How often kubelet has taken the agent's plugin for memory."""
    return cluster.log(f"{node}/agent").read_text().count("registered resource=aliyun.com/gpu-mem socket")


def wait_event(work: DemoWorkload, name: str, reason: str) -> None:
    work.wait_until(40, f"event {reason} of {name}", lambda: any(e["reason"] == reason for e in work.events(name)))


def wait_count(work: DemoWorkload, count: int) -> Sequence[str]:
    work.wait_until(30, f"{count} pods", lambda: len(work.pods()) == count)
    return list(work.pods())
