"""Quantities as people write them on data sheets: "10GiB", "10Gi", "1.5 GHz", "300W", "200Gb/s", "8.0".

Wider than Kubernetes' grammar (``wire.quantity``), whose texts have the same value here: units may follow, and case is
ignored where it is not ambiguous. So "10GiB" is 10 * 2^30 and "1.5ghz" is 1.5 * 10^9; "m" alone is milli, as in
Kubernetes, but "mHz" is MHz. All values are exact.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Final

import msgspec

LIMIT: Final = 2**63 - 1  # as in Kubernetes
LONGEST: Final = 47  # characters: sign, 19 digits, point, 18 digits, " Kibit/s"; all that the schema takes
PATTERN: Final = (
    r"[+-]?([0-9]{1,19}([.][0-9]{0,18})?|[.][0-9]{1,18})"
    r"([eE][+-]?[0-9]{1,3}| ?([kKMGTPEmungtp]|[kKmMgGtTpPeE][iI])?([bB]|[hH][zZ]|[wW]|b/s|bit/s|bps|B/s|Bps)?)"
)
"""The pattern of a quantity, for Python, RE2 and the schema of the CRD."""

_FORM = re.compile(PATTERN)
_PARTS = re.compile(r"([+-]?[0-9]*[.]?[0-9]*)(?:[eE]([+-]?[0-9]{1,3})| ?([^ ]*))")
_RATES = (("bit/s", 1), ("b/s", 1), ("bps", 1), ("B/s", 8), ("Bps", 8))  # case distinguishes bits from bytes
_UNITS = ("Hz", "B", "W")
_POWERS = {"k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SMALL = {"m": Fraction(1, 10**3), "u": Fraction(1, 10**6), "n": Fraction(1, 10**9)}


class Measure(msgspec.Struct, frozen=True):
    """An exact value and its unit; "" without a unit."""

    value: Fraction
    unit: str = ""

    def comparable(self, other: "Measure") -> bool:
        """Whether the two can be compared: the units are equal, or one has none."""
        return not (self.unit and other.unit) or self.unit == other.unit


@lru_cache(maxsize=8192)  # a cluster has few different values of selectors and properties
def measure(text: str) -> Measure | None:
    """The quantity; None when the text is not a quantity, or is larger than Kubernetes allows."""
    if len(text) > LONGEST or not _FORM.fullmatch(text):
        return None
    parts = _PARTS.fullmatch(text)
    if parts is None:
        return None
    digits, exponent, suffix = parts.groups()
    value = Fraction(digits)
    unit = ""
    if exponent:
        value *= Fraction(10) ** int(exponent)
    elif suffix:
        prefix, unit, factor = _split(suffix)
        value *= factor * _scale(prefix, bare=not unit)
    return Measure(value, unit) if abs(value) <= LIMIT else None


def _split(suffix: str) -> tuple[str, str, int]:
    """Split into prefix, unit and factor to that unit."""
    for written, worth in _RATES:
        if suffix.endswith(written):
            return suffix[: -len(written)], "b/s", worth
    for unit in _UNITS:
        if suffix.lower().endswith(unit.lower()):
            return suffix[: -len(unit)], unit, 1
    return suffix, "", 1


def _scale(prefix: str, *, bare: bool) -> Fraction:
    if not prefix:
        return Fraction(1)
    if prefix in ("u", "n") or (prefix == "m" and bare):
        return _SMALL[prefix]
    base = 2**10 if len(prefix) == 2 else 10**3
    return Fraction(base ** _POWERS[prefix[0].lower()])
