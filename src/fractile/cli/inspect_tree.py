"""An Inspection for a person at a terminal: nodes, their cards, the pods on them, with a bar for what is allocated.

It fits 80 columns: only the first column grows, and a name that is too long is continued on the next line.
"""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fractile.cli import inspect_text as text
from fractile.wire.inspect import Amounts, CardReport, Holder, Inspection

_BAR = 12  # characters


def draw(report: Inspection, console: Console) -> None:
    """Write the report to the console."""
    grid = Table.grid(padding=(0, 2))
    grid.add_column("", overflow="fold")
    grid.add_column("", justify="right", no_wrap=True)
    grid.add_column("", justify="right", no_wrap=True)
    grid.add_column("", no_wrap=True)
    grid.add_row(*(Text(t, style="dim") for t in ("NODE, CARD, POD", "MEMORY MiB", "USED", "")))
    ascii_only = not console.encoding.lower().startswith("utf")
    for node in report.nodes:
        grid.add_row(Text(node.name, style="bold"), *_amounts(node.totals, ascii_only))
        for card in node.cards:
            name = Text(f"  {card.index}  {text.model(card)}", style="" if card.healthy else "red")
            grid.add_row(name, *_amounts(card, ascii_only))
            for pod in card.pods:
                grid.add_row(*_pod(pod))
    console.print(grid)
    console.print()
    console.print(text.closing(report), end="", markup=False, highlight=False, soft_wrap=True)


def bar(allocated: int, total: int, *, ascii_only: bool = False) -> tuple[str, str]:
    """The filled and the empty part of the bar; something allocated shows, and only a full card looks full."""
    filled = 0 if total <= 0 else min(_BAR, _BAR * allocated // total)
    if allocated > 0 and filled == 0:
        filled = 1
    full, empty = ("#", ".") if ascii_only else ("■", "·")
    return full * filled, empty * (_BAR - filled)


def _amounts(amounts: Amounts | CardReport, ascii_only: bool) -> tuple[Text, Text, Text]:
    full, empty = bar(amounts.allocated_mib, amounts.memory_mib, ascii_only=ascii_only)
    strip = Text.assemble((full, "cyan"), (empty, "dim"))
    return Text(text.memory(amounts)), Text(text.percent(amounts)), strip


def _pod(pod: Holder) -> tuple[Text, Text, Text, Text]:
    name = Text(f"     {pod.namespace}/{pod.name}")
    phase = Text("" if pod.phase == "Running" else pod.phase, style="yellow")
    return name, Text(str(pod.memory_mib)), Text(""), phase
