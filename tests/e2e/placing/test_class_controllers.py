"""What the control plane makes of classes on the real cluster: status, capacity, default classes, lost devices."""

import json
import signal
import subprocess
import sys
from collections.abc import Generator
from typing import Any

import pytest

from fractile.dialects.aliyun import COUNT
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME
from fractile.wire.fractile.resource_class import GPU_SLOT, RESOURCE_PREFIX
from fractile.wire.output.class_report import ClassReport, decode_classes, decode_devices

MODEL = "Tesla-V100"
PART = "e2e.part"  # of all the cluster's cards
AWAY = "n3"  # the node that goes away


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty, and a class of parts of cards."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-class-controllers")
    found.create_namespace()
    found.delete()
    make_class(cluster, PART, memory="4Gi")
    try:
        yield found
    finally:
        cluster.kubectl("delete", "resourceclass", PART, "--ignore-not-found")
        found.delete(wait=120)


def make_class(cluster: LocalCluster, name: str, **spec: Any) -> None:
    body = {
        "apiVersion": "fractile.dev/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": name},
        "spec": {"selector": {"matchLabels": {"model": MODEL}}, **spec},
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    return json.loads(cluster.kubectl("get", "resourceclass", name, "-o", "json")).get("status", {})


def units(cluster: LocalCluster, node: str, name: str = PART) -> tuple[str | None, str | None]:
    """What the node says it has of the class: capacity and allocatable."""
    found = json.loads(cluster.kubectl("get", "node", node, "-o", "json"))["status"]
    resource = f"{RESOURCE_PREFIX}{name}"
    return found["capacity"].get(resource), found["allocatable"].get(resource)


def phases(cluster: LocalCluster, node: str) -> set[tuple[str, str]]:
    found = json.loads(cluster.kubectl("get", "extendedresources", "-l", f"fractile.dev/node={node}", "-o", "json"))
    return {(o["status"].get("phase", ""), o["status"].get("reason", "")) for o in found["items"]}


def used(cluster: LocalCluster, node: str, field: str = "used") -> int:
    """How many containers hold a part of the node's devices; ``departed``: those of pods that are gone."""
    found = json.loads(cluster.kubectl("get", "extendedresources", "-l", f"fractile.dev/node={node}", "-o", "json"))
    held: list[dict[str, Any] | None] = [o["status"].get(field) for o in found["items"]]
    return sum(one.get("slices", 0) for one in held if one is not None)


