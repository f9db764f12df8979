"""What a class has: devices and units, in all and free; and why it has none, in words. Pure: a table in, figures out.

A unit is ``count`` different devices of one node, whole or a slice of each. So a node gives the largest u for which
its devices, each used at most u times, have u * count slices together.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from fractile.classes.table import Table, about_place
from fractile.ledger.arrays import Bools, Ints
from fractile.model.card import GPU, Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.sharing import MOST_SLICES, SharingRule
from fractile.model.units import NodeName
from fractile.policy.classes import holds, units_of

MOST = 512  # the most classes that one node lists in its capacity, the first by name

_WHOLE = 100  # percent
_LISTED = 6  # values in a sentence
_LONGEST = 1000  # characters; the status takes 1,024


class CountedDevices(msgspec.Struct, frozen=True, order=True):
    """``free`` devices are healthy and entirely unused; ``units``: those of empty devices."""

    total: int = 0
    free: int = 0
    unhealthy: int = 0
    units: int = 0
    free_units: int = 0


class Remark(msgspec.Struct, frozen=True):
    """A message about a class: a constant reason where no pod can have it, and a sentence."""

    reason: str = ""
    message: str = ""


def count(cls: DeviceClass, table: Table) -> CountedDevices:
    """The figures of a class, as of the table's last ``refresh``."""
    rows = table.members(cls)
    well, nodes = table.well(rows), table.node[rows]
    slices, free = _slices(cls, table, rows, well)
    return CountedDevices(
        total=rows.size,
        free=int(np.count_nonzero(table.idle[rows] & well)),
        unhealthy=int(np.count_nonzero(~well)),
        units=int(slices.sum() if cls.count == 1 else _units(cls, nodes, slices).sum()),
        free_units=int(free.sum() if cls.count == 1 else _units(cls, nodes, free).sum()),
    )


def count_by_node(cls: DeviceClass, table: Table) -> dict[NodeName, CountedDevices]:
    """The figures of each node that has devices of the class, by name."""
    rows = table.members(cls)
    well, nodes = table.well(rows), table.node[rows]
    slices, free = _slices(cls, table, rows, well)
    total = np.bincount(nodes)
    columns = (
        total,
        np.bincount(nodes, table.idle[rows] & well),
        np.bincount(nodes, ~well),
        _units(cls, nodes, slices),
        _units(cls, nodes, free),
    )
    there = np.flatnonzero(total)
    figures = zip(*(column[there].astype(np.int64).tolist() for column in columns), strict=True)
    return dict(
        sorted(
            (table.node_named(node), CountedDevices(*own)) for node, own in zip(there.tolist(), figures, strict=True)
        )
    )


def _slices(cls: DeviceClass, table: Table, rows: Ints, well: Bools) -> tuple[Ints, Ints]:
    """For each device: slices of the class's size on the empty device, and those that still fit."""
    total = np.where(well, table.numbers(rows, lambda c: units_of(cls, c)), 0)
    free = np.where(well, _free(cls, table, rows), 0)
    if cls.device_type != GPU:
        return total, free
    most = np.full(rows.size, MOST_SLICES) if not table.ruled else table.by_rule(rows, lambda c, r: _by_rule(cls, c, r))
    left = np.where(most > 0, np.clip(most - table.slices[rows], 0, None), 0)
    return np.minimum(total, most), np.minimum(free, left)


def _by_rule(cls: DeviceClass, card: Card, rule: SharingRule) -> int:
    """How many slices of the class's size the rule allows on an empty card."""
    cores = cls.cores if cls.shared else _WHOLE
    memory = cls.memory or card.memory * cores // _WHOLE
    return (rule.max_slices or MOST_SLICES) if rule.admits(card.memory, memory=memory, cores=cores) else 0


def remark(cls: DeviceClass, table: Table, figures: CountedDevices, *, unsaid: bool = False) -> Remark:
    """Why no pod can have a unit of the class, or what else is odd. ``unsaid``: some nodes have no room to list it."""
    if figures.total == 0:
        return _none(cls, table)
    if figures.unhealthy == figures.total:
        return Remark("NoneHealthy", f"{_devices(figures.total)} of the class, none healthy")
    if figures.units == 0:
        return _no_unit(cls, table)
    if unsaid:
        return Remark("TooManyClasses", f"some nodes belong to more than {MOST} classes and name only the first ones")
    if not cls.requirements:  # valid, but probably a slip: the message helps to find it
        return Remark("", f"the selector is empty, so every device of type {cls.device_type} is in the class")
    return Remark()


@lru_cache(maxsize=4096)
def most_units(slices: tuple[int, ...], of: int) -> int:
    """The largest u with sum(min(s, u)) >= u * of."""
    low, high = 0, sum(slices) // of
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(s, middle) for s in slices) >= middle * of:
            low = middle
        else:
            high = middle - 1
    return low


