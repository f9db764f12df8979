"""Reading nodes and pods, and what is said about files that are wrong."""

from pathlib import Path

import pytest

from fractile.errors import WireError
from fractile.policy.nodes.view import TaskDemand
from fractile.sim.snapshot.trace import NodeRow, PodRow, read_nodes, read_pods
from tests.sim.traces import NODE_HEAD, POD_HEAD, nodes, write

CLUSTER = nodes(8, 2, models=("G2", "T4"))


def test_nodes_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "n.csv", NODE_HEAD, ["a,64000,262144,2,P100", "b,32000,1024,0,"])

    assert read_nodes(path) == (NodeRow("a", 64_000, 262_144, 2, "P100"), NodeRow("b", 32_000, 1_024, 0, ""))


def test_pods_are_read_and_models_stay_as_they_are_written(tmp_path: Path) -> None:
    lines = ["p,6000,12288,1,460,T4|G2|T4", "q,0,0,2,1000,", "r,8000,1024,0,0,T4"]

    assert read_pods(write(tmp_path / "p.csv", POD_HEAD, lines), CLUSTER) == (
        PodRow("p", TaskDemand(6_000, 12_288, 1, 460, ("T4", "G2", "T4"))),
        PodRow("q", TaskDemand(0, 0, 2, 1000)),
        PodRow("r", TaskDemand(8_000, 1_024)),
    )


def test_the_columns_may_stand_in_any_order_with_others_between_and_without_models(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", "qos,gpu_milli,num_gpu,name,memory_mib,cpu_milli", ["LS,500,1,p,64,1000"])

    assert read_pods(path, CLUSTER) == (PodRow("p", TaskDemand(1_000, 64, 1, 500)),)


def test_a_file_from_a_spreadsheet_is_read(tmp_path: Path) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(b"\xef\xbb\xbf" + f"{NODE_HEAD}\r\na,1000.0,64,1,T4\r\n\r\n".encode())

    assert read_nodes(path) == (NodeRow("a", 1_000, 64, 1, "T4"),)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param(
            ["a,-1,64,1,T4"], "line 2 column cpu_milli: '-1' is not a whole number of 0 or more", id="negative"
        ),
        pytest.param(["a,1e3,64,1,T4"], "line 2 column cpu_milli: '1e3' is not a whole number", id="not a number"),
        pytest.param(["a,1000,64,1,T4", "b,,64,1,T4"], "line 3 column cpu_milli: '' is not a whole number", id="empty"),
        pytest.param(["a,1000,64,200,T4"], "line 2 column gpu: 200 is not within 0 and 64", id="too many GPUs"),
        pytest.param(["a,99999999999,64,1,T4"], "line 2 column cpu_milli: 99999999999 is not within", id="absurd"),
        pytest.param(["a,0,64,1,T4"], "line 2 column cpu_milli: 0 is not within 1 and", id="no CPU"),
        pytest.param(["a,1000,64,1,T4", "a,1000,64,1,T4"], "line 3 column sn: a appears twice", id="twice"),
        pytest.param([",1000,64,1,T4"], "line 2 column sn: it is empty", id="no name"),
        pytest.param(["a,1000,64,1,"], "line 2 column model: it is empty on a node with 1 GPUs", id="no model"),
        pytest.param(["a,1000,64"], "line 2 column 3: 3 cells under 5 headings", id="short line"),
        pytest.param(["a,1000,64,²,T4"], "line 2 column gpu: '²' is not a whole number", id="not a decimal digit"),
        pytest.param([], "has no nodes", id="no nodes"),
    ],
)
def test_what_is_wrong_with_nodes_is_told_with_its_place(tmp_path: Path, lines: list[str], said: str) -> None:
    path = write(tmp_path / "n.csv", NODE_HEAD, lines)

    with pytest.raises(WireError) as e:
        read_nodes(path)

    assert str(e.value).startswith(f"{path} {said}")
    assert "\n" not in str(e.value)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        pytest.param(
            ["p,1,1,9,1000,"], "line 2 column num_gpu: 9 GPUs are asked for, but no node has more than 8", id="many"
        ),
        pytest.param(
            ["p,1,1,4,1000,T4|H900"],
            "line 2 column num_gpu: 4 GPUs of T4|H900 are asked for, but no node has more than 2",
            id="many of a model",
        ),
        pytest.param(
            ["p,1,1,1,500,", "q,64001,1,0,0,"],
            "line 3 column cpu_milli: 64001 are asked for, but no node has more than 64000",
            id="more CPU than any node",
        ),
        pytest.param(
            ["p,1,262145,1,500,"],
            "line 2 column memory_mib: 262145 are asked for, but no node has more than 262144",
            id="more memory than any node",
        ),
        pytest.param(
            ["p,1,1,-1,500,"], "line 2 column num_gpu: '-1' is not a whole number of 0 or more", id="negative"
        ),
        pytest.param(["p,1,1,1,500,", "p,1,1,1,500,"], "line 3 column name: p appears twice", id="twice"),
        pytest.param(["p,1,1,1,1001,"], "line 2 column gpu_milli: 1001 is not within 0 and 1000", id="more than one"),
        pytest.param(["p,1,1,2,500,"], "line 2 column gpu_milli: 500 thousandths of 2 GPUs", id="parts of several"),
        pytest.param(
            ["p,1,1,1,0,"], "line 2 column gpu_milli: 1 GPUs are asked for, but nothing of each", id="nothing"
        ),
        pytest.param(["p,1,1,1,1000,H900"], "line 2 column gpu_spec: no node has GPUs of model H900", id="model"),
        pytest.param([], "has no pods", id="no pods"),
    ],
)
def test_what_is_wrong_with_pods_is_told_with_its_place(tmp_path: Path, lines: list[str], said: str) -> None:
    path = write(tmp_path / "p.csv", POD_HEAD, lines)

    with pytest.raises(WireError) as e:
        read_pods(path, CLUSTER)

    assert str(e.value).startswith(f"{path} {said}")


def test_nodes_without_gpus_are_told_as_such(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", POD_HEAD, ["p,1,1,1,1000,T4"])

    with pytest.raises(WireError, match="1 GPUs are asked for, but no node has any"):
        read_pods(path, nodes(0, 0))


def test_a_model_that_no_node_has_may_stand_beside_one_that_some_have(tmp_path: Path) -> None:
    path = write(tmp_path / "p.csv", POD_HEAD, ["p,1,1,1,1000,H900|T4"])

    assert read_pods(path, CLUSTER)[0].ask.models == ("H900", "T4")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        pytest.param(b"", "line 1 column sn: this column is missing", id="empty"),
        pytest.param(b"sn,cpu_milli,memory_mib,model\n", "line 1 column gpu: this column is missing", id="column"),
        pytest.param(
            f"{NODE_HEAD},gpu\na,1000,64,1,T4,2\n".encode(), "line 1 column gpu: it appears twice", id="column twice"
        ),
        pytest.param(
            f"{NODE_HEAD}\n".encode() + b"\xff\xfe,1,1,1,T4\n", "is not UTF-8: invalid start byte", id="bytes"
        ),
        pytest.param(f'{NODE_HEAD}\n"a,1,1,1,T4'.encode(), "is not a CSV file: unexpected end of data", id="quote"),
    ],
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "n.csv"
    path.write_bytes(content)

    with pytest.raises(WireError) as e:
        read_nodes(path)

    assert str(e.value).startswith(f"{path} {said}")
