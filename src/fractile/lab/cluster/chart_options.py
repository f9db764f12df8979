"""Translates command-line arguments into the values of the chart that set them.

Tests start components with extra arguments. If the component is a pod of the chart, the release is upgraded with these
values, as a user would do it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from fractile.errors import SetupError

_FLAGS: Mapping[str, tuple[str, ...]] = {
    "--global-placement": ("controlPlane", "globalPlacement", "everywhere"),
    "--placement-gate": ("controlPlane", "globalPlacement", "gate"),
}
_VALUES: Mapping[str, tuple[str, ...]] = {
    "--default-classes": ("controlPlane", "defaultClasses"),
    "--quota-others": ("controlPlane", "quota", "others"),
    "--outside-ledger": ("agent", "outsideLedger"),
    "--outside-ledger-grace": ("agent", "outsideLedgerGraceSeconds"),
}


def with_arguments(values: Mapping[str, Any], args: Sequence[str]) -> dict[str, Any]:
    """``values`` with ``args`` (``--flag``, ``--name=value``, or name and value) applied. SetupError if the chart has
    no value for an argument."""
    found = dict(values)
    for flag in [arg for arg in args if arg in _FLAGS]:
        found = _put(found, _FLAGS[flag], True)
    for name, value in _pairs([arg for arg in args if arg not in _FLAGS]):
        if name not in _VALUES:
            known = ", ".join(sorted({*_VALUES, *_FLAGS}))
            raise SetupError(f"the chart has no value for the argument {name}; it has for {known}")
        found = _put(found, _VALUES[name], value)
    return found


def _pairs(args: Sequence[str]) -> list[tuple[str, str]]:
    words = [word for arg in args for word in (arg.split("=", 1) if arg.startswith("--") else (arg,))]
    if len(words) % 2:
        raise SetupError(f"an argument without its value: {' '.join(args)}")
    return list(zip(words[::2], words[1::2], strict=True))


def _put(values: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    """A copy of ``values`` with ``value`` at ``path``."""
    first, *rest = path
    return {**values, first: _put(values.get(first, {}), tuple(rest), value) if rest else value}
