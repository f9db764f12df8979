"""A ClassReport as plain text, for pipes and for ``-o wide``; and the wording that both views share."""

from collections.abc import Iterator

from fractile.cli.text import devices as devices_text
from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.wire.output.class_report import ClassEntry, ClassReport, DeviceReport

_CLASSES = (
    Column("CLASS"),
    Column("TYPE"),
    Column("UNIT"),
    Column("FREE/DEVICES", number=True),
    Column("UNHEALTHY", number=True),
    Column("FREE/UNITS", number=True),
    Column("REASON"),
)
_WIDE = (
    *_CLASSES[:-1],
    Column("NODES", number=True),
    Column("REASON"),
    Column("SELECTOR"),
)


def table(report: ClassReport) -> str:
    """One line per class, then a sentence for each class with a message."""
    if not report.classes:
        return f"{NOTHING}\n"
    return plain(_CLASSES, [(*_cells(c), c.reason) for c in report.classes]) + closing(report)


def wide(report: ClassReport) -> str:
    """The table with the number of nodes as well, and the selector at the end of the line."""
    if not report.classes:
        return f"{NOTHING}\n"
    rows = [(*_cells(c), str(len(c.nodes)), c.reason, " and ".join(c.selector)) for c in report.classes]
    return plain(_WIDE, rows) + closing(report)


def one(report: ClassReport, devices: DeviceReport) -> str:
    """One class in full: its line, what it requires of devices, and its devices."""
    (entry,) = report.classes
    head = "".join(f"{printable(line)}\n" for line in about(entry))
    return f"{plain(_CLASSES, [(*_cells(entry), entry.reason)])}\n{head}\n{devices_text.table(devices)}"


NOTHING = "there are no classes; kubectl explain resourceclass.spec shows how to make one"


def about(entry: ClassEntry) -> Iterator[str]:
    """The details of one class, one line each."""
    yield f"a container asks for it by  {entry.resource}: 1"
    yield f"one unit is                 {unit(entry)}"
    yield f"devices are of type         {entry.device_type}"
    for position, condition in enumerate(entry.selector):
        yield f"{'and' if position else 'with':<28}{condition}"
    if entry.message:
        yield f"{entry.reason}: {entry.message}" if entry.reason else f"note: {entry.message}"


def closing(report: ClassReport) -> str:
    """An empty line, then a sentence for each class with a message; empty if there is none."""
    said = [f"  {printable(f'{c.name}: {c.message}')}\n" for c in report.classes if c.message]
    return "\n" + "".join(said) if said else ""


def unit(entry: ClassEntry) -> str:
    """The unit in words: "1 whole device", "4096 MiB and 30 % of a card", "2048 MiB of each of 2 cards"."""
    if not entry.shared:
        noun = "card" if entry.device_type == "gpu" else "device"
        return f"{entry.count} whole {noun}{'s' * (entry.count != 1)}" if noun == "card" else _share(entry.count)
    amounts = [f"{entry.memory_mib} MiB"] if entry.memory_mib else []
    amounts += [f"{entry.cores_percent} %"] if entry.cores_percent else []
    of = "a card" if entry.count == 1 else f"each of {entry.count} cards"
    return f"{' and '.join(amounts)} of {of}"


def _share(count: int) -> str:
    return "1 share of a device" if count == 1 else f"1 share of each of {count} devices"


def _cells(entry: ClassEntry) -> tuple[str, ...]:
    devices, units = entry.devices, entry.units
    return (
        entry.name,
        entry.device_type,
        short_unit(entry),
        f"{devices.free}/{devices.total}",
        str(devices.unhealthy) if devices.unhealthy else "",
        f"{units.free}/{units.total}",
    )


def short_unit(entry: ClassEntry) -> str:
    """The unit in a cell: "whole", "4096MiB,30%", "2x2048MiB", "share"."""
    if entry.shared:
        parts = [f"{entry.memory_mib}MiB"] if entry.memory_mib else []
        parts += [f"{entry.cores_percent}%"] if entry.cores_percent else []
        size = ",".join(parts)
    else:
        size = "whole" if entry.device_type == "gpu" else "share"
    return size if entry.count == 1 else f"{entry.count}x{size}"
