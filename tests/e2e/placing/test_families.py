"""Manifests of other systems on the real cluster, as they are."""

from collections.abc import Generator
from pathlib import Path

import pytest
import yaml

from fractile.dialects.tencent import ASSIGNED, CORE, INDEX, MEMORY, NODE
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.model.placement import Slice
from fractile.wire.foreign import vcuda
from fractile.wire.fractile.device_ids import count_by_card
from tests.e2e.node.test_limits import slice_of as slice_of_pod

EXAMPLES = Path(__file__).parents[3] / "examples"


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    cluster.up()
    found = DemoWorkload(cluster.kubectl, "e2e-families")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def slice_of(pod: w.Manifest) -> Slice:
    ((part,),) = (c.slices for c in w.placement_of(pod).containers)
    return part


def test_a_manifest_of_gpu_manager_runs_unchanged(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply(list(yaml.safe_load_all((EXAMPLES / "7-gpu-manager.yaml").read_text())))
    pods = work.wait_running("half", "third", "card")
    parts = {name: slice_of(pod) for name, pod in pods.items()}
    assert {name: (p.memory, p.cores) for name, p in parts.items()} == {
        "half": (7680, 50),
        "third": (4096, 30),
        "card": (16276, 100),
    }
    assert parts["card"].card not in (parts["half"].card, parts["third"].card)
    for name, pod in pods.items():
        found = w.annotations(pod)
        assert found[NODE] == w.node_of(pod)
        assert found[f"{INDEX}0"].isdigit()
        assert work.environment(name)["NVIDIA_VISIBLE_DEVICES"] == parts[name].card
    work.wait_until(20, "gpu-assigned", lambda: all(w.annotations(p)[ASSIGNED] == "true" for p in work.pods().values()))
    for name, ids in (("half", (50, 30)), ("third", (30, 16)), ("card", (100, 0))):
        record = cluster.kubelet_record(w.node_of(pods[name]))[work.namespace, name, "main"]
        card = parts[name].card
        assert count_by_card(record[CORE]) == {card: ids[0]}
        assert count_by_card(record.get(MEMORY, [])) == ({card: ids[1]} if ids[1] else {})


def test_an_image_made_for_gpu_manager_finds_its_files_and_they_follow_the_container(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([w.pod("old", shares(30, 16), nodes=["n1"]), w.pod("whole", shares(100, 0), nodes=["n2"])])
    pods = work.wait_running("old", "whole")

    def inside(pod: str, script: str) -> str:
        return cluster.kubectl("-n", work.namespace, "exec", pod, "--", "sh", "-c", script)

    def read(pod: str, name: str) -> bytes:
        return bytes.fromhex(inside(pod, f"od -An -v -tx1 /etc/vcuda/{name}"))

    config = vcuda.decode_config(read("old", vcuda.CONFIG_NAME))
    assert (config.pod_uid, config.container) == (pods["old"]["metadata"]["uid"], "main")
    assert (config.memory, config.cores, config.limit, config.enabled) == (16 * 256 * 2**20, 30, 0, True)
    assert not vcuda.decode_config(read("whole", vcuda.CONFIG_NAME)).enabled  # nobody to be held back for

    # Every look from inside is a process more, so the file is followed from outside; and once seen from inside.
    namespace = inside("old", "readlink /proc/self/ns/pid").strip()
    file = slice_of_pod(cluster, "n1", "old") / "vcuda" / vcuda.PIDS_NAME

    def true() -> bool:
        """Whether the file names the container's processes, as the machine numbers them, and no others."""
        return set(vcuda.decode_pids(file.read_bytes())) == in_namespace(namespace)

    work.wait_until(20, "the container's first processes", true)
    first = set(vcuda.decode_pids(file.read_bytes()))
    assert first <= set(vcuda.decode_pids(read("old", vcuda.PIDS_NAME)))
    inside("old", "sleep 1000 >/dev/null 2>&1 </dev/null & echo $! >/tmp/pid")
    work.wait_until(20, "another process", lambda: true() and first < in_namespace(namespace))
    inside("old", "kill $(cat /tmp/pid)")
    work.wait_until(20, "its end", lambda: true() and first == in_namespace(namespace))
    assert inside("old", "ls -l /etc/vcuda/vcuda.sock").startswith("s")
    assert inside("old", "(: >/etc/vcuda/vcuda.config) 2>/dev/null; echo $?").strip() != "0"


def in_namespace(pids: str) -> set[int]:
    """The processes of a pid namespace."""
    return {int(link.parts[2]) for link in Path("/proc").glob("[0-9]*/ns/pid") if target(link) == pids}


def target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""


def test_families_share_a_card_until_its_cores_are_promised(work: DemoWorkload) -> None:
    only = ["n3"]
    work.apply([w.pod(f"all-{i}", shares(60, 8), shares(40, 8, "more"), nodes=only) for i in range(2)])
    placed = work.wait_running("all-0", "all-1")
    used = {s.card for p in placed.values() for c in w.placement_of(p).containers for s in c.slices}
    assert len(used) == 2  # each pod has one of the node's two cards to itself
    work.apply([w.pod("memory", w.container(memory=100), nodes=only)])
    reason = work.wait_refused("memory")
    assert "cores: those of every card are promised to others" in reason
    work.delete("all-1")
    assert w.node_of(work.wait_running("memory")["memory"]) == "n3"


def test_a_share_that_makes_no_sense_is_refused_with_a_sentence(work: DemoWorkload) -> None:
    work.apply([w.pod("odd", shares(150, 8), labels={"fractile.dev/webhook": "ignore"})])
    assert "150 tencent.com/vcuda-core; above 100, only multiples of 100 are allowed" in work.wait_refused("odd")


def shares(cores: int, blocks: int, name: str = "main") -> w.Manifest:
    made = w.container(name)
    made["resources"] = {"limits": {CORE: str(cores)} | ({MEMORY: str(blocks)} if blocks else {})}
    return made
