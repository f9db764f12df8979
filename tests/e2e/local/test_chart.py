"""The chart on a real cluster: installed, upgraded, rolled back and removed under a GPU pod that runs all the while.

It has a cluster of its own and takes two minutes, so it runs on request: `make test-chart`.
"""

import base64
import json
import os
import shutil
import ssl
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from fractile.lab.cluster import chart, nodeimages
from fractile.lab.cluster.chart import Helm
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.up import UpOptions
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.lab.layout import locked
from fractile.lab.machine import images, mounts
from fractile.lab.machine.programs import Programs
from fractile.wire.output import node_usage
from fractile.wire.output.node_usage import ClusterUsage
from tests.main.process import free_port

PROGRAM = "from fractile.main.cli import main; main()"
NAME = "e2e-chart"
SYSTEM = ("-n", chart.NAMESPACE)
NEXT = "next"
NO_AGENT_ANSWERED = 1  # exit status of `fractile top`

pytestmark = [
    pytest.mark.skipif("FRACTILE_TEST_CHART" not in os.environ, reason="the chart's own cluster: make test-chart"),
    pytest.mark.timeout(600),  # the image may have to be built first
]


@pytest.fixture(scope="module")
def installed() -> Generator[LocalCluster]:
    found = LocalCluster(NAME)
    found.down()
    try:
        found.up(UpOptions(spec=from_options(NAME, nodes=2), chart=True))
        yield found
    finally:
        found.down()


SECOND = "fractile-scheduler"
SECOND_IMAGE = "fractile.dev/kube-scheduler:1"


def test_the_second_kube_scheduler_places_the_gpu_pods_that_the_webhook_gives_it(
    installed: LocalCluster, tmp_path: Path
) -> None:
    """Its image is made of the cluster's own program; the extender is at the port that stands for the Service."""
    work = DemoWorkload(installed.kubectl, "e2e-chart-second")
    work.create_namespace()
    place, state = installed.place, installed.state
    archive = tmp_path / "kube-scheduler.tar"
    archive.write_bytes(images.program_archive(SECOND_IMAGE, Path(Programs.at(state.programs)["kube-scheduler"])))
    nodeimages.import_archive(place, state.nodes[0].index, archive)
    plain = chart.values(place, state)
    values = json.loads(json.dumps(plain))
    values["webhook"]["scheduler"] = SECOND
    values["scheduler"] = {
        "enabled": True,
        "image": SECOND_IMAGE,
        "hostNetwork": True,
        "port": free_port(),
        "extender": f"https://127.0.0.1:{state.ports.control_plane}",
        "nodeSelector": {"kubernetes.io/hostname": state.nodes[0].name},
    }
    helm = Helm(place)
    helm.upgrade(values)
    try:
        ready = ("get", "deployment", SECOND, "-o", "jsonpath={.status.readyReplicas}")
        work.wait_until(90, "the second kube-scheduler", lambda: installed.kubectl(*SYSTEM, *ready).strip() == "1")
        work.wait_until(90, "the control plane", lambda: installed.process("control-plane") is not None)
        work.wait_until(60, "the webhook to name it", lambda: scheduler_of_a_gpu_pod(installed) == SECOND)
        work.apply([w.pod("gpu", w.container(memory=2000)), w.pod("plain", w.container())])
        pods = work.wait_running("gpu", "plain", seconds=90)
        assert w.placement_of(pods["gpu"]).containers[0].slices[0].memory == 2000
        assert [scheduled_by(work, name) for name in ("gpu", "plain")] == [SECOND, "default-scheduler"]
        work.apply([w.pod("huge", w.container(memory=20_000))])
        assert "20000 MiB requested on one card, the largest card here has 16276 MiB" in work.wait_refused("huge")
    finally:
        work.delete(wait=120)
        helm.upgrade(plain)
    work.wait_until(60, "it to be gone", lambda: SECOND not in installed.kubectl(*SYSTEM, "get", "pods", "-o", "name"))
    work.wait_until(90, "the control plane", lambda: installed.process("control-plane") is not None)


def scheduler_of_a_gpu_pod(cluster: LocalCluster) -> str:
    pod = json.dumps(w.pod("asked", w.container(memory=100)))
    made = cluster.kubectl("-n", "default", "create", "--dry-run=server", "-f", "-", "-o", "json", stdin=pod)
    return json.loads(made)["spec"]["schedulerName"]


