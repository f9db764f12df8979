"""The lines of the log that docs/operate/observability.md explains are those that the programs write."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "operate" / "observability.md"
_ROW = re.compile(r"^\| `([^`]*=)` \| (control plane|agent) \|", re.MULTILINE)
_VALUE = re.compile(r"=%\S*")
_BARE = re.compile(r" %s(?= |$)")  # fields that are put together elsewhere
CONTROL_PLANE = ("classes", "debug", "extender", "globalplacement", "reconcile", "serving", "watch")
PROGRAMS = {"control plane": (*CONTROL_PLANE, "kube", "main"), "agent": ("agent", "main", "kube")}
WEBHOOK = {"control plane": ("admission",), "agent": ()}


def written(package: str) -> Iterator[str]:
    """The lines that modules of the package log, with their keys only."""
    for path in (ROOT / "src" / "fractile" / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name(id="log")), args=[ast.Constant(value=str(message)), *_]
                ):
                    yield _BARE.sub("", _VALUE.sub("=", message))
                case _:
                    pass


def test_every_line_that_is_explained_is_written() -> None:
    rows = _ROW.findall(PAGE.read_text())
    known = {
        name: {line for package in packages + WEBHOOK[name] for line in written(package)}
        for name, packages in PROGRAMS.items()
    }

    assert len(rows) > 20
    assert [line for line, program in rows if line not in known[program]] == []


def test_every_decision_that_takes_time_is_explained() -> None:
    """A line with its milliseconds is that of a decision; the webhook's stands in docs/operate/webhook.md."""
    timed = {line for packages in PROGRAMS.values() for p in packages for line in written(p) if line.endswith(" ms=")}
    explained = {line for line, _ in _ROW.findall(PAGE.read_text())}

    assert {line for line in timed - explained if not line.startswith("registered ")} == set()
