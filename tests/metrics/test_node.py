"""The page of a node: gpu-manager's names and ours, valid in both formats, and bounded."""

import re
from pathlib import Path

import msgspec
import pytest
from prometheus_client import Metric

from fractile.metrics import families
from fractile.metrics.exposition import Family
from fractile.metrics.gpu_manager import gpu_manager_usage
from fractile.metrics.node import LIMIT, AgentFigures, page
from fractile.wire.foreign import gpu_manager_usage as gpu_manager_wire
from fractile.wire.output.node_usage import CardUsage, ContainerUsage, DepartedUsage, NodeUsage, Outside, SliceUsage
from tests.metrics.parsers import parsed

MIB = 2**20
A, B = "GPU-a", "GPU-b"
DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
AGENT = AgentFigures(
    version="1.2.3",
    looks=5,
    late=1,
    spent=0.01,
    found={"no-slice": 2},
    evictions=1,
    kills={"killed": 2},
    cpu=3.5,
    resident=50 * MIB,
    descriptors=40,
    tasks=25,
)
FIRST = SliceUsage(
    uuid=A,
    index=0,
    limit_bytes=4096 * MIB,
    cores=30,
    cores_limit=50,
    used_bytes=1024 * MIB,
    peak_bytes=2048 * MIB,
    refusals=3,
    driver_bytes=1000 * MIB,
    utilization_percent=25,
    share_percent=30.5,
    held_seconds=12.5,
    waited_seconds=1.5,
    throttled_seconds=0.5,
    gpu_seconds=11.0,
    launches=70,
    pids=(100, 101),
)
SECOND = SliceUsage(uuid=B, index=1, limit_bytes=2048 * MIB, cores=20, cores_limit=0)
NODE = NodeUsage(
    node="n1",
    time=1795256289.5,
    cards=(
        CardUsage(
            uuid=A,
            index=0,
            model='Tesla "V100"',
            pci_bus_id="00000000:00:04.0",
            memory_bytes=16384 * MIB,
            used_bytes=1500 * MIB,
            utilization_percent=40,
            processes=2,
            promised_bytes=4096 * MIB,
            promised_cores=30,
            containers=1,
        ),
        CardUsage(uuid=B, index=1, model="Tesla", memory_bytes=16384 * MIB, healthy=False),
    ),
    containers=(
        ContainerUsage(
            pod_uid="u1", namespace="ns", pod="p", container="main", enforced=True, processes=2, cards=(FIRST, SECOND)
        ),
    ),
    outside=(
        Outside(kind="no-slice", card=A, since=1.0, pid=7, bytes=5, namespace="x", pod="q", pod_uid="u2"),
        Outside(kind="no-slice", card=A, since=1.0, pid=8, bytes=6, namespace="x", pod="q", pod_uid="u2"),
        Outside(kind="not-a-pod", card=A, since=1.0, pid=9, bytes=None),
    ),
    audited=True,
    arbiter=True,
    departed=(
        DepartedUsage(
            card=A, limit_bytes=512 * MIB, cores=10, pod_uid="u3", namespace="ns", pod="grace", container="main"
        ),
    ),
)
WHO = {"node": "n1", "namespace": "ns", "pod": "p", "container": "main", "uid": "u1"}


def shown(usage: NodeUsage = NODE, *, openmetrics: bool = True, limit: int = LIMIT) -> dict[str, Metric]:
    return parsed(page(usage, AGENT, limit=limit).render(openmetrics=openmetrics), openmetrics=openmetrics)


def value(metric: Metric, **labels: str) -> float:
    (found,) = [s.value for s in metric.samples if labels.items() <= s.labels.items()]
    return found


def all_families() -> list[Family]:
    return [f for f in vars(families).values() if isinstance(f, Family)]


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_every_family_is_on_the_page_and_both_parsers_take_it(openmetrics: bool) -> None:
    found = {s.name for metric in shown(openmetrics=openmetrics).values() for s in metric.samples}
    assert found == {f.sample for f in all_families()}


def test_gpu_managers_names_have_its_labels_and_units() -> None:
    found = shown()
    who = {"pod_name": "p", "namespace": "ns", "node": "n1", "container_name": "main"}
    busy, memory = found["container_gpu_utilization"], found["container_gpu_memory_total"]
    assert [value(busy, **who, gpu=gpu) for gpu in ("gpu0", "gpu1", "total")] == [25, 0, 25]
    assert [value(memory, **who, gpu_memory=gpu) for gpu in ("gpu0", "gpu1", "total")] == [1000, 0, 1000]
    assert value(found["container_request_gpu_utilization"], **who, req_of_gpu="total") == 0.5
    assert value(found["container_request_gpu_memory"], **who, req_of_gpu_memory="total") == 6144
    assert set(busy.samples[0].labels) == {*who, "gpu"}