def fractile(cluster: LocalCluster, *args: str) -> str:
    program = "from fractile.main.cli import main; main()"
    argv = [sys.executable, "-c", program, *args, "--kubeconfig", str(cluster.kubeconfig)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


def classes(cluster: LocalCluster) -> ClassReport:
    return decode_classes(fractile(cluster, "classes", "-o", "json"))


def test_a_class_has_a_status_and_units_on_nodes_and_edits_of_both_are_set_right(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.wait_until(30, "the status", lambda: status(cluster, PART).get("units", {}).get("total", 0) > 0)
    work.wait_until(30, "the capacity", lambda: units(cluster, "n1") == ("6", "6"))  # two cards of 16,276 MiB
    (entry,) = [c for c in classes(cluster).classes if c.name == PART]
    said = status(cluster, PART)
    assert said["devices"] == {"total": entry.devices.total, "free": entry.devices.free, "unhealthy": 0}
    assert said["units"] == {"total": entry.units.total, "free": entry.units.free}
    assert {n.node: n.units.total for n in entry.nodes}["n1"] == 6
    assert PART in cluster.kubectl("get", "resourceclasses")

    forged = {"status": {"devices": {"total": 99}, "units": {"free": 99}, "reason": "Forged"}}
    cluster.kubectl("patch", "resourceclass", PART, "--subresource=status", "--type=merge", "-p", json.dumps(forged))
    zero = {"status": {"capacity": {f"{RESOURCE_PREFIX}{PART}": "0", f"{RESOURCE_PREFIX}no.such": "5"}}}
    cluster.kubectl("patch", "node", "n1", "--subresource=status", "--type=merge", "-p", json.dumps(zero))
    work.wait_until(30, "the status to be repaired", lambda: status(cluster, PART)["units"] == said["units"])
    assert status(cluster, PART)["reason"] == ""
    work.wait_until(30, "the capacity to be repaired", lambda: units(cluster, "n1") == ("6", "6"))
    work.wait_until(30, "what is no class to go", lambda: units(cluster, "n1", "no.such") == (None, None))


@pytest.mark.long
def test_capacity_outlives_a_kubelet_that_forgot_everything_and_a_deleted_class_leaves_it(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.wait_until(30, "the capacity", lambda: units(cluster, AWAY) == ("6", "6"))
    cluster.kill(f"{AWAY}/kubelet")
    # Without its record kubelet zeroes what it does not know, unless the agent's plugins are back before that.
    (cluster.kubelet_folder(AWAY) / "device-plugins" / FILE_NAME).unlink()
    cluster.start(f"{AWAY}/kubelet")
    work.wait_until(
        60,
        "kubelet",
        lambda: (
            json.loads(cluster.kubectl("get", "node", AWAY, "-o", "json"))["status"]["allocatable"].get(COUNT) == "2"
        ),
    )
    work.wait_until(60, "the capacity", lambda: units(cluster, AWAY) == ("6", "6"))
    cluster.kubectl("delete", "resourceclass", PART)
    work.wait_until(30, "the capacity to go", lambda: units(cluster, AWAY) == (None, None))


@pytest.mark.long
def test_who_runs_is_not_hurt_by_a_class_that_grows(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.wait_until(30, "the capacity", lambda: units(cluster, "n2") == ("6", "6"))
    asked = {f"{RESOURCE_PREFIX}{PART}": "1", GPU_SLOT: "1"}
    names = [f"p{i}" for i in range(4)]
    made = [w.pod(name, {**w.container(), "resources": {"limits": asked}}, nodes=["n2"]) for name in names]
    work.apply(made)
    before = work.wait_running(*names, seconds=120)
    work.wait_until(
        30, "what is free", lambda: status(cluster, PART)["units"]["free"] < status(cluster, PART)["units"]["total"]
    )
    make_class(cluster, PART, memory="12Gi")  # two units on the node, of which four are held
    work.wait_until(30, "the capacity", lambda: units(cluster, "n2") == ("4", "4"))
    cluster.restart_kubelet("n2")
    work.wait_until(60, "kubelet", lambda: units(cluster, "n2") == ("4", "4"))
    after = work.wait_running(*names, seconds=120)
    assert {n: p["metadata"]["uid"] for n, p in after.items()} == {n: p["metadata"]["uid"] for n, p in before.items()}
    assert all(c["restartCount"] == 0 for p in after.values() for c in p["status"]["containerStatuses"])
    work.delete()
    work.wait_until(30, "the capacity", lambda: units(cluster, "n2") == ("2", "2"))


@pytest.mark.long
def test_a_class_per_model_on_request_and_reports_without_a_control_plane(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    try:
        cluster.restart("control-plane", "--default-classes", "{vendor}.{model}")
        name = f"nvidia.{MODEL.lower()}"
        work.wait_until(60, "the class", lambda: name in cluster.kubectl("get", "resourceclasses", "-o", "name"))
        work.wait_until(30, "its units", lambda: units(cluster, "n1", name) == ("2", "2"))
        cluster.kubectl("delete", "resourceclass", name)
        work.wait_until(30, "the class again", lambda: name in cluster.kubectl("get", "resourceclasses", "-o", "name"))
        cluster.kill("control-plane")
        assert name in [c.name for c in classes(cluster).classes]
        found = decode_devices(fractile(cluster, "devices", "--class", name, "--node", "n4", "-o", "json"))
        assert [(d.node, d.index, d.phase) for d in found.devices] == [("n4", i, "Available") for i in range(4)]
        cluster.kubectl("delete", "resourceclass", name)
    finally:
        cluster.restart("control-plane")


@pytest.mark.long
def test_devices_of_a_node_that_goes_away_are_lost_until_it_is_back(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.wait_until(30, "the devices", lambda: phases(cluster, AWAY) == {("Available", "")})
    work.wait_until(30, "the capacity", lambda: units(cluster, AWAY) == ("6", "6"))
    work.wait_until(30, "the status", lambda: "devices" in status(cluster, PART))
    total = status(cluster, PART)["devices"]["total"]
    work.apply([w.pod("there", w.container(memory=1024), nodes=[AWAY])])
    work.wait_running("there")
    work.wait_until(30, "who holds it to be said", lambda: used(cluster, AWAY) == 1)
    cluster.kill(f"{AWAY}/kubelet", signal.SIGSTOP)
    try:
        work.wait_until(150, "the devices to be lost", lambda: phases(cluster, AWAY) == {("Lost", "NodeLost")})
        work.wait_until(30, "the status", lambda: status(cluster, PART)["devices"].get("unhealthy") == 2)
        assert status(cluster, PART)["devices"]["total"] == total
        work.wait_until(30, "the capacity to go", lambda: units(cluster, AWAY) == (None, None))
        # The agent lives: it says what its cards hold, and leaves it to the control plane that they are lost.
        cluster.kubectl("-n", work.namespace, "delete", "pod", "there", "--grace-period=0", "--force", "--wait=false")
        # Nobody ends the container, so what it was given is not free, although its pod is gone.
        work.wait_until(30, "the deleted pod to be named", lambda: used(cluster, AWAY, "departed") == 1)
        assert used(cluster, AWAY) == 1
        assert phases(cluster, AWAY) == {("Lost", "NodeLost")}
    finally:
        cluster.kill(f"{AWAY}/kubelet", signal.SIGCONT)
    work.wait_until(90, "the container to end", lambda: used(cluster, AWAY) == used(cluster, AWAY, "departed") == 0)
    work.wait_until(90, "the devices to return", lambda: phases(cluster, AWAY) == {("Available", "")})
    work.wait_until(30, "the capacity", lambda: units(cluster, AWAY) == ("6", "6"))