def scheduled_by(work: DemoWorkload, name: str) -> str:
    """Who said so in its event."""
    (said,) = [
        e["source"].get("component") or e["reportingComponent"] for e in work.events(name) if e["reason"] == "Scheduled"
    ]
    return said


def test_agents_answer_over_tls_with_the_certificate_that_the_chart_makes_and_keeps(
    installed: LocalCluster, tmp_path: Path
) -> None:
    values = chart.values(installed.place, installed.state)
    helm = Helm(installed.place)
    encrypted = {**values, "agent": {**values["agent"], "tls": {"mode": "generated"}}}
    helm.upgrade(encrypted)
    try:
        wait_agents(installed)
        ca = tmp_path / "agents.pem"
        ca.write_bytes(authority_of_agents(installed))
        said = top(installed, f"--ca={ca}")
        assert ([n.node for n in said.nodes], said.unanswered) == (installed.nodes, ())
        strange = top(installed, f"--ca={installed.place.authority}", status=NO_AGENT_ANSWERED)
        assert ([u.node for u in strange.unanswered], strange.nodes) == (installed.nodes, ())
        assert "give --ca" in top(installed, status=NO_AGENT_ANSWERED).unanswered[0].reason

        helm.upgrade({**encrypted, "sharing": {"default": {"maxSlices": 5}}})
        assert authority_of_agents(installed) == ca.read_bytes()
    finally:
        helm.upgrade(values)
        wait_agents(installed)
    assert [n.node for n in top(installed).nodes] == installed.nodes


def wait_agents(cluster: LocalCluster) -> None:
    """Until all of them run as the release says now, and are ready: kubelet asks their page, too."""
    cluster.kubectl(*SYSTEM, "rollout", "status", "daemonset/fractile-agent", "--timeout=110s")


def authority_of_agents(cluster: LocalCluster) -> bytes:
    path = r"jsonpath={.data.ca\.crt}"
    return base64.b64decode(cluster.kubectl(*SYSTEM, "get", "secret", "fractile-agent-tls", "-o", path))


def top(cluster: LocalCluster, *args: str, status: int = 0) -> ClusterUsage:
    argv = [sys.executable, "-c", PROGRAM, "top", "--name", cluster.name, "-o", "json", *args]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stderr
    return node_usage.decode_cluster(done.stdout)


def test_the_extender_in_its_pod_answers_kube_scheduler_alone(installed: LocalCluster) -> None:
    installed_as = chart.values(installed.place, installed.state)["controlPlane"]
    assert installed_as["clients"] == {"configMap": "kube-root-ca.crt"}
    pki = installed.place.authority.parent
    assert filter_status(installed, None) == 403
    assert filter_status(installed, pki / "admin") == 403  # the authority signs for others, too
    assert filter_status(installed, pki / "kube-scheduler") == 200


def filter_status(cluster: LocalCluster, pair: Path | None) -> int:
    """What the leader answers to a filter of no node, for whoever has that certificate."""
    trust = ssl.create_default_context(cafile=str(cluster.place.authority))
    if pair is not None:
        trust.load_cert_chain(pair.with_suffix(".crt"), pair.with_suffix(".key"))
    body: dict[str, object] = {"Pod": w.pod("asked", w.container(memory=100)), "NodeNames": list[str]()}
    with httpx2.Client(verify=trust, trust_env=False, timeout=30) as http:
        url = f"https://127.0.0.1:{cluster.state.ports.control_plane}/scheduler/filter"
        return http.post(url, json=body).status_code


