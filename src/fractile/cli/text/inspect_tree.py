"""An Inspection for a terminal: nodes, their cards, the pods on them, with a bar for what is allocated.

It fits 80 columns: only the first column grows, and a name that is too long is continued on the next line.
"""

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fractile.cli.text import inspect as text
from fractile.model.words import printable
from fractile.wire.fractile.departed import PHASE
from fractile.wire.output.inspect import Amounts, CardHolder, CardReport, Inspection

_BAR = 12  # characters


def draw(report: Inspection, console: Console) -> None:
    """Write the report to the console."""
    console.print(_grid(report, ascii_only=not console.encoding.lower().startswith("utf")))
    console.print()
    console.print(Text(text.total_line(report), style="bold"))
    _section(list(text.waiting_lines(report)), console, "yellow")
    _section(list(text.problem_lines(report)), console, "red")


def _grid(report: Inspection, *, ascii_only: bool) -> Table:
    cores = text.promises_cores(report)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="fold")
    for justify in ("right", "left", "right", "left", "right"):
        grid.add_column(justify=justify, no_wrap=True)
    headings = ("NODE, CARD, POD", "MiB HELD", "/ TOTAL", "", "", "CORES" if cores else "")
    grid.add_row(*(Text(t, style="dim") for t in headings))
    for node in report.nodes:
        grid.add_row(Text(printable(node.name), style="bold"), *_amounts(node.totals, ascii_only))
        for card in node.cards:
            name = Text(printable(f"  {card.index}  {text.model(card)}"), style="" if card.healthy else "red")
            grid.add_row(name, *_amounts(card, ascii_only), _cores(card.allocated_cores_percent, shown=cores))
            for pod in card.pods:
                grid.add_row(*_pod(pod), _cores(pod.cores_percent, shown=cores))
    return grid


def _section(lines: list[str], console: Console, style: str) -> None:
    """An empty line, a heading, and entries that are indented as a whole."""
    for position, line in enumerate(lines):
        entry = Text(printable(line.strip()), style=style if position == 1 else "")
        console.print(Padding(entry, (0, 0, 0, len(line) - len(line.lstrip()))))


def bar(allocated: int, total: int, *, ascii_only: bool = False) -> tuple[str, str]:
    """The filled and the empty part of the bar; any allocation is visible, and only a full card looks full."""
    filled = 0 if total <= 0 else min(_BAR, _BAR * allocated // total)
    if allocated > 0 and filled == 0:
        filled = 1
    full, empty = ("#", ".") if ascii_only else ("■", "·")
    return full * filled, empty * (_BAR - filled)


def _amounts(amounts: Amounts | CardReport, ascii_only: bool) -> tuple[Text, Text, Text, Text]:
    full, empty = bar(amounts.allocated_mib, amounts.memory_mib, ascii_only=ascii_only)
    return (
        Text(str(amounts.allocated_mib)),
        Text(f"/ {amounts.memory_mib}"),
        Text(text.percent(amounts)),
        Text.assemble((full, "cyan"), (empty, "dim")),
    )


def _cores(percent: int, *, shown: bool) -> Text:
    return Text(f"{percent} %" if shown and percent else "")


def _pod(pod: CardHolder) -> tuple[Text, ...]:
    phase = Text("" if pod.phase in ("Running", PHASE) else printable(pod.phase), style="yellow")
    return Text(printable(f"     {text.named(pod)}")), Text(str(pod.memory_mib)), Text(), Text(), phase
