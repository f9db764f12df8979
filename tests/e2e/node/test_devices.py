"""Non-GPU devices on the real cluster: offered by a file, asked for by class, and what their objects say."""

import json
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, resource_name

AT = "n2"
HCA = "e2e.hca"
SLICE = "e2e.slice"
ADAPTER: dict[str, Any] = {
    "id": "mlx5_0",
    "type": "infiniband",
    "model": "ConnectX-7",
    "shares": 2,
    "properties": {"vendor": "NVIDIA", "rate": "400Gb/s"},
    "deviceNodes": [{"host": "/dev/null", "container": "/dev/infiniband/uverbs0"}],
    "environment": {"NCCL_IB_HCA": "mlx5_0"},
}
NAME = f"mlx5-0.{AT}"


class Devices:
    """The file of one node's agent."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._file: Path = cluster.devices_file(AT)

    def are(self, *devices: dict[str, Any]) -> None:
        self._file.write_text(json.dumps({"version": 1, "devices": devices}))

    def status(self, name: str = NAME) -> dict[str, Any]:
        text = self._cluster.kubectl("get", "extendedresource", name, "--ignore-not-found", "-o", "json")
        return json.loads(text)["status"] if text.strip() else {}

    def shows(self, work: DemoWorkload, what: str, done: Callable[[dict[str, Any]], bool]) -> None:
        work.wait_until(30, what, lambda: done(self.status()))


@pytest.fixture
def devices(cluster: LocalCluster) -> Generator[Devices]:
    cluster.up()
    found = Devices(cluster)
    try:
        yield found
    finally:
        found.are()


@pytest.fixture
def work(cluster: LocalCluster, devices: Devices) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, a class of adapters and one of parts of cards."""
    found = DemoWorkload(cluster.kubectl, "e2e-devices")
    found.create_namespace()
    found.delete()
    rate = {"matchExpressions": [{"key": "rate", "operator": "Ge", "values": ["200Gb/s"]}]}
    make_class(cluster, HCA, deviceType="infiniband", selector=rate)
    make_class(cluster, SLICE, memory="4GiB", selector={"matchLabels": {"type": "gpu"}})
    yield found
    found.delete(wait=120)
    cluster.kubectl("delete", "resourceclass", HCA, SLICE, "--ignore-not-found")


def make_class(cluster: LocalCluster, name: str, **spec: Any) -> None:
    body = {
        "apiVersion": "fractile.dev/v1alpha1",
        "kind": "ResourceClass",
        "metadata": {"name": name},
        "spec": spec,
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def asking(name: str, **classes: int) -> Manifest:
    """A pod on the node with the adapter; ``hca`` and ``slice`` are units."""
    container = w.container()
    limits: dict[str, str] = {}
    if units := classes.get("hca", 0):
        limits |= {resource_name(HCA): str(units), DEVICE_SLOT: str(units)}
    if units := classes.get("slice", 0):
        limits |= {resource_name(SLICE): str(units), GPU_SLOT: str(units)}
    container["resources"] = {"limits": limits}
    return w.pod(name, container, nodes=[AT])


def test_an_adapter_of_a_file_is_used_beside_a_part_of_a_card_and_its_object_says_by_whom(
    cluster: LocalCluster, work: DemoWorkload, devices: Devices
) -> None:
    devices.are(ADAPTER)
    devices.shows(work, "the adapter", lambda s: s.get("phase") == "Available")
    listed = cluster.kubectl("get", "extendedresources", "-l", f"fractile.dev/node={AT}")
    assert "infiniband" in listed
    assert "ConnectX-7" in listed

    work.apply([asking("both", hca=1, slice=1)])
    pod = work.wait_running("both")["both"]
    environment = work.environment("both")
    assert environment["FRACTILE_DEVICES"] == f"mlx5_0.{AT}"
    assert environment["NCCL_IB_HCA"] == "mlx5_0"
    assert environment["NVIDIA_VISIBLE_DEVICES"].startswith("GPU-")
    assert cluster.kubectl(
        *("-n", work.namespace, "exec", "both", "--", "sh", "-c", "test -c /dev/infiniband/uverbs0 && echo there")
    ).startswith("there")
    devices.shows(work, "who holds it", lambda s: s.get("phase") == "PartlyBound")
    holder = {"namespace": work.namespace, "pod": "both", "container": "main"}
    assert [{k: v for k, v in h.items() if k in holder} for h in devices.status()["boundTo"]] == [holder]

    card = next(s.card for s in w.placement_of(pod).containers[0].slices if not s.shares)
    found = devices.status(card.lower())
    assert found["used"]["memory"] == "4096Mi"
    assert found["boundTo"][0]["pod"] == "both"

    work.apply([asking("second", hca=1)])
    work.wait_running("second")
    devices.shows(work, "both shares", lambda s: s.get("phase") == "Bound")
    work.apply([asking("third", hca=1)])
    work.wait_refused("third")
    work.delete("both")
    work.wait_running("third")
    work.delete()
    devices.shows(work, "its release", lambda s: s.get("phase") == "Available" and not s.get("boundTo"))


def test_a_device_becomes_sick_and_well_and_goes_as_the_file_says(
    cluster: LocalCluster, work: DemoWorkload, devices: Devices
) -> None:
    devices.are(ADAPTER)
    devices.shows(work, "the adapter", lambda s: s.get("phase") == "Available")
    work.apply([asking("holder", hca=1)])
    work.wait_running("holder")
    devices.are(ADAPTER | {"healthy": False, "reason": "LinkDown", "message": "port 1 is down"})
    devices.shows(work, "the reason", lambda s: (s.get("phase"), s.get("reason")) == ("Unhealthy", "LinkDown"))
    assert devices.status()["boundTo"][0]["pod"] == "holder", "who holds it keeps it"
    work.apply([asking("late", hca=1)])
    work.wait_refused("late")
    devices.are(ADAPTER | {"properties": {"rate": "100Gb/s"}})
    devices.shows(work, "its return", lambda s: s.get("phase") == "PartlyBound" and "reason" not in s)
    assert w.phase(work.pods()["holder"]) == "Running"
    assert w.phase(work.pods()["late"]) == "Pending", "it is of the class no more"
    devices.are(ADAPTER)
    work.wait_running("late")
    devices.are()
    devices.shows(work, "that it was removed", lambda s: s.get("reason") == "Removed")
    assert {w.phase(p) for p in work.pods().values()} == {"Running"}
    work.delete()
    devices.shows(work, "its end", lambda s: not s)


def test_three_pods_share_a_card_by_a_class_with_an_amount_of_memory(cluster: LocalCluster, work: DemoWorkload) -> None:
    names = ("a", "b", "c")
    work.apply([asking(name, slice=1) for name in names])
    pods = work.wait_running(*names)
    cards = {s.card for p in pods.values() for c in w.placement_of(p).containers for s in c.slices}
    assert len(cards) == 1
    (card,) = cards
    uuid = card.lower()
    work.wait_until(
        30,
        "all three holders",
        lambda: {h["pod"] for h in _status(cluster, uuid).get("boundTo", ())} >= set(names),
    )
    assert _status(cluster, uuid)["used"] == {"memory": "12288Mi", "cores": 0, "slices": 3}


def _status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    return json.loads(cluster.kubectl("get", "extendedresource", name, "-o", "json"))["status"]