def test_a_gpu_pod_runs_through_upgrade_rollback_and_removal(installed: LocalCluster, tmp_path: Path) -> None:
    work = DemoWorkload(installed.kubectl, "e2e-chart")
    work.create_namespace()
    work.apply([w.pod("keeps", w.container(memory=2000))])
    before = work.wait_running("keeps", seconds=90)["keeps"]
    assert w.placement_of(before).containers[0].slices[0].memory == 2000

    assert complaints(installed) == []

    # 1. Another version: another image, another chart.
    values = chart.values(installed.place, installed.state)
    newer = json.loads(json.dumps(values))
    newer["image"]["tag"] = NEXT
    for node in installed.state.nodes:
        tag(installed, node.index)
    helm = Helm(installed.place)
    helm.upgrade(newer, chart=another_version(tmp_path))
    wait_images(work, installed, NEXT)
    work.apply([w.pod("newer", w.container(memory=1000))])
    work.wait_running("newer", seconds=90)

    # 2. And back.
    helm.rollback()
    wait_images(work, installed, values["image"]["tag"])
    work.apply([w.pod("older", w.container(memory=1000))])
    work.wait_running("older", seconds=90)
    assert restarts(work) == {"keeps": 0, "newer": 0, "older": 0}

    # 3. Gone, but for what the notes say; what runs goes on.
    with locked(installed.place):
        helm.uninstall()
    deadline = time.monotonic() + 60
    while not EXPECTED <= (there := left(installed)) <= EXPECTED | MADE_ANEW:
        assert time.monotonic() < deadline, f"left over: {there - EXPECTED}; gone: {EXPECTED - there}"
        time.sleep(1)
    assert restarts(work) == {"keeps": 0, "newer": 0, "older": 0}


# Of kinds that do not go with a namespace, and what helm did not make.
EXPECTED = {
    "customresourcedefinition.apiextensions.k8s.io/extendedresources.fractile.dev",
    "customresourcedefinition.apiextensions.k8s.io/resourceclasses.fractile.dev",
    f"secret/{chart.SECRET}",
}
# What a program writes that has not ended yet.
MADE_ANEW = {"lease.coordination.k8s.io/fractile-control-plane", "secret/fractile-webhook"}
KINDS = (
    "clusterroles,clusterrolebindings,priorityclasses,customresourcedefinitions,mutatingwebhookconfigurations,"
    "validatingwebhookconfigurations,validatingadmissionpolicies,validatingadmissionpolicybindings"
)
NAMESPACED = "all,secrets,configmaps,serviceaccounts,roles,rolebindings,networkpolicies,leases,poddisruptionbudgets"


def left(cluster: LocalCluster) -> set[str]:
    """What of ours is there, by name."""
    names = cluster.kubectl("get", KINDS, "-o", "name").split()
    names += cluster.kubectl(*SYSTEM, "get", NAMESPACED, "-o", "name").split()
    return {n for n in names if "fractile" in n}


def complaints(cluster: LocalCluster) -> list[str]:
    """Lines of control plane and agents about rights that they lack, in the cluster or in their file system."""
    lines = [
        line
        for name in ("control-plane", *(f"{n}/agent" for n in cluster.nodes))
        for line in cluster.log(name).read_text().splitlines()
    ]
    return [x for x in lines if any(word in x for word in ("forbidden", "Permission denied", "Read-only file system"))]


def another_version(folder: Path) -> Path:
    copy = folder / "fractile"
    shutil.copytree(chart.folder(), copy)
    file = copy / "Chart.yaml"
    file.write_text(file.read_text().replace("version: 0.1.0\nappVersion: 0.1.0", "version: 0.1.1\nappVersion: 0.1.1"))
    return copy


def tag(cluster: LocalCluster, index: int) -> None:
    """The image of a later version: the same under another name, as the next build is not there yet."""
    repository = cluster.state.image.rpartition(":")[0]
    nodeimages.tag_image(cluster.place, index, cluster.state.image, f"{repository}:{NEXT}")
    assert mounts.is_pinned(cluster.place.pin(index))


def wait_images(work: DemoWorkload, cluster: LocalCluster, tagged: str) -> None:
    """Until all of our pods run that image, one replica leads, and both agents serve."""

    def there() -> bool:
        listed: list[Any] = json.loads(cluster.kubectl(*SYSTEM, "get", "pods", "-o", "json"))["items"]
        images = {c["image"].rpartition(":")[2] for p in listed for c in p["spec"]["containers"]}
        ready = [
            p
            for p in listed
            if any(c["type"] == "Ready" and c["status"] == "True" for c in p["status"].get("conditions", ()))
        ]
        going = [p for p in listed if p["metadata"].get("deletionTimestamp")]
        return images == {tagged} and len(listed) == 4 and len(ready) == 3 and not going

    work.wait_until(120, f"all pods to run {tagged}", there)


def restarts(work: DemoWorkload) -> dict[str, int]:
    return {name: pod["status"]["containerStatuses"][0]["restartCount"] for name, pod in work.pods().items()}
