"""The live table of ``fractile top`` says what it leaves out."""

import re

import msgspec
import pytest

from fractile.cli.text.top import screen, table
from fractile.wire.output.node_usage import ClusterUsage, ContainerUsage, NodeUsage, Unanswered
from tests.metrics.test_node import NODE

ONE = NODE.containers[0]


def busy(containers: int, *, nodes: int = 1, outside: bool = True) -> ClusterUsage:
    found: list[NodeUsage] = []
    for number in range(nodes):
        run = tuple(_container(i) for i in range(containers))
        node = msgspec.structs.replace(NODE, node=f"node-{number}", containers=run)
        found.append(node if outside else msgspec.structs.replace(node, outside=(), departed=()))
    return ClusterUsage(nodes=tuple(found))


def _container(number: int) -> ContainerUsage:
    return msgspec.structs.replace(ONE, pod=f"packed-6f78c4cf84-{number:05}", namespace="default")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 10), (200, 60), (20, 3), (1, 1)])
@pytest.mark.parametrize("containers", [0, 3, 17, 200])
def test_no_line_is_wider_and_no_more_lines_are_there_than_the_terminal_has(
    width: int, height: int, containers: int
) -> None:
    lines = screen(busy(containers, nodes=2), width, height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_what_fits_is_shown_whole() -> None:
    usage = busy(3, outside=False)
    assert screen(usage, 200, 60) == table(usage)


def test_on_an_ordinary_terminal_use_and_busy_stay_and_what_is_hidden_is_counted() -> None:
    lines = screen(busy(17), 80, 24).splitlines()
    (hidden,) = [line for line in lines if "hidden" in line]
    heads = [line.split() for line in lines if line.startswith("NODE")]
    (rows,) = [line for line in lines if "more rows" in line]
    shown = sum("packed-" in line for line in lines)

    assert hidden == "8 columns hidden: widen the terminal, or use --once"
    assert "USED/QUOTA" in heads[1]
    assert "BUSY" in heads[1]
    assert "POD" in heads[1]
    assert rows == f"{2 * 17 - shown} more rows: use a taller terminal, or --once"


def test_the_sentences_come_first_and_are_whole() -> None:
    text = screen(busy(200), 80, 24)
    before, _, _ = text.partition("NODE")
    said = re.sub(r"\s+", " ", before)

    assert "outside the ledger: 1 MiB of card 0, x/q, process (pid 7 on the node): uses a card it was not given" in said
    assert "held by (deleted) ns/grace main, until its processes have ended" in said


def test_of_very_many_sentences_some_are_counted_and_cards_are_still_there() -> None:
    missing = tuple(Unanswered(node=f"n{i}", reason="has not answered in 3 s") for i in range(50))
    lines = screen(msgspec.structs.replace(busy(3), unanswered=missing), 80, 24).splitlines()

    assert any(re.fullmatch(r"\d+ more notes: --once", line) for line in lines)
    assert any(line.startswith("NODE") for line in lines)


def test_rows_of_containers_for_which_no_line_is_left_are_counted_too() -> None:
    *_, last = screen(busy(17), 100, 8).splitlines()
    assert last.endswith("more rows: use a taller terminal, or --once")
