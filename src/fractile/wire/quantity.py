"""Kubernetes quantities ("8138", "4Gi", "1e3", "500m") as exact integers.

Source: the grammar in the Kubernetes API conventions for resource.Quantity. Extended resources must be whole numbers;
any other amount is malformed or hostile and is refused with a sentence.
"""

import re
from fractions import Fraction

from fractile.errors import WireError

_LIMIT = 2**63 - 1  # Kubernetes stores quantities as int64
_MAX_LENGTH = 40
_DIGITS = 18  # of the largest number that is surely below _LIMIT
_FORM = re.compile(r"([+-]?)(\d+\.?\d*|\.\d+)([eE][+-]?\d{1,3}|Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E)?", re.ASCII)
_SUFFIX = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9),
    "T": Fraction(10**12), "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30),
    "Ti": Fraction(2**40), "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip


def whole_number(value: object) -> int:
    """The quantity as an integer in 0 .. 2^63-1; WireError when it is negative, fractional, too large or invalid."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= _DIGITS:
        return int(value)  # nearly all are written so; takes a tenth of the time
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise WireError(f"a {type(value).__name__} is not a quantity; write a whole number such as 4")
    # Ints are not converted to text first: Python refuses that beyond 4,300 digits.
    exact = Fraction(value) if isinstance(value, int) else parse(str(value))
    if exact < 0:
        raise WireError(f"{_shown(value)} is negative; write a whole number such as 4")
    if exact.denominator != 1:
        raise WireError(f"{_shown(value)} is not a whole number; these resources cannot be divided")
    if exact > _LIMIT:
        raise WireError(f"{_shown(value)} is larger than Kubernetes allows")
    return int(exact)


def parse(text: str) -> Fraction:
    """The exact value of a quantity; WireError when the text is not one."""
    match = _FORM.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    if match is None:
        raise WireError(f"{_shown(text)} is not a quantity; write a whole number such as 4")
    sign, digits, suffix = match.groups()
    value = Fraction(digits)
    if suffix in _SUFFIX:
        value *= _SUFFIX[suffix]
    elif suffix:
        value *= Fraction(10) ** int(suffix[1:])
    return -value if sign == "-" else value


def _shown(value: str | float) -> str:
    if isinstance(value, int) and abs(value) > _LIMIT:
        return f"a number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= _MAX_LENGTH else text[:_MAX_LENGTH] + "..."
