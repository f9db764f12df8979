"""``fractile score`` as a person runs it."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fractile.cli.score import command
from fractile.errors import FractileError, SetupError, WireError
from fractile.wire.output.score_report import decode

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "score.yaml"
NODE = "kind: Node\nmetadata: {name: n}\nstatus: {allocatable: {cpu: 4, memory: 8Gi, a/gpu: 8}}\n"
POD = "kind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, resources: {requests: {cpu: 1, a/gpu: 2}}}]}\n"


def run(*args: str, text: str | None = None) -> Result:
    return CliRunner().invoke(command, args, input=text)


def told(text: str, *args: str) -> FractileError:
    result = run("-f", "-", *args, text=text)
    assert isinstance(result.exception, FractileError), result.output
    assert result.stdout == ""
    return result.exception


def test_the_page_shows_what_the_example_prints() -> None:
    page = (ROOT / "docs" / "reference" / "score.md").read_text().split("```\n")

    assert run("-f", str(EXAMPLE), "--kubernetes", "1.20").stdout in page


@pytest.mark.parametrize(("version", "cpu"), [("1.20", 114), ("1.36", 111)])
def test_the_nodes_of_the_example_score_60_and_69_or_5_and_7_of_10(version: str, cpu: int) -> None:
    report = decode(run("-f", str(EXAMPLE), "--kubernetes", version, "-o", "json").stdout)

    (pod,) = report.pods
    assert [(n.node, n.score, n.scale_of_ten and n.scale_of_ten.score) for n in pod.nodes] == [
        ("node-1", 60, 5),
        ("node-2", 69, 7),
    ]
    assert [t.score * t.weight for t in pod.nodes[0].terms] == [375, 50, cpu]
    assert (pod.best, pod.strategy.source) == (("node-2",), "file")


def test_options_take_the_place_of_the_file() -> None:
    options = ["--strategy", "most-allocated", "--resources", "cpu"]
    (pod,) = decode(run("-f", str(EXAMPLE), *options, "-o", "json").stdout).pods

    assert (pod.strategy.kind, pod.strategy.source, pod.strategy.shape) == ("most-allocated", "options", ())
    assert [n.score for n in pod.nodes] == [37, 100]
    assert pod.nodes[0].scale_of_ten is None


def test_pods_on_a_node_count_until_they_have_ended_and_the_default_is_kube_schedulers() -> None:
    there = POD.replace("name: p", "name: there").replace("spec: {", "spec: {nodeName: n, ")
    done = there.replace("there", "done") + "status: {phase: Succeeded}\n"
    (pod,) = decode(run("-f", "-", "-o", "json", text="---\n".join([NODE, there, done, POD])).stdout).pods

    assert (pod.strategy.kind, pod.strategy.source) == ("least-allocated", "default")
    cpu, memory = pod.nodes[0].terms
    assert (cpu.held, cpu.pod, cpu.capacity) == (1000, 1000, 4000)
    assert (memory.held, memory.pod) == (200 * 2**20, 200 * 2**20)  # of those who ask for none


def test_a_list_as_kubectl_prints_it_is_read() -> None:
    node, pod = {"kind": "Node", "metadata": {"name": "n"}}, {"kind": "Pod", "metadata": {"name": "p"}}
    result = run("-f", "-", text=json.dumps({"kind": "List", "items": [node, pod]}))

    assert "n: 0 of 100" in result.stdout


def test_a_node_without_room_is_told_and_does_not_win() -> None:
    full = NODE.replace("name: n", "name: full").replace("a/gpu: 8", "a/gpu: 1")
    result = run("-f", "-", text="---\n".join([full, NODE, POD]))

    assert "the pod does not fit, for lack of a/gpu: it would not be scored" in result.stdout
    assert result.stdout.endswith("\nn wins\n")
    none = run("-f", "-", text="---\n".join([full, POD]))
    assert none.stdout.endswith("\nno node has room for the pod\n")


def test_of_equal_nodes_a_lot_decides() -> None:
    other = NODE.replace("name: n", "name: m")

    assert (
        "n, m are equal; kube-scheduler picks one at random"
        in run("-f", "-", text="---\n".join([NODE, other, POD])).stdout
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: 1\nb: ]", "the input: line 2: this is not YAML"),
        ("- 1", "document 1 is a list"),
        ("kind: Service", "document 1: kind 'Service' is not one of Node, Pod"),
        (f"{NODE}---\nkind: Pod", "document 2: it has no metadata.name"),
        (f"{NODE}---\n{NODE}", "document 2: node 'n' appears twice"),
        (f"{NODE}---\n{POD}---\n{POD}", "document 3: pod 'default/p' appears twice"),
        ("kind: Node\nmetadata: {name: 3}", "document 1: Expected `str`, got `int` - at `$.metadata.name`"),
        (POD, "has no Node"),
        (NODE, "has no Pod without spec.nodeName"),
        (f"{NODE}---\n{POD}".replace("cpu: 4", "cpu: x"), "node n: cpu: 'x' is not a quantity"),
        (f"{NODE}---\n{POD}".replace("cpu: 1", "cpu: -1"), "pod p: cpu: -1 is negative"),
        (f"{NODE}---\n{POD}".replace("cpu: 4", "cpu: 1e18"), "more than kube-scheduler can compute with"),
        (f"{NODE}---\n{POD}---\nkind: NodeResourcesFitArgs\nscoringStrategy: {{type: X}}", "the input: 'X' is not a"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_in_a_sentence(text: str, words: str) -> None:
    error = told(text)

    assert isinstance(error, WireError | SetupError)
    assert words in str(error)


def test_a_pod_that_is_not_there_is_told_with_those_that_are() -> None:
    assert "no Pod 'q' without spec.nodeName; there are: p" in str(told(f"{NODE}---\n{POD}", "--pod", "q"))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    result = run("-f", str(tmp_path / "none.yaml"))

    assert "none.yaml cannot be read: No such file" in str(result.exception)


@pytest.mark.parametrize(
    "args", [["--shape", "1"], ["--resources", "cpu=0"], ["--kubernetes", "1.19"], ["--strategy", "x"]]
)
def test_a_wrong_command_line_is_refused(args: list[str]) -> None:
    assert run("-f", str(EXAMPLE), *args).exit_code == 2
