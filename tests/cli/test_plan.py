"""``fractile plan`` as a person runs it, on files and on a cluster at the wire."""

import json
from pathlib import Path

import click
import msgspec
import pytest
from click.testing import CliRunner, Result

from fractile.cli.plan import command
from fractile.cli.simulate import command as simulate
from fractile.cli.text import plan as plan_text
from fractile.dialects.aliyun import MEMORY as MEM
from fractile.errors import FractileError, WireError
from fractile.kube.credentials import Credentials
from fractile.reports import plan_input
from fractile.sim.planner.planner import plan
from fractile.wire.fractile.resource_class import GPU_SLOT, resource_name
from fractile.wire.output import simulation
from fractile.wire.output.plan import Consolidation, Emptied, decode
from tests.fakes.apiserver import FakeApiServer
from tests.reports.objects import MEMORY, card, container, placed, pod
from tests.reports.shown_cluster import CARDS, PODS
from tests.sim.traces import NODE_HEAD, POD_HEAD, write
from tests.sim.worlds import question
from tests.wire.output.test_plan import PLAN

NODES = "nodes: [{name: n, count: 2, cpu: 32, memory: 128Gi, gpus: 4, model: T4, card_memory: 15Gi}]\n"
POD = (
    "---\nkind: Pod\nmetadata: {{name: {name}}}\n"
    "spec: {{nodeName: '{node}', containers: [{{name: c, resources: {{limits: {{aliyun.com/gpu-count: {gpus}}}}}}}]}}\n"
)


def pods(*wanted: tuple[str, int, str]) -> str:
    return "".join(POD.format(name=name, gpus=gpus, node=node) for name, gpus, node in wanted)


def run(*args: str) -> Result:
    return CliRunner().invoke(command, args)


@pytest.fixture
def cluster_file(tmp_path: Path) -> str:
    """Two nodes of four cards with two and one in use; pods of three and of four cards wait."""
    path = tmp_path / "cluster.yaml"
    running = (("a", 1, "n-0"), ("b", 1, "n-0"), ("c", 1, "n-1"))
    path.write_text(NODES + pods(*running, ("three", 3, ""), ("four", 4, "")))
    return str(path)


def test_the_text_answers_every_question(cluster_file: str) -> None:
    result = run("--nodes", cluster_file, "--defragment")

    assert result.exit_code == 0, result.exception
    assert result.stdout.startswith("2 nodes, 8 GPUs, 3 pods run there.\n1 of 2 pods fit now, with 3 of 7 GPUs.\n")
    assert (
        "default/four: 0 CPUs and 0 MiB of the node's memory; 4 whole GPUs\n  2 nodes: too little free on GPUs\n"
        in result.stdout
    )
    assert "  would fit: ask for aliyun.com/gpu-count: 2 instead of 4 (on n-0)\n" in result.stdout
    assert "  would fit: add one node of 4x T4 with 32 CPUs and 128 GiB\n" in result.stdout
    assert "NODES TO ADD" in result.stdout
    assert "No moves were found that make room for pods that wait." in result.stdout


def test_the_json_has_its_schema_first(cluster_file: str) -> None:
    result = run("--nodes", cluster_file, "-o", "json")
    report = decode(result.stdout)

    assert next(iter(json.loads(result.stdout).items())) == ("schema", "fractile.dev/plan/v1")
    assert (report.now.placed, [w.pods for w in report.waiting]) == (1, [("default/four",)])
    assert report.growth is not None
    assert [(g.nodes, g.gpus) for g in report.growth] == [(1, 4)]
    assert report.defragmentation is None


