"""Amounts of resources for people: CPUs, bytes in the largest unit that gives a whole number, devices."""

from fractions import Fraction

from fractile.wire.kubernetes.pod_requests import quantity

_THOUSANDTHS = 1000
_UNITS = ((2**40, "Ti"), (2**30, "Gi"), (2**20, "Mi"), (2**10, "Ki"))
_IN_BYTES = ("memory", "ephemeral-storage")
_HUGE_PAGES = "hugepages-"


def amount(resource: str, value: int) -> str:
    """``value`` in thousandths of CPUs, bytes or devices: ``500m``, ``1Gi``, ``3``; exact."""
    if resource == "cpu":
        whole = value % _THOUSANDTHS == 0
        return str(value // _THOUSANDTHS) if whole else f"{value}m"
    if resource not in _IN_BYTES and not resource.startswith(_HUGE_PAGES):
        return str(value)
    unit = next(((size, name) for size, name in _UNITS if value and value % size == 0), (1, ""))
    return f"{value // unit[0]}{unit[1]}"


def short(resource: str, value: Fraction) -> str:
    """``value`` in CPUs, bytes or devices, bytes in the largest unit that fits, with one decimal."""
    if resource not in _IN_BYTES and not resource.startswith(_HUGE_PAGES):
        return quantity(value)
    for size, name in _UNITS:
        if abs(value) >= size:
            scaled = round(value / size, 1)
            return f"{scaled.numerator if scaled.denominator == 1 else float(scaled)}{name}"
    return quantity(value)
