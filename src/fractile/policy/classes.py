"""Which devices belong to a class, and how many of its units a node could give. Pure: equal inputs, equal answers.

Strings are compared as they are, quantities by value: "32GiB", "32Gi" and 34359738368 are equal. A property that is not
a quantity, or has another unit, is never greater or less than a quantity.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache

from fractile.model.card import GPU, Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.sharing import MOST_SLICES
from fractile.wire.measure import measure

_ORDER: dict[Operator, Callable[[Fraction, Fraction], bool]] = {
    Operator.GT: lambda a, b: a > b,
    Operator.LT: lambda a, b: a < b,
    Operator.GE: lambda a, b: a >= b,
    Operator.LE: lambda a, b: a <= b,
}


def matches(cls: DeviceClass, card: Card) -> bool:
    """Whether the device is of the class, healthy or not."""
    return card.type == cls.device_type and all(holds(r, card.property(r.key)) for r in cls.requirements)


@lru_cache(maxsize=16384)  # there are few different properties and requirements
def holds(requirement: PropertyRequirement, found: str | None) -> bool:
    """Whether a property with the value ``found`` (None: no such property) satisfies the requirement. A device without
    the property satisfies ``NotIn``, as an object without the label does in Kubernetes."""
    match requirement.operator:
        case Operator.EXISTS:
            return found is not None
        case Operator.DOES_NOT_EXIST:
            return found is None
        case Operator.IN:
            return found is not None and any(_same(found, v) for v in requirement.values)
        case Operator.NOT_IN:
            return found is None or not any(_same(found, v) for v in requirement.values)
        case ordered:
            return found is not None and all(_compared(ordered, found, v) for v in requirement.values)


def units_on(cls: DeviceClass, cards: Sequence[Card]) -> int:
    """How many units the healthy devices of a node could give if none were in use.

    The devices of one unit are distinct, so this is the largest u with sum(min(slices, u)) >= u * count.
    """
    slices = [units_of(cls, c) for c in cards if c.healthy and matches(cls, c)]
    low, high = 0, sum(slices) // cls.count
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(s, middle) for s in slices) >= middle * cls.count:
            low = middle
        else:
            high = middle - 1
    return low


def units_of(cls: DeviceClass, card: Card) -> int:
    """How many parts of the class's size an empty device of the class has."""
    if card.type != GPU:
        return card.shares
    if not cls.shared:
        return 1
    by_memory = card.memory // cls.memory if cls.memory else None
    by_cores = 100 // cls.cores if cls.cores else None
    return min(n for n in (by_memory, by_cores, MOST_SLICES) if n is not None)


def _same(found: str, wanted: str) -> bool:
    if found == wanted:
        return True
    a, b = measure(found), measure(wanted)
    return a is not None and b is not None and a.comparable(b) and a.value == b.value


def _compared(operator: Operator, found: str, than: str) -> bool:
    a, b = measure(found), measure(than)
    return a is not None and b is not None and a.comparable(b) and _ORDER[operator](a.value, b.value)