def test_moves_are_in_stages(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(NODES + pods(("a", 1, "n-0"), ("b", 1, "n-1"), ("w", 4, "")))
    result = run("--nodes", str(path), "--defragment", "--seeds", "1")

    assert "1 move in 1 stage. Room for pods that wait: 1, with 4 GPUs. In use now: 25.0 % of all GPUs" in result.stdout
    (last,) = (line for line in result.stdout.splitlines() if "(comes in)" in line)
    assert last.split()[:2] == ["1", "default/w"]


def test_pods_of_another_file_come_to_a_cluster_with_what_runs_there(cluster_file: str, tmp_path: Path) -> None:
    more = tmp_path / "more.yaml"
    more.write_text(pods(("one", 1, "")) + "---\nkind: Deployment\nmetadata: {name: d}\nspec: {template: {}}\n")
    report = decode(run("--nodes", cluster_file, "--pods", str(more), "-o", "json").stdout)

    assert (report.running, report.now.pods, report.now.placed) == (3, 2, 2)


def test_traces_are_planned_with_too(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", NODE_HEAD, ["a,64000,262144,8,T4", "b,64000,262144,8,P100"])
    rows = [f"p{i},4000,8192,1,{m},{s}" for i, (m, s) in enumerate([(1000, "T4")] * 9 + [(470, "")] * 3)]
    wanted = write(tmp_path / "p.csv", POD_HEAD, rows)
    report = decode(
        run("--nodes", str(nodes), "--pods", str(wanted), "--shape", "P100", "--shape", "T4", "-o", "json").stdout
    )

    assert (report.now.placed, report.now.pods) == (11, 12)
    assert [c.change for c in report.waiting[0].changes] == ["drop-model", "one-more-node"]
    assert report.growth is not None
    assert [(g.shape.model, g.nodes) for g in report.growth] == [("T4", 1), ("P100", None)]


def test_a_pod_for_a_shape_that_is_not_there_yet_is_no_mistake(tmp_path: Path) -> None:
    nodes = write(tmp_path / "n.csv", NODE_HEAD, ["a,64000,262144,4,T4"])
    wanted = write(tmp_path / "p.csv", POD_HEAD, ["p,4000,8192,8,1000,A100"])
    shape = "cpu=64,memory=256Gi,gpus=8,model=A100"
    report = decode(run("--nodes", str(nodes), "--pods", str(wanted), "--shape", shape, "-o", "json").stdout)

    assert report.growth is not None
    assert report.growth[0].nodes == 1
    with pytest.raises(WireError, match="8 GPUs are asked for, but no node has more than 4"):
        CliRunner().invoke(command, ["--nodes", str(nodes), "--pods", str(wanted)], catch_exceptions=False)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(["--policy", "best"], "'best' is not one of fgd-plus", id="policy"),
        pytest.param(["--target", "101"], "'101' is not a percentage such as 95%", id="target"),
        pytest.param(["--target", "0%"], "'0%' is not a percentage", id="no target"),
        pytest.param(["--seeds", "x"], "'x' is neither a number nor a range", id="seeds"),
        pytest.param(["--pods", "live"], "--pods live goes with --nodes live", id="mixed"),
    ],
)
def test_a_wrong_command_line_is_told_in_words(cluster_file: str, args: list[str], said: str) -> None:
    result = run("--nodes", cluster_file, *args)

    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        pytest.param(
            ["--shape", "H100"], "--shape 'H100' is neither a node nor a model of GPU (known: T4)", id="shape"
        ),
        pytest.param(["--pods", "/nowhere.yaml"], "/nowhere.yaml cannot be read", id="no file"),
        pytest.param(["--pods", "/nowhere"], "/nowhere cannot be read", id="no trace"),
    ],
)
def test_bad_input_is_one_sentence_and_no_report(cluster_file: str, args: list[str], said: str) -> None:
    result = run("--nodes", cluster_file, *args)

    assert isinstance(result.exception, FractileError)
    assert said in str(result.exception)
    assert result.stdout == ""


def test_everything_that_a_plan_can_say_has_words() -> None:
    text = plan_text.text(PLAN)

    for said in (
        "1 of 2 pods fit now, with 0.5 of 4.5 GPUs.",
        "team/b: 8 CPUs and 16384 MiB of the node's memory; 4 whole GPUs",
        "  1 node: another model of GPU, too few CPUs free",
        "  would fit: ask for nvidia.com/gpu: 2 instead of 4 (on n1)",
        "none suffice",
        "Empty nodes with GPUs: 1. Could be emptied, if their pods moved to others in use: 1, with 4 GPUs.",
        "1 move in 1 stage",
        "(comes in)",
        "note: node x: status.allocatable.cpu is missing",
    ):
        assert said in text


def test_a_terminal_obeys_nothing_that_a_pod_asks_for() -> None:
    evil = "\x1b[31mEVIL\x1b[0m\n\x1b]0;pwn\x07\u202e"
    (waits,) = PLAN.waiting
    asks = msgspec.structs.replace(waits.asks, each=evil)
    changes = tuple(msgspec.structs.replace(c, sentence=evil) for c in waits.changes)
    text = plan_text.text(
        msgspec.structs.replace(
            PLAN,
            waiting=(msgspec.structs.replace(waits, asks=asks, changes=changes, pods=(evil,)),),
            notes=(evil,),
        )
    )
    assert "EVIL" in text
    assert all(c.isprintable() or c == "\n" for c in text)
    assert not any(line.startswith("?]0;pwn") for line in text.splitlines())


def test_long_answers_are_cut_in_the_text_only() -> None:
    many = msgspec.structs.replace(
        PLAN,
        waiting=PLAN.waiting * 25,
        consolidation=Consolidation(0, tuple(Emptied(f"e{i}", 1, 1) for i in range(21)), 21, 21),
    )
    text = plan_text.text(many)

    assert text.count("team/b: 8 CPUs") == 20
    assert "and 5 other requests that fit nowhere: -o json\n" in text
    assert "in use: 21, with 21 GPUs." in text
    assert "and 1 node more: -o json\n" in text


