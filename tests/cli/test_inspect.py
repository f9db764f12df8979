"""``fractile inspect`` as a person runs it, against an API server at the wire."""

import asyncio
import io
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
import pytest
import yaml
from rich.console import Console

from fractile.cli import inspect as inspect_command
from fractile.cli.text.inspect_tree import bar, draw
from fractile.main.cli import main
from fractile.wire.output import inspect
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.objects import card, container, node, placed, pod
from tests.reports.shown_cluster import CARDS, PODS

Result = tuple[int, str, str]
Run = Callable[..., Awaitable[Result]]


@pytest.fixture
def kubeconfig(server: FakeApiServer, tmp_path: Path) -> Path:
    return server.write_kubeconfig(tmp_path / "kubeconfig")


@pytest.fixture
def run(kubeconfig: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    async def run(*args: str) -> Result:
        with pytest.raises(SystemExit) as end:
            await asyncio.to_thread(main, ["inspect", "--kubeconfig", str(kubeconfig), *args])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


async def test_a_pipe_gets_one_line_per_card_and_per_node(cluster: FakeApiServer, run: Run) -> None:
    code, out, err = await run()

    assert (code, err) == (0, "")
    assert out.splitlines()[:7] == [
        "NODE  CARD  MODEL                   ALLOCATED/TOTAL MiB  USED  PODS",
        "n1       0  Tesla-V100                      12207/16276   75%  default/a:8138,default/b:4069",
        "n1       1  Tesla-V100                          0/16276    0%  -",
        "n1     all  2 cards                         12207/32552   38%  -",
        "n2       0  Tesla-V100                       1500/16276    9%  default/two:1500",
        "n2       1  Tesla-V100 (unhealthy)              0/16276    0%  -",
        "n2     all  2 cards                          1500/32552    5%  -",
    ]
    assert "\x1b" not in out


async def test_sums_waiting_pods_and_doubtful_pods_follow_the_table(cluster: FakeApiServer, run: Run) -> None:
    _, out, _ = await run()

    assert out.split("\n\n")[1:] == [
        "2 nodes, 4 cards: 13707/65104 MiB allocated (21 %), 35121 MiB free",
        "4 pods waiting; most free on one card: 16276 MiB (n1, card 1):\n"
        "  default/cards  2 whole cards\n"
        "  default/class  1 of class large\n"
        "  default/large  16276 MiB\n"
        "  default/odd    container half asks for aliyun.com/gpu-mem: '-1' is negative; write a whole number such as 4",
        "2 problems:\n"
        "  ExtendedResource gpu-n2-1: card 1 of n2 is unhealthy since 2026-11-21T05:00:00Z (CardLost): "
        "it does not answer on the bus\n"
        "  default/liar on n1: its placement does not match its request: "
        "container main asks for 4069 MiB, the placement gives 1 MiB\n",
    ]


async def test_wide_has_one_line_per_container(cluster: FakeApiServer, run: Run) -> None:
    _, out, _ = await run("-o", "wide")

    assert [line.split() for line in out.split("\n\n")[0].splitlines()] == [
        ["NODE", "CARD", "NAMESPACE", "POD", "CONTAINER", "ROLE", "MEMORY", "MiB", "CORES", "PHASE", "UUID"],
        ["n1", "0", "default", "a", "main", "app", "8138", "0%", "Running", "GPU-n1-0"],
        ["n1", "0", "default", "b", "main", "app", "4069", "0%", "Running", "GPU-n1-0"],
        ["n1", "1", "-", "-", "-", "-", "-", "-", "-", "GPU-n1-1"],
        ["n2", "0", "default", "two", "x", "app", "1000", "0%", "Running", "GPU-n2-0"],
        ["n2", "0", "default", "two", "y", "app", "500", "0%", "Running", "GPU-n2-0"],
        ["n2", "1", "-", "-", "-", "-", "-", "-", "-", "GPU-n2-1"],
    ]


async def test_json_and_yaml_say_the_same(cluster: FakeApiServer, run: Run) -> None:
    _, as_json, _ = await run("-o", "json")
    _, as_yaml, _ = await run("-o", "yaml")

    report = inspect.decode(as_json)
    assert inspect.decode(inspect.msgspec.json.encode(yaml.safe_load(as_yaml))) == report
    assert report.totals.allocated_mib == 13707
    assert [n.name for n in report.nodes] == ["n1", "n2"]


async def test_one_node_shows_its_own_sums_and_no_waiting_pods(cluster: FakeApiServer, run: Run) -> None:
    _, out, _ = await run("n2", "-o", "json")

    report = inspect.decode(out)
    assert [n.name for n in report.nodes] == ["n2"]
    assert report.totals == report.nodes[0].totals
    assert report.waiting == ()
    assert [(p.kind, p.node) for p in report.problems] == [("ExtendedResource", "n2")]


async def test_an_unknown_node_is_refused_with_those_that_exist(cluster: FakeApiServer, run: Run) -> None:
    assert await run("n3") == (1, "", "fractile: node 'n3' has no cards; nodes with cards: n1, n2\n")


async def test_a_cluster_without_cards_is_told_what_to_do(server: FakeApiServer, run: Run) -> None:
    code, out, err = await run()

    assert (code, out) == (1, "")
    assert err.startswith("fractile: the cluster has no cards")
    assert "fractile agent" in err


@pytest.mark.parametrize(
    ("status", "said"),
    [(401, "does not accept these credentials"), (403, "may not read"), (404, "Fractile is not installed")],
    ids=["unknown", "forbidden", "no CRD"],
)
async def test_a_refusal_of_the_api_server_is_one_sentence(
    cluster: FakeApiServer, run: Run, status: int, said: str
) -> None:
    cluster.inject(Fault(path="extendedresources", status=status, times=9))

    code, out, err = await run()

    assert (code, out) == (1, "")
    assert said in err
    assert err.count("\n") == 1


async def test_a_cluster_that_is_down_is_one_sentence(server: FakeApiServer, run: Run) -> None:
    await server.stop()

    code, _, err = await run()

    assert code == 1
    assert "the cluster does not answer" in err
    assert err.count("\n") == 1


async def test_another_context_is_used_on_demand(cluster: FakeApiServer, run: Run) -> None:
    assert (await run("--context", "fake"))[0] == 0
    code, _, err = await run("--context", "prod")
    assert code == 1
    assert "has no context 'prod'" in err


async def test_amounts_in_gib_are_read_in_gib(server: FakeApiServer, run: Run) -> None:
    server.create("/api/v1/nodes", node("n1", gpu_mem=30))
    for index in (0, 1):
        server.create(CARDS, card("n1", index))
    server.create(PODS, pod("a", container("main", 4), on="n1", placed=placed("n1", main=(0, 4096))))

    report = inspect.decode((await run("-o", "json"))[1])

    assert report.memory_unit == "GiB"
    assert report.totals.allocated_mib == 4096
    assert report.problems == ()


async def test_a_pod_on_a_card_that_is_gone_is_a_problem(server: FakeApiServer, run: Run) -> None:
    server.create(CARDS, card("n1", 0))
    server.create(PODS, pod("a", container("main", 4), on="n1", placed=placed("n1", main=(7, 4))))

    report = inspect.decode((await run("-o", "json"))[1])

    assert [p.reason for p in report.problems] == ["holds GPU-n1-7, which no node reports"]


async def test_a_card_with_impossible_memory_is_a_problem_and_not_counted(server: FakeApiServer, run: Run) -> None:
    server.create(CARDS, card("n1", 0))
    server.create(CARDS, card("n1", 1, memory="-5Mi"))

    report = inspect.decode((await run("-o", "json"))[1])

    assert report.totals.cards == 1
    assert [(p.kind, p.node) for p in report.problems] == [("ExtendedResource", "n1")]


async def test_the_tree_fits_80_columns(cluster: FakeApiServer, run: Run) -> None:
    report = inspect.decode((await run("-o", "json"))[1])
    screen = io.StringIO()

    draw(report, Console(file=screen, width=80, force_terminal=True, color_system=None))

    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines)) <= 80
    assert lines[:5] == [
        "NODE, CARD, POD             MiB HELD / TOTAL",
        "n1                             12207 / 32552 38 % ■■■■········",
        "  0  Tesla-V100                12207 / 16276 75 % ■■■■■■■■■···",
        "     default/a                  8138",
        "     default/b                  4069",
    ]
    assert "2 nodes, 4 cards: 13707/65104 MiB allocated (21 %), 35121 MiB free" in lines


