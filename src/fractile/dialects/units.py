"""The names and units in which a family counts amounts of a card, for messages that say what to write in a manifest."""

from collections.abc import Iterable

import msgspec

from fractile.dialects import aliyun, nvidia, tencent
from fractile.model.request import ContainerRequest
from fractile.model.units import MemoryUnit


class FamilyUnits(msgspec.Struct, frozen=True):
    """The resource for each amount, "" where the family has none. ``memory`` counts ``mebibytes``; ``percent`` is the
    memory in percent of a card, ``cores`` its compute time. A whole card is ``per_card`` of ``cards``; ``beside``: that
    resource is still required when a container asks for a part. ``together``: the amounts are of several containers.
    """

    memory: str
    mebibytes: int
    cards: str
    percent: str = ""
    cores: str = ""
    per_card: int = 1
    beside: bool = False
    together: bool = False


def family_units(unit: MemoryUnit) -> dict[str, FamilyUnits]:
    """The units of each family; ``unit`` is that of ``aliyun.com/gpu-mem``. Classes, which define amounts, are left
    out."""
    return {
        "aliyun": FamilyUnits(aliyun.MEMORY, int(unit), aliyun.COUNT),
        "tencent": FamilyUnits(
            tencent.MEMORY, tencent.BLOCK, tencent.CORE, cores=tencent.CORE, per_card=tencent.CARD
        ),
        "nvidia": FamilyUnits(
            nvidia.MEMORY, 1, nvidia.GPU, percent=nvidia.PERCENTAGE, cores=nvidia.CORES, beside=True
        ),
    }  # fmt: skip


def units_of(containers: Iterable[ContainerRequest], unit: MemoryUnit) -> FamilyUnits | None:
    """The units that all of the containers ask in; None for several families, and for classes."""
    asked = tuple(containers)
    mine = [u for u in family_units(unit).values() if all(_asks_in(u, c) for c in asked)]
    return msgspec.structs.replace(mine[0], together=len(asked) > 1) if asked and mine else None


def _asks_in(units: FamilyUnits, asked: ContainerRequest) -> bool:
    return asked.resource in (units.memory, units.cards) and not asked.request.device_class


_ABSURD = 2**20  # MiB; no card has so much
_MIB = 2**20
_GIB = 2**30


def counted_as_bytes(asked: ContainerRequest) -> str:
    """What to write instead when a container asks for more memory than any card has, such as "2Gi" of a resource that
    counts MiB; "" otherwise."""
    if asked.request.memory < _ABSURD:
        return ""
    units = next((u for u in family_units(MemoryUnit.MiB).values() if asked.amount_of(u.memory)), None)
    if units is None:
        return ""
    amount = asked.amount_of(units.memory)
    each = asked.request.memory // amount  # MiB per unit
    meant = amount // (each * _MIB)
    size = f"{amount / _GIB:g} GiB" if amount >= _GIB else f"{amount // _MIB} MiB"
    what = {1: "MiB", 1024: "GiB"}.get(each, f"blocks of {each} MiB")
    return f"{units.memory} counts {what}, not bytes" + (f": write {meant} for {size}" if meant else "")