def test_moves_that_nobody_needs_are_not_missing(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(NODES + pods(("a", 1, "n-0")))

    assert (
        "No moves are needed: there is room for one more of each kind"
        in run("--nodes", str(path), "--defragment").stdout
    )


def test_the_simulator_reads_manifests_too(cluster_file: str) -> None:
    args = ["--nodes", cluster_file, "--pods", cluster_file, "--seeds", "1", "--jobs", "1", "-o", "json"]
    result = CliRunner().invoke(simulate, args)

    assert result.exit_code == 0, result.exception
    report = simulation.decode(result.stdout)
    assert (report.nodes, report.gpus) == (2, 8)
    assert 0 < (report.policies[0].mean.allocation_at_100 or 0) <= 100


def test_policies_are_completed() -> None:
    (option,) = (p for p in command.params if p.name == "policy")
    found = option.shell_complete(click.Context(command), "gpu-")

    assert [item.value for item in found] == ["gpu-packing", "gpu-clustering"]


# ── a cluster ────────────────────────────────────────────────────────────────────────────────────────────────────────


def fill(server: FakeApiServer) -> None:
    """Two nodes with two cards each, of which one is sick; pods that run, that wait, and that make no sense."""
    for name in ("n1", "n2"):
        amounts = {"cpu": "8", "memory": "32Gi", "pods": "10", MEM: str(2 * MEMORY)}
        server.create("/api/v1/nodes", {"metadata": {"name": name}, "status": {"allocatable": amounts}})
        for index in (0, 1):
            server.create(CARDS, card(name, index, healthy=(name, index) != ("n2", 1)))
    for body in (
        pod("a", container("main", 8138), on="n1", placed=placed("n1", main=(0, 8138))),
        pod("done", container("main", 9000), on="n1", placed=placed("n1", main=(1, 9000)), phase="Succeeded"),
        pod("large", container("main", 16276)),
        pod("class", container("main", 1, resource=GPU_SLOT, more={resource_name("large"): 1})),
        pod("odd", container("half", -1)),
        pod("away", container("main", 1), on="n9"),
    ):
        server.create(PODS, body)


async def test_a_cluster_is_read_and_what_makes_no_sense_is_a_note(server: FakeApiServer) -> None:
    fill(server)
    notes: list[str] = []
    objects = await plan_input.live(Credentials(server=server.url))
    found = plan_input.snapshot_of(objects, lambda who, why: notes.append(f"{who}: {why}"))

    assert [(m.name, m.slots, [c.healthy for c in m.cards]) for m in found.machines] == [
        ("n1", 10, [True, True]),
        ("n2", 10, [True, False]),
    ]
    assert [(t.key, t.cards) for t in found.bound] == [("default/a", (("GPU-n1-0", 8138, 0),))]
    assert [t.key for t in found.pending] == ["default/large"]
    assert sorted(n.partition(": ")[0] for n in notes) == ["pod default/away", "pod default/class", "pod default/odd"]
    assert "asks for class large, which does not exist" in "".join(notes)


async def test_a_plan_of_a_cluster_uses_its_free_cards(server: FakeApiServer) -> None:
    fill(server)
    objects = await plan_input.live(Credentials(server=server.url))
    report = plan(plan_input.snapshot_of(objects, lambda who, why: None), question(policy="bestfit"))

    assert (report.running, report.now.placed) == (1, 1)
    assert (report.now.placements[0].node, report.now.placements[0].cards) in (("n1", (1,)), ("n2", (0,)))


async def test_a_cluster_without_fractile_is_planned_with_too(server: FakeApiServer) -> None:
    server.create(
        "/api/v1/nodes", {"metadata": {"name": "n"}, "status": {"allocatable": {"cpu": "4", "memory": "8Gi"}}}
    )
    server.create(PODS, pod("w", container("main", MEMORY, resource=GPU_SLOT)))
    found = plan_input.snapshot_of(await plan_input.live(Credentials(server=server.url)), lambda who, why: None)

    assert [m.name for m in found.machines] == ["n"]


@pytest.mark.parametrize("pods", ["p.csv", "p.yaml"])
def test_files_without_nodes_or_pods_are_named(tmp_path: Path, cluster_file: str, pods: str) -> None:
    write(tmp_path / "p.csv", POD_HEAD, ["p,4000,8192,1,1000,"])
    (tmp_path / "p.yaml").write_text("kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c}]}\n")
    (tmp_path / "nothing.yaml").write_text("kind: ConfigMap\nmetadata: {name: c}\n")
    nothing = str(tmp_path / "nothing.yaml")

    assert str(run("--nodes", nothing, "--pods", str(tmp_path / pods)).exception) == f"{nothing} has no nodes"
    assert str(run("--nodes", cluster_file, "--pods", nothing).exception) == f"{nothing} has no pods"