@pytest.mark.parametrize(
    ("allocated", "drawn"),
    [(0, "·" * 12), (1, "■" + "·" * 11), (16275, "■" * 11 + "·"), (16276, "■" * 12), (20000, "■" * 12)],
    ids=["nothing", "something", "nearly full", "full", "too much"],
)
def test_the_bar_is_full_only_when_the_card_is(allocated: int, drawn: str) -> None:
    assert "".join(bar(allocated, 16276)) == drawn


async def test_tab_completes_the_names_of_nodes_with_cards(cluster: FakeApiServer, kubeconfig: Path) -> None:
    assert await asyncio.to_thread(_complete, kubeconfig, "n") == ["n1", "n2"]
    assert await asyncio.to_thread(_complete, kubeconfig, "n2") == ["n2"]


async def test_completion_is_silent_when_the_cluster_is_down(server: FakeApiServer, kubeconfig: Path) -> None:
    await server.stop()

    assert await asyncio.to_thread(_complete, kubeconfig, "n") == []


async def test_completion_gives_up_soon_when_the_cluster_hangs(server: FakeApiServer, kubeconfig: Path) -> None:
    server.inject(Fault(delay=30.0))

    async with asyncio.timeout(5):
        assert await asyncio.to_thread(_complete, kubeconfig, "n") == []


def test_inspect_starts_without_the_servers_libraries() -> None:
    code = (
        "import sys, fractile.main.cli, fractile.cli.inspect, fractile.reports.inspect;"
        "print([m for m in ('grpc', 'uvicorn', 'starlette', 'rich', 'yaml') if m in sys.modules])"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout == "[]\n"


def _complete(kubeconfig: Path, incomplete: str) -> list[str]:
    context = click.Context(inspect_command.command, info_name="inspect", resilient_parsing=True)
    context.params = {"kubeconfig": kubeconfig, "name": "", "context": ""}
    argument = next(p for p in inspect_command.command.params if p.name == "node")
    return [item.value for item in argument.shell_complete(context, incomplete)]
