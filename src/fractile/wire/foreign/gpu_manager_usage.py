"""``GET /usage`` in the format of gpu-manager's display service, for tools written for it.

The original: evidence/gpu-manager.md#usage-page. Memory is in MiB; ``dev.gpu`` is percent of one card, ``spec.gpu`` is
cards. Zero and empty fields are included, which gpu-manager's gateway leaves out.
"""

import msgspec


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One card of a container. ``id`` is the PCI bus id, ``device_mem`` the card's memory."""

    id: str = ""
    card_idx: str = ""
    gpu: float = 0.0
    mem: float = 0.0
    pids: tuple[int, ...] = ()
    device_mem: float = 0.0


class Devices(msgspec.Struct, frozen=True):
    dev: tuple[Device, ...] = ()


class Spec(msgspec.Struct, frozen=True, kw_only=True):
    gpu: float = 0.0
    mem: float = 0.0


class PodStat(msgspec.Struct, frozen=True, kw_only=True):
    """One pod: its containers' cards, its namespace as ``project``, and its containers' requests."""

    stat: dict[str, Devices] = {}
    project: str = ""
    user: str = ""
    cluster: str = ""
    spec: dict[str, Spec] = {}


class GpuManagerUsage(msgspec.Struct, frozen=True):
    """The usage by pod UID."""

    usage: dict[str, PodStat] = {}


def encode(usage: GpuManagerUsage) -> bytes:
    return msgspec.json.encode(usage)
