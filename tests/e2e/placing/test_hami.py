"""Manifests of HAMi on the real cluster, as they are, and all families of names on one card."""

from collections.abc import Generator
from pathlib import Path

import pytest
import yaml

from fractile.dialects import nvidia
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.model.placement import Slice
from fractile.wire.fractile.device_ids import count_by_card

EXAMPLES = Path(__file__).parents[3] / "examples"
CARD = 16276  # MiB


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-hami")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def manifests(file: str) -> list[w.Manifest]:
    return list(yaml.safe_load_all((EXAMPLES / file).read_text()))


def slices(pod: w.Manifest) -> tuple[Slice, ...]:
    (found,) = (c.slices for c in w.placement_of(pod).containers)
    return found


def test_the_manifests_of_hami_run_unchanged(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply(manifests("8-hami.yaml"))
    pods = work.wait_running("small", "half", "two", "card")
    given = {name: slices(pod) for name, pod in pods.items()}
    assert {name: [(s.memory, s.cores) for s in parts] for name, parts in given.items()} == {
        "small": [(3000, 30)],
        "half": [(CARD // 2, 50)],
        "two": [(2000, 0), (2000, 0)],
        "card": [(CARD, 100)],
    }
    cards = {name: {s.card for s in parts} for name, parts in given.items()}
    assert len(cards["two"]) == 2
    assert all(cards["card"].isdisjoint(cards[name]) for name in ("small", "half", "two"))
    seen = {name: work.environment(name) for name in pods}
    for name, pod in pods.items():
        assert set(seen[name]["NVIDIA_VISIBLE_DEVICES"].split(",")) == cards[name]
        assert w.annotations(pod)[nvidia.NODE] == w.node_of(pod)
        record = cluster.kubelet_record(w.node_of(pod))[work.namespace, name, "main"]
        assert record.keys() == {nvidia.GPU}  # kubelet leaves out what the node does not have
        assert count_by_card(record[nvidia.GPU]) == dict.fromkeys(cards[name], 1)
    assert (seen["small"]["CUDA_DEVICE_MEMORY_LIMIT_0"], seen["small"]["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "30")
    (part,) = given["small"]
    devices = w.annotations(pods["small"])[nvidia.DEVICES]
    assert devices == f"{part.card},NVIDIA,3000,30:;"
    work.wait_until(
        20, "success", lambda: all(w.annotations(p)[nvidia.PHASE] == "success" for p in work.pods().values())
    )


def test_a_pod_of_each_family_runs_on_one_card(work: DemoWorkload) -> None:
    names: list[str] = []
    for manifest in manifests("9-families.yaml"):
        manifest["spec"]["nodeSelector"] = {"kubernetes.io/hostname": "n3"}
        names.append(manifest["metadata"]["name"])
        work.apply([manifest])
        work.wait_running(names[-1])
    pods = work.wait_running(*names)
    parts = {name: slices(pod)[0] for name, pod in pods.items()}
    assert {name: (p.memory, p.cores) for name, p in parts.items()} == {
        "aliyun": (4000, 0),
        "tencent": (4096, 30),
        "nvidia": (3000, 40),
    }
    assert len({p.card for p in parts.values()}) == 1
    assert {work.environment(name)["NVIDIA_VISIBLE_DEVICES"] for name in names} == {parts["nvidia"].card}


def test_without_the_webhook_an_amount_without_a_card_is_refused_with_what_to_write(work: DemoWorkload) -> None:
    work.apply([w.pod("forgot", part({nvidia.MEMORY: 1000}), labels={"fractile.dev/webhook": "ignore"})])
    assert "asks for nvidia.com/gpumem without nvidia.com/gpu; write nvidia.com/gpu: 1" in work.wait_refused("forgot")


def test_a_card_serves_as_many_containers_as_it_has_slots(work: DemoWorkload) -> None:
    small = {nvidia.GPU: 1, nvidia.MEMORY: 100}
    names = [f"p{i}" for i in range(2)]
    work.apply([w.pod(name, *(part(small, f"c{i}") for i in range(nvidia.SLOTS)), nodes=["n3"]) for name in names])
    pods = work.wait_running(*names)
    used = {s.card for pod in pods.values() for c in w.placement_of(pod).containers for s in c.slices}
    assert len(used) == 2
    work.apply([w.pod("more", part(small), nodes=["n3"])])
    assert "nvidia.com/gpu" in work.wait_refused("more")  # kube-scheduler's own sum says it first


def part(amounts: dict[str, int], name: str = "main") -> w.Manifest:
    made = w.container(name)
    made["resources"] = {"limits": {resource: str(amount) for resource, amount in amounts.items()}}
    return made
