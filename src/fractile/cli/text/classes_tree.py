"""Classes and devices for a terminal: with colours, a bar for what is held, and columns as narrow as possible."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fractile.cli.text import classes
from fractile.cli.text import devices as devices_text
from fractile.cli.text.inspect_tree import bar
from fractile.model.words import printable
from fractile.wire.output.class_report import ClassEntry, ClassReport, DeviceEntry, DeviceReport

_PHASES = {"Available": "green", "PartlyBound": "cyan", "Bound": "cyan", "Pending": "yellow"}


def draw_classes(report: ClassReport, devices: DeviceReport | None, console: Console) -> None:
    """Write the classes; ``devices`` are those of the class, if only one was requested."""
    if not report.classes:
        console.print(classes.NOTHING)
        return
    console.print(_classes(report, ascii_only=_ascii(console)))
    if devices is None:
        _print(classes.closing(report), console)
        return
    console.print()
    for line in classes.about(report.classes[0]):
        console.print(Text(printable(line)))
    console.print()
    draw_devices(devices, console)


def draw_devices(report: DeviceReport, console: Console) -> None:
    """Write the devices and their holders."""
    if not report.devices:
        console.print(devices_text.NOTHING)
        return
    console.print(_devices(report, ascii_only=_ascii(console)))
    _print(devices_text.closing(report), console)


def _classes(report: ClassReport, *, ascii_only: bool) -> Table:
    grid = _grid("left", "left", "right", "right", "left", "left")
    grid.add_row(*_dim("CLASS", "UNIT", "FREE/DEVICES", "FREE/UNITS", "", ""))
    for entry in report.classes:
        devices, units = entry.devices, entry.units
        grid.add_row(
            Text(printable(entry.name), style="bold"),
            Text(classes.short_unit(entry)),
            Text(f"{devices.free}/{devices.total}"),
            Text(f"{units.free}/{units.total}"),
            _bar(units.total - units.free, units.total, ascii_only),
            _remark(entry),
        )
    return grid


def _remark(entry: ClassEntry) -> Text:
    sick = entry.devices.unhealthy
    words = [entry.reason] if entry.reason else []
    words += [f"{sick} unhealthy"] if sick else []
    return Text(printable(", ".join(words)), style="yellow" if entry.units.total else "red")


def _devices(report: DeviceReport, *, ascii_only: bool) -> Table:
    grid = _grid("left", "right", "left", "left", "right", "left", "left")
    grid.add_row(*_dim("NODE", "", "MODEL", "PHASE", "HELD", "", "HOLDERS"))
    for device in report.devices:
        kind = "" if device.type == "gpu" else f"{device.type} "
        grid.add_row(
            Text(printable(device.node), style="bold"),
            Text(printable(f"{kind}{device.index}")),
            Text(printable(device.model)),
            Text(printable(device.phase), style=_PHASES.get(device.phase, "red")),
            Text(devices_text.held(device)),
            _bar(*_held(device), ascii_only),
            Text("\n".join(map(printable, _holders(device)))),
        )
    return grid


def _held(device: DeviceEntry) -> tuple[int, int]:
    if device.type == "gpu":
        return device.held_memory_mib, device.memory_mib
    return device.held_shares, device.shares


def _holders(device: DeviceEntry) -> list[str]:
    return [f"{devices_text.named(h, ' ')} {devices_text.amount(h)}" for h in device.holders]


def _grid(*justify: str) -> Table:
    """A grid whose first and last columns may be folded; figures and bars stay whole."""
    grid = Table.grid(padding=(0, 1))
    for position, side in enumerate(justify):
        folded = position in (0, len(justify) - 1)
        right = "right" if side == "right" else "left"
        grid.add_column(justify=right, no_wrap=not folded, overflow="fold")
    return grid


def _bar(part: int, whole: int, ascii_only: bool) -> Text:
    full, empty = bar(part, whole, ascii_only=ascii_only)
    return Text.assemble((full, "cyan"), (empty, "dim"))


def _dim(*headings: str) -> list[Text]:
    return [Text(heading, style="dim") for heading in headings]


def _print(text: str, console: Console) -> None:
    for line in text.splitlines():
        console.print(Text(line, style="yellow" if line.startswith("  ") else ""))


def _ascii(console: Console) -> bool:
    return not console.encoding.lower().startswith("utf")
