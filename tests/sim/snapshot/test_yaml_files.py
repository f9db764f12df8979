"""Nodes and pods from manifests, and what is said about those that make no sense."""

import json
from pathlib import Path

import pytest

from fractile.errors import SetupError, WireError
from fractile.policy.nodes.where import Where
from fractile.sim.snapshot.build import snapshot_of
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Snapshot, Task
from fractile.sim.snapshot.rows import node_rows, pod_rows
from fractile.sim.snapshot.yaml_files import read_objects, told

SHORT = """
nodes:
  - {name: a100, count: 2, cpu: 64, memory: 512Gi, gpus: 8, model: A100, card_memory: 80Gi, labels: {pool: big}}
  - {name: cpu, cpu: 1500m, memory: 1G}
"""
DEPLOYMENT = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: team}
spec:
  replicas: 3
  template:
    metadata: {labels: {app: web}}
    spec:
      nodeSelector: {pool: big}
      initContainers:
        - {name: first, resources: {requests: {cpu: 4}}}
      containers:
        - {name: main, resources: {requests: {cpu: 2, memory: 4Gi}, limits: {aliyun.com/gpu-mem: 8138}}}
        - {name: side, resources: {limits: {cpu: 500m}}}
"""


def read(tmp_path: Path, text: str, name: str = "all.yaml") -> Snapshot:
    path = tmp_path / name
    path.write_text(text)
    return snapshot_of(read_objects(path), told)


def pod(name: str, limits: str, *, more: str = "", meta: str = "") -> str:
    return (
        f"---\nkind: Pod\nmetadata: {{name: {name}{meta}}}\nspec:\n"
        f"  containers: [{{name: main, resources: {{limits: {limits}}}}}]\n{more}"
    )


def only_part(snapshot: Snapshot) -> DemandPart:
    (task,) = snapshot.pending
    assert task.demand.part is not None
    return task.demand.part


def test_the_short_form_is_so_many_nodes_of_a_kind(tmp_path: Path) -> None:
    found = read(tmp_path, SHORT).machines

    assert [(m.name, m.cpu, m.memory, len(m.cards), m.model) for m in found] == [
        ("a100-0", 64_000, 524_288, 8, "A100"),
        ("a100-1", 64_000, 524_288, 8, "A100"),
        ("cpu", 1_500, 954, 0, ""),
    ]
    assert {c.memory for c in found[0].cards} == {81_920}
    assert dict(found[1].labels) == {"pool": "big"}


def test_a_deployment_is_as_many_pods_as_it_has_replicas(tmp_path: Path) -> None:
    found = read(tmp_path, SHORT + "---" + DEPLOYMENT)

    demand = Demand(4_000, 4_096, DemandPart(1, memory=8_138), Where(selector=(("pool", "big"),)))
    assert [(t.key, t.demand, dict(t.labels)) for t in found.pending] == [
        (f"team/web-{i}", demand, {"app": "web"}) for i in range(3)
    ]


@pytest.mark.parametrize(
    ("limits", "part"),
    [
        pytest.param("{aliyun.com/gpu-count: 2}", DemandPart(2, exclusive=True), id="aliyun whole"),
        pytest.param(
            "{tencent.com/vcuda-core: 30, tencent.com/vcuda-memory: 4}",
            DemandPart(1, memory=1_024, compute=300),
            id="tencent",
        ),
        pytest.param(
            "{nvidia.com/gpu: 2, nvidia.com/gpumem: 4000, nvidia.com/gpucores: 30}",
            DemandPart(2, memory=4_000, compute=300),
            id="hami",
        ),
        pytest.param(
            "{nvidia.com/gpu: 1, nvidia.com/gpumem-percentage: 50}", DemandPart(1, share=500), id="percentage"
        ),
        pytest.param("{nvidia.com/gpu: 1}", DemandPart(1, exclusive=True), id="nvidia whole"),
        pytest.param("{fractile.dev/gpu: 1}", DemandPart(1, exclusive=True), id="class slot alone"),
    ],
)
def test_every_family_of_names_is_understood(tmp_path: Path, limits: str, part: DemandPart) -> None:
    assert only_part(read(tmp_path, pod("p", limits))) == part


def test_a_class_stands_for_its_cards_and_amounts(tmp_path: Path) -> None:
    text = SHORT + (
        "---\nkind: ResourceClass\nmetadata: {name: slice}\n"
        "spec: {memory: 10Gi, cores: 20, selector: {matchLabels: {model: A100}}}\n"
    )
    found = read(tmp_path, text + pod("p", "{class.fractile.dev/slice: 1, fractile.dev/gpu: 1}"))
    part = only_part(found)

    assert (part.count, part.memory, part.compute) == (1, 10_240, 200)
    assert all(part.admits(c) for c in found.machines[0].cards)
    assert part.constrained


def test_a_class_that_nobody_made_is_told(tmp_path: Path) -> None:
    with pytest.raises(WireError, match=r"all\.yaml line \d+, Pod p: container main asks for class x, which does not"):
        read(tmp_path, SHORT + pod("p", "{class.fractile.dev/x: 1, fractile.dev/gpu: 1}"))


def test_models_that_an_annotation_names_are_a_condition(tmp_path: Path) -> None:
    found = read(
        tmp_path, SHORT + pod("p", "{nvidia.com/gpu: 1}", meta=", annotations: {nvidia.com/use-gputype: H100}")
    )

    assert not any(only_part(found).admits(c) for m in found.machines for c in m.cards)


def test_containers_of_a_pod_add_up_on_one_card(tmp_path: Path) -> None:
    containers = "\n".join(
        f"  - {{name: c{i}, resources: {{limits: {{aliyun.com/gpu-mem: {m}}}}}}}" for i, m in enumerate((3000, 4000))
    )
    init = "  - {name: i, resources: {limits: {aliyun.com/gpu-mem: 9000}}}"
    text = f"kind: Pod\nmetadata: {{name: p}}\nspec:\n  containers:\n{containers}\n"

    assert only_part(read(tmp_path, text)) == DemandPart(1, memory=7_000)
    assert only_part(read(tmp_path, f"{text}  initContainers:\n{init}\n")) == DemandPart(1, memory=9_000)


def test_a_running_pod_holds_what_its_placement_says(tmp_path: Path) -> None:
    node = (
        "kind: Node\nmetadata: {name: n1}\nstatus: {allocatable: {cpu: 8, memory: 16Gi, pods: 20}}\n---\n"
        "kind: ExtendedResource\nmetadata: {name: gpu-a}\n"
        "spec: {nodeName: n1, deviceID: GPU-a, index: 0, model: T4, memory: 15360Mi}\n"
    )
    held = {"role": "app", "slices": [{"card": "GPU-a", "memoryMiB": 4000, "cores": 0}]}
    text = json.dumps({"version": 1, "node": "n1", "containers": {"main": held}})
    placed = f"kind: Pod\nmetadata: {{name: p, annotations: {{fractile.dev/placement: '{text}'}}}}\n"
    spec = "spec: {nodeName: n1, containers: [{name: main, resources: {limits: {aliyun.com/gpu-mem: 4000}}}]}\n"
    found = read(tmp_path, f"{node}---\n{placed}{spec}")

    assert [(m.name, m.slots, [(c.uuid, c.memory) for c in m.cards]) for m in found.machines] == [
        ("n1", 20, [("GPU-a", 15_360)])
    ]
    assert [(t.node, t.cards) for t in found.bound] == [("n1", (("GPU-a", 4_000, 0),))]


def test_a_node_without_an_inventory_has_what_its_labels_say(tmp_path: Path) -> None:
    text = (
        "kind: Node\nmetadata: {name: n, labels: {nvidia.com/gpu.product: L40S, nvidia.com/gpu.memory: '46068'}}\n"
        "spec: {unschedulable: true, taints: [{key: a, effect: NoSchedule}]}\n"
        "status: {allocatable: {cpu: '16', memory: 64Gi, nvidia.com/gpu: '2'}}\n"
    )
    (found,) = read(tmp_path, text).machines

    assert ([(c.model, c.memory) for c in found.cards], found.cordoned) == ([("L40S", 46_068)] * 2, True)
    assert [t.key for t in found.taints] == ["a"]


def test_a_list_in_json_is_the_same_as_documents_in_yaml(tmp_path: Path) -> None:
    items: list[dict[str, object]] = [
        {"kind": "Node", "metadata": {"name": "n"}, "status": {"capacity": {"cpu": "4", "memory": "8Gi"}}},
        {"kind": "Pod", "metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": []}},
        {"kind": "Service", "metadata": {"name": "s"}},
    ]
    documents = "---\n".join(json.dumps(i) + "\n" for i in items)

    assert read(tmp_path, json.dumps({"kind": "List", "items": items}), "all.json") == read(tmp_path, documents)


def test_finished_pods_hold_nothing(tmp_path: Path) -> None:
    found = read(tmp_path, pod("p", "{nvidia.com/gpu: 1}", more="status: {phase: Succeeded}\n"))

    assert found.pending == found.bound == ()


@pytest.mark.parametrize(
    ("spec", "allowed"),
    [
        pytest.param("maxUnavailable: 1", 1, id="one away"),
        pytest.param("minAvailable: 2", 1, id="two must stay"),
        pytest.param("minAvailable: 50%", 1, id="half, rounded up"),
        pytest.param("maxUnavailable: 25%", 1, id="a quarter, rounded up"),
        pytest.param("minAvailable: 9", 0, id="more than there are"),
    ],
)
def test_a_budget_is_worked_out_as_its_controller_does(tmp_path: Path, spec: str, allowed: int) -> None:
    node = "nodes: [{name: n, cpu: 9, memory: 9Gi}]\n"
    pods = "".join(
        pod(f"p{i}", "{}", meta=", labels: {app: a}").replace("spec:\n", "spec:\n  nodeName: n\n") for i in range(3)
    )
    rule = f"{spec}, selector: {{matchLabels: {{app: a}}}}"
    text = f"---\nkind: PodDisruptionBudget\nmetadata: {{name: b}}\nspec: {{{rule}}}\n"
    (budget,) = read(tmp_path, node + pods + text).budgets

    assert (budget.allowed, len(budget.pods)) == (allowed, 3)


def test_what_a_controller_says_of_a_budget_is_believed(tmp_path: Path) -> None:
    text = (
        "kind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {maxUnavailable: 9}\nstatus: {disruptionsAllowed: 2}\n"
    )

    assert read(tmp_path, text).budgets[0].allowed == 2


def test_conditions_that_are_not_planned_with_are_told_once(tmp_path: Path) -> None:
    more = "  topologySpreadConstraints: [{maxSkew: 1}]\n"
    found = read(tmp_path, "".join(pod(f"p{i}", "{nvidia.com/gpu: 1}", more=more) for i in range(5)))

    assert len(found.notes) == 1
    assert found.notes[0].startswith("topology spread is not planned with: ")
    assert found.notes[0].endswith("Pod p2 and 2 more")


BAD = {
    "wrong type": (
        "kind: Pod\nmetadata: {name: a}\nspec:\n  containers:\n  - name: 4\n",
        "line 5: Pod field spec.containers.0.name: expected `str`, got `int`",
    ),
    "not YAML": ("kind: Pod\n---\na: [\n", "this is not YAML"),
    "tab": ("kind: Pod\n\tmetadata: x\n", "line 2: this is not YAML"),
    "negative CPU": (pod("a", "{cpu: -1}"), "line 2, Pod a: container main cpu: -1 is negative or absurd"),
    "absurd CPU": (pod("a", "{cpu: 1e30}"), "is negative or absurd"),
    "CPU in words": (pod("a", "{cpu: many}"), "line 2, Pod a: container main cpu: 'many' is not a quantity"),
    "half a GPU": (
        pod("a", "{nvidia.com/gpu: 0.5}"),
        "line 2, Pod a: container main asks for nvidia.com/gpu: 0.5 is not a whole",
    ),
    "two families": (pod("a", "{nvidia.com/gpu: 1, aliyun.com/gpu-count: 1}"), "use the names of one family"),
    "no model": (
        "nodes:\n- {name: a, cpu: 1, memory: 1Gi, gpus: 4}\n",
        "line 2: field nodes[0].model: it is empty on a node with 4 GPUs",
    ),
    "too many GPUs": (
        "nodes:\n- {name: a, cpu: 1, memory: 1Gi, model: T4,\n   gpus: 400}\n",
        "line 3: field nodes[0].gpus: 400 is not within 0 and 64",
    ),
    "memory in words": (
        "nodes:\n- name: a\n  cpu: 1\n  memory: x\n",
        "line 4: field nodes[0].memory: 'x' is not a quantity",
    ),
    "no CPU": (
        "nodes:\n- {name: a, memory: 1Gi}\n",
        "line 2: object field nodes.0: object missing required field `cpu`",
    ),
    "zero CPU": ("nodes:\n- {name: a, memory: 1Gi, cpu: 0}\n", "line 2: field nodes[0].cpu: 0 is not within 1"),
    "unknown field": ("nodes:\n- {name: a, memory: 1Gi, cpu: 1, gpu: 4}\n", "contains unknown field `gpu`"),
    "a list": ("- a\n", "line 1: a list is not a Kubernetes object"),
    "a number": ("7\n", "line 1: a int is not a Kubernetes object"),
    "no kind": ("metadata: {name: a}\n", "line 1: this is neither a Kubernetes object"),
    "twice": (
        "kind: Pod\nmetadata: {name: q}\n---\nkind: Pod\nmetadata:\n  name: q\n",
        "Pod field metadata.name: q appears twice",
    ),
    "node twice": (
        SHORT + "---\nkind: Node\nmetadata: {name: a100-1}\nstatus: {capacity: {cpu: 1, memory: 1Gi}}\n",
        "all.yaml: node a100-1 appears twice",
    ),
    "no name": ("kind: Pod\nmetadata: {}\n", "Pod field metadata.name: it is empty"),
    "node without CPU": (
        "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {memory: 1Gi}}\n",
        "Node n: status.allocatable.cpu is missing",
    ),
    "replicas": (
        DEPLOYMENT.replace("replicas: 3", "replicas: -3"),
        "line 6: Deployment field spec.replicas: -3 is not within 0 and 100000",
    ),
    "elsewhere": (SHORT + pod("a", "{}", more="  nodeName: gone\n"), "spec.nodeName 'gone' is not one of the nodes"),
    "budget": (
        "kind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {minAvailable: half}\n",
        "PodDisruptionBudget b: spec.minAvailable is 'half'",
    ),
    "inventory": (
        "kind: ExtendedResource\nmetadata: {name: g}\nspec: {nodeName: n, deviceID: G, index: 0, model: T, memory: x}",
        "ExtendedResource g: ",
    ),
}


@pytest.mark.parametrize(("text", "said"), BAD.values(), ids=BAD.keys())
def test_what_makes_no_sense_is_told_in_one_sentence(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(WireError) as e:
        read(tmp_path, text)

    assert said in str(e.value)
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("nodes: " + "[" * 100_000, id="lists"),
        pytest.param("{" * 100_000, id="mappings"),
        pytest.param('{"kind": ' + "[" * 100_000 + "]" * 100_000 + "}", id="JSON"),
        pytest.param("- " * 100_000, id="dashes"),
        pytest.param("? " * 100_000, id="keys"),
    ],
)
def test_a_file_that_nests_without_end_does_not_end_the_program(tmp_path: Path, text: str) -> None:
    """The parser in C has no limit but the stack: 100,000 levels are a segmentation fault."""
    with pytest.raises(WireError, match=r"all\.yaml nests deeper than any manifest"):
        read(tmp_path, text)


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"none\.yaml cannot be read: No such file"):
        read_objects(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(WireError, match="is not UTF-8"):
        read_objects(tmp_path / "bytes.yaml")


# ── rows for the simulator ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_part_is_the_larger_share_of_the_smallest_card_that_can_hold_it(tmp_path: Path) -> None:
    cards = (("T4", "16000Mi"), ("V100", "32000Mi"), ("A100", "80000Mi"))
    nodes = "\n".join(f"- {{name: {m}, cpu: 8, memory: 64Gi, gpus: 2, model: {m}, card_memory: {c}}}" for m, c in cards)
    wanted = (
        "{aliyun.com/gpu-mem: 4000}",
        "{aliyun.com/gpu-mem: 20000}",
        "{tencent.com/vcuda-core: 60, tencent.com/vcuda-memory: 8}",
        "{aliyun.com/gpu-count: 2}",
    )
    found = read(tmp_path, f"nodes:\n{nodes}\n" + "".join(pod(f"p{i}", w) for i, w in enumerate(wanted)))
    asks = [row.ask for row in pod_rows(found, found.pending)]

    assert [(a.gpus, a.milli) for a in asks] == [(1, 250), (1, 625), (1, 600), (2, 1000)]
    assert [(n.name, n.gpus, n.model) for n in node_rows(found)] == [(m, 2, m) for m, _ in cards]


def test_a_pod_that_no_node_could_take_would_only_distort_the_figures(tmp_path: Path) -> None:
    found = read(tmp_path, SHORT + pod("p", "{aliyun.com/gpu-mem: 90000}"))

    with pytest.raises(WireError, match="pod default/p asks for 90000 MiB of 1 GPU, and no node has that"):
        pod_rows(found, found.pending)


def test_a_task_without_a_namespace_is_named_by_its_name_alone() -> None:
    assert (Task("", "p", Demand(1, 1)).key, Task("a", "p", Demand(1, 1)).key) == ("p", "a/p")
