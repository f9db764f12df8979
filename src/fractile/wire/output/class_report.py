"""``fractile classes`` and ``fractile devices`` as JSON and YAML, version fractile.dev/v1alpha1.

Every field is always present, so scripts need no defaults. Memory is in MiB (2^20 bytes), parts of a card's time are in
percent. Each field is explained in docs/reference/class-reports.md; the golden files are class-report.json and
device-report.json in tests/wire/golden.
"""

from typing import TypeVar

import msgspec

from fractile.errors import WireError
from fractile.wire.fractile.extended_resource import API_VERSION

CLASSES_KIND = "ClassReport"
DEVICES_KIND = "DeviceReport"


class _Struct(msgspec.Struct, frozen=True, rename="camel"):
    pass


class DeviceSums(_Struct, frozen=True):
    """Numbers of devices. Free devices are healthy and completely unused."""

    total: int
    free: int
    unhealthy: int


class UnitSums(_Struct, frozen=True):
    """Numbers of units: if none were held, and those that still fit."""

    total: int
    free: int


class NodeShare(_Struct, frozen=True):
    """What one node has of a class."""

    node: str
    devices: DeviceSums
    units: UnitSums


class ClassEntry(_Struct, frozen=True, kw_only=True):
    """One class. Each text of ``selector`` is one condition. A unit is ``count`` devices: whole ones, or a part of each
    where it is ``shared``."""

    name: str
    resource: str  # the name by which containers ask for it
    device_type: str
    selector: tuple[str, ...]
    memory_mib: int = msgspec.field(name="memoryMiB")
    cores_percent: int
    count: int
    shared: bool
    devices: DeviceSums
    units: UnitSums
    nodes: tuple[NodeShare, ...]
    reason: str
    message: str


class ClassReport(_Struct, frozen=True, kw_only=True):
    """All classes by name, or the one that was asked for."""

    api_version: str = API_VERSION
    kind: str = CLASSES_KIND
    classes: tuple[ClassEntry, ...]


class DeviceHolder(_Struct, frozen=True, kw_only=True):
    """A container that holds a part of a device: memory and cores of a GPU, or shares of another device. ``deleted``:
    its pod was deleted but its processes still run; unknown names are ""."""

    namespace: str
    pod: str
    container: str
    memory_mib: int = msgspec.field(name="memoryMiB")
    cores_percent: int
    shares: int
    deleted: bool = False


class DeviceEntry(_Struct, frozen=True, kw_only=True):
    """One device. ``held_*``: what pods take of it at their peak plus what processes of deleted pods hold; ``classes``:
    those it belongs to."""

    name: str
    id: str
    type: str
    node: str
    index: int
    model: str
    phase: str
    reason: str
    message: str
    healthy: bool
    memory_mib: int = msgspec.field(name="memoryMiB")
    held_memory_mib: int = msgspec.field(name="heldMemoryMiB")
    held_cores_percent: int
    shares: int
    held_shares: int
    properties: dict[str, str]
    classes: tuple[str, ...]
    holders: tuple[DeviceHolder, ...]


class DeviceReport(_Struct, frozen=True, kw_only=True):
    """The requested devices, sorted by node, type and index."""

    api_version: str = API_VERSION
    kind: str = DEVICES_KIND
    devices: tuple[DeviceEntry, ...]


R = TypeVar("R", ClassReport, DeviceReport)


def encode(report: ClassReport | DeviceReport) -> str:
    """The JSON text, indented, without a final newline."""
    return msgspec.json.format(msgspec.json.encode(report), indent=2).decode()


def encode_yaml(report: ClassReport | DeviceReport) -> str:
    """The same content as YAML."""
    import yaml  # imported late: only -o yaml needs it

    return yaml.safe_dump(msgspec.to_builtins(report), sort_keys=False, allow_unicode=True)


def decode_classes(text: str | bytes) -> ClassReport:
    """Decode the report; WireError on anything but this version."""
    return _decode(text, ClassReport, CLASSES_KIND)


def decode_devices(text: str | bytes) -> DeviceReport:
    """Decode the report; WireError on anything but this version."""
    return _decode(text, DeviceReport, DEVICES_KIND)


def _decode(text: str | bytes, type: type[R], kind: str) -> R:
    try:
        found = msgspec.json.decode(text, type=type)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(f"this is not a {kind} of fractile: {e}") from None
    if (found.api_version, found.kind) != (API_VERSION, kind):
        raise WireError(f"this is {found.kind} {found.api_version}; expected {kind} {API_VERSION}")
    return found
