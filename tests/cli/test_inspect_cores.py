"""The column of promised cores in ``fractile inspect``: there when somebody was promised a part of a card's time."""

import io

import msgspec
from rich.console import Console

from fractile.cli.text import inspect
from fractile.cli.text.inspect_tree import draw
from fractile.wire.output.inspect import (
    Amounts,
    CardHolder,
    CardReport,
    ContainerShare,
    Inspection,
    NodeReport,
    WaitingContainer,
    WaitingPodReport,
)


def report(*cores: int) -> Inspection:
    pods = tuple(_pod(f"p{number}", percent) for number, percent in enumerate(cores))
    held = 1000 * len(pods)
    card = CardReport("GPU-a", 0, "T4", "", True, 16000, held, 16000 - held, 0.0, sum(cores), pods)
    amounts = Amounts(1, 16000, held, 16000 - held, 0.0)
    return Inspection(
        memory_unit="MiB", totals=amounts, nodes=(NodeReport("n1", amounts, (card,)),), waiting=(), problems=()
    )


def test_the_table_has_a_column_of_cores_when_a_pod_has_a_part_of_a_card() -> None:
    lines = inspect.table(report(30, 50)).splitlines()

    assert lines[0].split() == ["NODE", "CARD", "MODEL", "ALLOCATED/TOTAL", "MiB", "USED", "CORES", "PODS"]
    assert lines[1].split()[5] == "80%"
    assert lines[2].split()[-2:] == ["-", "-"]


def test_pods_without_cores_and_whole_cards_need_no_such_column() -> None:
    assert "CORES" not in inspect.table(report(0, 0))
    assert "CORES" not in inspect.table(report(100))


def test_the_tree_says_the_cores_of_cards_and_pods() -> None:
    console = Console(file=io.StringIO(), width=80)

    draw(report(30, 0), console)

    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert lines[0].rstrip().endswith("CORES")
    assert lines[2].rstrip().endswith("30 %")
    assert lines[3].rstrip().endswith("30 %")
    assert lines[4].rstrip().endswith("1000")


def test_above_pods_that_wait_for_cores_it_is_said_where_most_are_free() -> None:
    asking = WaitingContainer("main", "app", "tencent.com/vcuda-core", 90, 1, 1024, exclusive=False, cores_percent=90)
    waiting = (WaitingPodReport("default", "w", "u", "", (asking,), ""),)
    busy, beside_coreless = (msgspec.structs.replace(report(*cores), waiting=waiting) for cores in ((30,), (30, 0)))

    assert (
        "1 pod waiting; most free on one card: 15000 MiB (n1, card 0); most cores free on one: 70 % (n1, card 0):"
        in (list(inspect.waiting_lines(busy)))
    )
    assert "most cores free on one: 69 %" in list(inspect.waiting_lines(beside_coreless))[1]


def _pod(name: str, cores: int) -> CardHolder:
    return CardHolder(
        "default", name, f"uid-{name}", "Running", 1000, cores, (ContainerShare("main", "app", 1000, cores),)
    )
