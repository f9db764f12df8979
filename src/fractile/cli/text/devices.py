"""A DeviceReport as plain text, for pipes and for ``-o wide``; and the wording that both views share."""

from fractile.cli.text.table import Column, plain
from fractile.model.words import printable
from fractile.wire.fractile import departed
from fractile.wire.output.class_report import DeviceEntry, DeviceHolder, DeviceReport

_DEVICES = (
    Column("NODE"),
    Column("TYPE"),
    Column("INDEX", number=True),
    Column("MODEL"),
    Column("PHASE"),
    Column("HELD", number=True),
    Column("CORES", number=True),
    Column("HOLDERS"),
)
_WIDE = (
    *_DEVICES[:-1],
    Column("ID"),
    Column("CLASSES"),
    Column("REASON"),
    Column("HOLDERS"),
)
NOTHING = "there are no such devices"


def table(report: DeviceReport) -> str:
    """One line per device, then their number and why some cannot be used."""
    if not report.devices:
        return f"{NOTHING}\n"
    return plain(_DEVICES, [(*_cells(d), holders(d)) for d in report.devices]) + closing(report)


def wide(report: DeviceReport) -> str:
    """The table with ids and classes as well."""
    if not report.devices:
        return f"{NOTHING}\n"
    rows = [(*_cells(d), d.id, ",".join(d.classes), d.reason, holders(d)) for d in report.devices]
    return plain(_WIDE, rows) + closing(report)


def closing(report: DeviceReport) -> str:
    devices = report.devices
    free = sum(d.healthy and not d.holders for d in devices)
    total = f"\n{len(devices)} device{'s' * (len(devices) != 1)}, {free} of them free\n"
    sick = (f"  {d.type} {d.index} of {d.node}: {d.reason}: {d.message}" for d in devices if d.message)
    return total + "".join(f"{printable(line)}\n" for line in sick)


def held(device: DeviceEntry) -> str:
    """The held and the total amount: MiB of a card, shares of another device."""
    if device.type == "gpu":
        return f"{device.held_memory_mib}/{device.memory_mib}MiB"
    return f"{device.held_shares}/{device.shares}"


def holders(device: DeviceEntry) -> str:
    return ",".join(f"{named(h, '/')}:{amount(h)}" for h in device.holders)


def named(holder: DeviceHolder, between: str) -> str:
    """The container's name; marked if its pod is gone."""
    namespace, pod = holder.namespace, holder.pod
    whose = departed.label(namespace, pod) if holder.deleted else f"{namespace}/{pod}"
    return f"{whose}{between}{holder.container}" if holder.container else whose


def amount(holder: DeviceHolder) -> str:
    if holder.shares:
        return str(holder.shares)
    return f"{holder.memory_mib}MiB" + (f"+{holder.cores_percent}%" if holder.cores_percent else "")


def _cells(device: DeviceEntry) -> tuple[str, ...]:
    cores = f"{device.held_cores_percent}%" if device.type == "gpu" and device.held_cores_percent else ""
    return device.node, device.type, str(device.index), device.model, device.phase, held(device), cores