def _units(cls: DeviceClass, nodes: Ints, slices: Ints) -> Ints:
    """The units of each node by its number."""
    found: Ints = np.bincount(nodes, slices).astype(np.int64)
    if cls.count == 1 or not slices.size:
        return found
    order = np.argsort(nodes, kind="stable")
    ends = np.flatnonzero(np.diff(nodes[order])) + 1
    for part in np.split(order, ends):
        found[nodes[part[0]]] = most_units(tuple(sorted(slices[part].tolist())), cls.count)
    return found


def _free(cls: DeviceClass, table: Table, rows: Ints) -> Ints:
    """How many slices of the class's size each device still has room for, counted as in ``policy.cards.state``."""
    if cls.device_type != GPU:
        return np.maximum(table.free[rows], 0)
    if not cls.shared:
        return table.idle[rows].astype(np.int64)
    cores, coreless = table.free_cores[rows], table.coreless[rows]
    # Next to containers that were promised no cores, one percent stays free.
    by_cores = (cores - coreless) // cls.cores if cls.cores else np.where(cores >= 1, _MANY, 0)
    by_memory = table.free[rows] // np.maximum(1, _memory(cls, table, rows))
    return np.clip(np.minimum(by_cores, by_memory), 0, None)


def _memory(cls: DeviceClass, table: Table, rows: Ints) -> Ints:
    """MiB of a slice on each device; a class with only cores gets that part of the memory too (``ledger.classes``)."""
    if cls.memory:
        return np.full(rows.size, cls.memory, np.int64)
    return table.numbers(rows, lambda c: c.memory) * cls.cores // _WHOLE


_MANY = 2**31


# ── why a class has nothing ──────────────────────────────────────────────────────────────────────────────────────────


def _none(cls: DeviceClass, table: Table) -> Remark:
    population = table.population()
    mine = {i: int(population[i]) for i in _of_type(cls, table) if population[i]}
    total = sum(mine.values())
    if not total:
        return Remark("NoDeviceMatches", f"no node has reported a device of type {cls.device_type}")
    failing = [r for r in cls.requirements if not _met(r, table, mine)]
    if not failing:
        return _cut(f"no device meets all {len(cls.requirements)} conditions at once; {_devices(total)} of the type")
    return _cut(f"of {_devices(total)} of type {cls.device_type}, {'; '.join(_unmet(r, table, mine) for r in failing)}")


def _cut(message: str) -> Remark:
    return Remark("NoDeviceMatches", message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}...")


def _of_type(cls: DeviceClass, table: Table) -> Iterator[int]:
    return (i for i, c in enumerate(table.kinds) if c is not None and c.type == cls.device_type)


def _met(requirement: PropertyRequirement, table: Table, kinds: dict[int, int]) -> bool:
    """Whether any device of these kinds meets the condition."""
    if about_place(requirement):
        return table.somewhere(requirement)
    return any(holds(requirement, _property(table, kind, requirement.key)) for kind in kinds)


def _unmet(requirement: PropertyRequirement, table: Table, kinds: dict[int, int]) -> str:
    """ "none has model In [Tesla K80] (there are Tesla-T4, Tesla-V100)"."""
    asked = f"{requirement.key} {requirement.operator.value} {_values(requirement.values)}".rstrip()
    if about_place(requirement) or requirement.operator is Operator.DOES_NOT_EXIST:
        return f"none has {asked}"
    there = sorted({v for kind in kinds if (v := _property(table, kind, requirement.key)) is not None})
    return f"none has {asked} ({f'there are {_list(there)}' if there else 'none has this property'})"


def _property(table: Table, kind: int, key: str) -> str | None:
    card = table.kinds[kind]
    return None if card is None else card.property(key)


def _values(values: Sequence[str]) -> str:
    return f"[{_list(values)}]" if values else ""


def _list(values: Sequence[str]) -> str:
    more = len(values) - _LISTED
    return ", ".join(v[:64] for v in values[:_LISTED]) + (f" and {more} more" if more > 0 else "")


def _no_unit(cls: DeviceClass, table: Table) -> Remark:
    rows = table.members(cls)
    rows = rows[table.well(rows)]
    if table.ruled and not table.by_rule(rows, lambda c, r: _by_rule(cls, c, r)).any():
        return Remark(
            "NotCut", "the rules about how cards are cut allow no part of this size on any device of the class"
        )
    largest = int(table.numbers(rows, lambda c: c.memory).max())
    if cls.memory > largest:
        return Remark(
            "TooLarge",
            f"a unit takes {cls.memory} MiB of a device, but the largest device of the class has {largest} MiB",
        )
    most = int(np.bincount(table.node[rows]).max())
    return Remark("TooFew", f"a unit takes {cls.count} devices of one node; the most healthy ones on any node: {most}")


def _devices(number: int) -> str:
    return f"{number} device{'s' * (number != 1)}"