def test_ours_have_base_units_and_name_pod_and_card() -> None:
    found = shown()
    expected = {
        "fractile_container_memory_limit_bytes": 4096 * MIB,
        "fractile_container_memory_used_bytes": 1024 * MIB,
        "fractile_container_memory_peak_bytes": 2048 * MIB,
        "fractile_container_memory_driver_bytes": 1000 * MIB,
        "fractile_container_memory_refusals": 3,
        "fractile_container_cores_request_ratio": 0.3,
        "fractile_container_cores_limit_ratio": 0.5,
        "fractile_container_utilization_ratio": 0.25,
        "fractile_container_share_held_ratio": 0.305,
        "fractile_container_held_seconds": 12.5,
        "fractile_container_waiting_seconds": 1.5,
        "fractile_container_throttled_seconds": 0.5,
        "fractile_container_gpu_seconds": 11.0,
        "fractile_container_launches": 70,
    }
    assert {name: value(found[name], **WHO, card=A) for name in expected} == expected
    assert value(found["fractile_container_processes"], **WHO) == 2
    assert value(found["fractile_card_memory_used_bytes"], card=A) == 1500 * MIB
    assert [value(found["fractile_card_healthy"], card=card) for card in (A, B)] == [1, 0]
    assert found["fractile_card"].samples[0].labels["model"] == 'Tesla "V100"'


def test_what_nobody_knows_has_no_series() -> None:
    found = shown()
    for name in ("memory_used_bytes", "held_seconds", "share_held_ratio", "utilization_ratio"):
        assert [s.labels["card"] for s in found[f"fractile_container_{name}"].samples] == [A]


def test_use_outside_the_ledger_is_one_series_for_each_container() -> None:
    found = shown()["fractile_outside_ledger_bytes"]
    assert [(s.labels["pod"], s.labels["kind"], s.value) for s in found.samples] == [
        ("q", "no-slice", 11),
        ("", "not-a-pod", 0),
    ]


def test_processes_that_outlived_an_eviction_are_counted_by_outcome() -> None:
    found = shown()["fractile_outside_ledger_kills"]
    assert {s.labels["outcome"]: s.value for s in found.samples} == {"killed": 2, "failed": 0}


def test_ended_containers_have_no_series() -> None:
    gone = shown(msgspec.structs.replace(NODE, containers=()))
    assert not any(s.labels.get("pod") == "p" for metric in gone.values() for s in metric.samples)


def many(count: int) -> NodeUsage:
    containers = tuple(msgspec.structs.replace(NODE.containers[0], pod=f"p{n}", pod_uid=f"u{n}") for n in range(count))
    return msgspec.structs.replace(NODE, containers=containers)


def test_the_number_of_series_has_a_limit_and_the_page_says_how_many_are_missing() -> None:
    made = page(many(2000), AGENT)
    found = parsed(made.render(openmetrics=True), openmetrics=True)
    series = sum(len(metric.samples) for metric in found.values())
    own = sum(len(m.samples) for n, m in found.items() if n.startswith(("fractile_agent", "process", "fractile_out")))
    assert LIMIT < series < LIMIT + 2 * own
    dropped = value(found["fractile_metrics_dropped_series"])
    full = page(many(2000), AGENT, limit=10**9)
    assert dropped == made.dropped > 0
    assert series + dropped == full.size
    assert value(found["fractile_card_healthy"], card=A) == 1


def test_registrations_with_the_virtual_manager_are_counted_by_outcome() -> None:
    made = page(NODE, msgspec.structs.replace(AGENT, registrations={"registered": 3, "peer": 2, "unheard of": 1}))
    found = parsed(made.render(openmetrics=True), openmetrics=True)["fractile_virtual_manager_registrations"]
    assert {s.labels["outcome"]: s.value for s in found.samples} == {
        "registered": 3,
        "peer": 2,
        "pod": 0,
        "container": 0,
        "card": 0,
    }


def test_a_node_of_64_slices_stays_far_below_the_limit() -> None:
    assert page(many(64), AGENT).size < LIMIT / 5


def test_usage_has_gpu_managers_shape() -> None:
    made = msgspec.json.decode(gpu_manager_wire.encode(gpu_manager_usage(NODE)))
    first = {
        "id": "00000000:00:04.0",
        "card_idx": "0",
        "gpu": 25.0,
        "mem": 1000.0,
        "pids": [100, 101],
        "device_mem": 16384.0,
    }
    second = first | {"id": "", "card_idx": "1", "gpu": 0.0, "mem": 0.0, "pids": []}
    assert made == {
        "usage": {
            "u1": {
                "stat": {"main": {"dev": [first, second]}},
                "project": "ns",
                "user": "",
                "cluster": "",
                "spec": {"main": {"gpu": 0.5, "mem": 6144.0}},
            }
        }
    }


def test_every_metric_is_in_the_documentation_with_its_labels_and_nothing_else_is() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    assert dict(rows) == {f.sample: ", ".join(f.labels) or "none" for f in all_families()}
