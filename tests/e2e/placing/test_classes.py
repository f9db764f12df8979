"""Asking by class on real kubelets: a node with two models, a node with one model in two sizes of memory, the
two classes of evidence/resource-class.md#objects, parts of a card that the library enforces, and an adapter beside a
GPU. A cluster of its own, of two nodes."""

import json
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import from_file
from fractile.lab.cluster.up import UpOptions
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.lab.machine import images
from fractile.wire.files.cluster_file import CardGroup, ClusterFile, NodeGroup
from tests.e2e.node.test_limits import MIB, OUT_OF_MEMORY, probe

NAME = "e2e-classes"
K80, V100 = "NVIDIA Tesla K80", "Tesla-V100"
MODELS, SIZES = "models", "sizes"  # the nodes
TESLA, HIGH, PART, HCA = "nvidia.tesla.k80", "nvidia.high.mem", "part", "hca"
EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture(scope="module")
def cluster(_alone: None) -> Generator[LocalCluster]:
    found = LocalCluster(NAME)
    found.down()
    adapter: dict[str, Any] = {"id": "mlx5_0", "type": "infiniband", "model": "ConnectX-7"}
    nodes = (
        NodeGroup(
            name="models",
            cards=(CardGroup(model=K80, memory=8192), CardGroup(model=V100, memory=16276)),
            devices=(adapter,),
        ),
        NodeGroup(name="sizes", cards=(CardGroup(model=V100, memory=8192), CardGroup(model=V100, memory=16276))),
    )
    try:
        found.up(UpOptions(spec=from_file(NAME, ClusterFile(version=1, nodes=nodes))))
        yield found
    finally:
        found.down()


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, and the classes."""
    found = DemoWorkload(cluster.kubectl, "e2e-classes")
    found.create_namespace()
    for document in yaml.safe_load_all((EXAMPLES / "10-classes.yaml").read_text()):
        if document["kind"] == "ResourceClass" and document["metadata"]["name"] in (TESLA, HIGH):
            make_class(cluster, document["metadata"]["name"], document["spec"])
    make_class(cluster, PART, {"memory": "2Gi", "cores": 25})
    make_class(cluster, HCA, {"deviceType": "infiniband"})
    yield found
    found.delete(wait=120)


def make_class(cluster: LocalCluster, name: str, spec: Mapping[str, object]) -> None:
    body = {"apiVersion": "fractile.dev/v1alpha1", "kind": "ResourceClass", "metadata": {"name": name}, "spec": spec}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(body))


def asking(name: str, *, cuda: bool = False, **limits: int) -> Manifest:
    """A pod that asks for units of classes by their full names, slots left to the webhook; ``_`` stands for a dot."""
    named = {f"class.fractile.dev/{c.replace('_', '.')}": str(n) for c, n in limits.items()}
    return plain(name, named, cuda=cuda)


def plain(name: str, limits: Mapping[str, str], *, cuda: bool = False) -> Manifest:
    container = w.container() | {"resources": {"limits": dict(limits)}}
    return w.pod(name, container | ({"image": images.CUDA} if cuda else {}))


def cards_of(cluster: LocalCluster, pod: Manifest) -> list[tuple[str, str, str]]:
    """Node, model and memory of each card that the pod's placement names."""
    listed = json.loads(cluster.kubectl("get", "extendedresources", "-o", "json"))["items"]
    spec = {item["spec"]["deviceID"]: item["spec"] for item in listed}
    slices = [s for c in w.placement_of(pod).containers for s in c.slices if not s.shares]
    return [(w.node_of(pod), spec[s.card]["model"], spec[s.card]["memory"]) for s in slices]


def test_caiclouds_classes_find_their_cards_and_draw_on_the_same_ones(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([plain("bare", {TESLA: "1"}), asking("high-1", nvidia_high_mem=1), asking("high-2", nvidia_high_mem=1)])
    pods = work.wait_running("bare", "high-1", "high-2")
    assert cards_of(cluster, pods["bare"]) == [(MODELS, K80, "8192Mi")]
    high = sorted(card for name in ("high-1", "high-2") for card in cards_of(cluster, pods[name]))
    assert high == [(MODELS, V100, "16276Mi"), (SIZES, V100, "16276Mi")], "the largest of each node, none twice"

    # A class that overlaps finds what is left: every card of it is whole, and somebody's.
    make_class(cluster, "v100", {"selector": {"matchLabels": {"model": V100}}})
    work.apply([asking("any", v100=1)])
    assert cards_of(cluster, work.wait_running("any")["any"]) == [(SIZES, V100, "8192Mi")]
    work.apply([asking("late", nvidia_high_mem=1)])
    assert "Insufficient class.fractile.dev/nvidia.high.mem" in work.wait_refused("late"), "kube-scheduler counts too"
    work.delete("high-1")
    work.wait_running("late")


def test_three_pods_share_a_card_by_class_and_each_is_held_to_its_part(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    names = ["a", "b", "c"]
    work.apply([asking(name, cuda=True, part=1) for name in names])
    pods = work.wait_running(*names)
    placed = [s for name in names for c in w.placement_of(pods[name]).containers for s in c.slices]
    assert [(s.memory, s.cores) for s in placed] == [(2048, 25)] * 3
    assert len({s.card for s in placed}) == 1
    for name in names:
        filled = probe(work, cluster, name, "fill")
        assert filled["refusal"] == OUT_OF_MEMORY
        assert 0 < filled["taken"] <= 2048 * MIB
    # The class changes and goes: nobody who runs is touched, who comes waits with a reason, and is woken.
    make_class(cluster, PART, {"memory": "4Gi"})
    cluster.kubectl("delete", "resourceclass", PART)
    work.apply([plain("late", {f"class.fractile.dev/{PART}": "1", "fractile.dev/gpu": "1"})])
    assert PART in work.wait_refused("late")
    assert all(w.phase(pod) == "Running" for name, pod in work.pods().items() if name in names)
    make_class(cluster, PART, {"memory": "1Gi"})
    late = w.placement_of(work.wait_running("late")["late"])
    assert [s.memory for s in late.containers[0].slices] == [1024]


def test_an_adapter_beside_a_gpu_by_two_classes_of_one_container(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([asking("both", nvidia_tesla_k80=1, hca=1)])
    pod = work.wait_running("both")["both"]
    assert cards_of(cluster, pod) == [(MODELS, K80, "8192Mi")]
    (devices,) = [[s for s in c.slices if s.shares] for c in w.placement_of(pod).containers]
    environment = work.environment("both")
    assert environment["FRACTILE_DEVICES"] == devices[0].card == f"mlx5_0.{MODELS}"
    work.apply([asking("second", part=1, hca=1)])
    work.wait_refused("second")
    work.delete("both")
    work.wait_running("second")
