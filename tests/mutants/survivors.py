"""Mutants that no test kills, and why that is right: ``survivors.toml``.

A mutant's number changes with every line above it, so an entry names the function and the changed lines instead.
"""

from pathlib import Path

import msgspec

FILE = Path(__file__).with_name("survivors.toml")


class Change(msgspec.Struct, frozen=True):
    """One mutant: what the lines of a function were, and what they became."""

    where: str  # fractile.ledger.scan.function, or fractile.ledger.ledger.Ledger.method
    was: str
    now: str


class Known(msgspec.Struct, frozen=True, kw_only=True):
    where: str
    was: str
    now: str
    why: str

    @property
    def change(self) -> Change:
        return Change(self.where, self.was, self.now)


class _File(msgspec.Struct, frozen=True):
    survivor: tuple[Known, ...] = ()


def read(path: Path = FILE) -> dict[Change, str]:
    """The reason for each change that is listed."""
    found = msgspec.toml.decode(path.read_bytes(), type=_File)
    return {known.change: known.why for known in found.survivor}


def change(name: str, diff: str) -> Change:
    """What mutmut's name and unified diff of a mutant say."""
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++", "@@", "#"))]
    was = "\n".join(line[1:].strip() for line in lines if line.startswith("-"))
    now = "\n".join(line[1:].strip() for line in lines if line.startswith("+"))
    return Change(where(name), was, now)


def where(name: str) -> str:
    """``fractile.a.xǁTableǁfind__mutmut_3`` is in ``fractile.a.Table.find``."""
    module, _, function = name.rpartition("__mutmut_")[0].rpartition(".")
    if "ǁ" in function:
        _, owner, method = function.split("ǁ")
        return f"{module}.{owner}.{method}"
    return f"{module}.{function.removeprefix('x_')}"


def entry(found: Change) -> str:
    """A mutant as it would be listed; the reason is left to a person."""
    return f'[[survivor]]\nwhere = {_text(found.where)}\nwas = {_text(found.was)}\nnow = {_text(found.now)}\nwhy = ""\n'


def _text(value: str) -> str:
    return msgspec.json.encode(value).decode()
