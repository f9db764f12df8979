"""docs/reference/events.md has a row for each reason of an event in the source, and no other.

The reasons are read from the calls that write events: ``emit`` of the recorder, and callables that are given ``emit``
under a name (``warn=events.emit``) and called by it. A reason that cannot be read fails the test, so that none is
missed. ``lab`` is left out: there a hollow node plays kubelet and says what kubelet says.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fractile"
RECORDER = SOURCE / "kube" / "events.py"
PAGE = ROOT / "docs" / "reference" / "events.md"
CONTROL_PLANE = ("admission", "classes", "debug", "extender", "globalplacement", "reconcile", "serving", "watch")
WRITERS = {"agent": "agent"} | dict.fromkeys(CONTROL_PLANE, "control plane")
_ROW = re.compile(r"^\| `(\w+)` \| ([\w ]+) \| \w+ \| [\w ]+ \| .+ \| .+ \|$", re.MULTILINE)


class Said(msgspec.Struct, frozen=True, order=True):
    """A reason, and the program that writes it."""

    reason: str
    writer: str


class Unreadable(AssertionError):
    """A reason that is no constant."""


Trees = dict[Path, ast.Module]


@pytest.fixture(scope="module")
def trees() -> Trees:
    files = (f for f in SOURCE.rglob("*.py") if f != RECORDER and "lab" not in f.relative_to(SOURCE).parts)
    return {file: ast.parse(file.read_text()) for file in files}


def handed_on(trees: Trees) -> frozenset[str]:
    """The names of parameters that are given ``events.emit``."""
    calls = (node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Call))
    return frozenset(
        word.arg
        for call in calls
        for word in call.keywords
        if word.arg and isinstance(word.value, ast.Attribute) and word.value.attr == "emit"
    )


def kept_as(tree: ast.Module, parameters: frozenset[str]) -> frozenset[str]:
    """The attributes in which classes of the module keep such a parameter."""
    return frozenset(
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in parameters
        for target in node.targets
        if isinstance(target, ast.Attribute)
    )


def reasons(trees: Trees) -> Iterator[Said]:
    parameters = handed_on(trees)
    for file, tree in trees.items():
        kept = kept_as(tree, parameters) | {"emit"}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in kept:
                yield Said(text(node.args[1], file, trees), WRITERS[file.relative_to(SOURCE).parts[0]])


def text(expression: ast.expr, file: Path, trees: Trees) -> str:
    """A constant, or the name of one in this module or in the one that it is imported from."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return expression.value
    if isinstance(expression, ast.Name):
        for node in trees[file].body:
            if isinstance(node, ast.Assign) and any(ast.unparse(t) == expression.id for t in node.targets):
                return text(node.value, file, trees)
            if isinstance(node, ast.ImportFrom) and expression.id in [a.asname or a.name for a in node.names]:
                (name,) = [a.name for a in node.names if (a.asname or a.name) == expression.id]
                other = SOURCE.parent / Path(*(node.module or "").split(".")).with_suffix(".py")
                return text(ast.Name(name), other, trees)
    raise Unreadable(f"{file}: {ast.unparse(expression)}: write the reason of an event as a constant")


def rows(page: str) -> list[Said]:
    return [Said(*found) for found in _ROW.findall(page.partition("\n## ")[0])]


def test_every_reason_of_an_event_has_its_row_and_every_row_its_source(trees: Trees) -> None:
    written = sorted(set(reasons(trees)))
    assert len(written) >= 20, "the calls that write events are not found any more"
    assert rows(PAGE.read_text()) == written  # in order, each once


def test_events_are_written_by_the_recorder_alone(trees: Trees) -> None:
    """Else a reason could be written that the test above does not see."""
    creators = [
        file
        for file, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("create", "apply", "merge_patch")
        and any("paths.event" in ast.unparse(arg) for arg in node.args)
    ]
    assert creators == []


def test_a_reason_that_is_no_constant_is_found() -> None:
    made = ast.parse("def f(self, why): self._events.emit(pod, why, 'text')")
    with pytest.raises(Unreadable, match="write the reason of an event as a constant"):
        list(reasons({SOURCE / "agent" / "made.py": made}))


@pytest.mark.parametrize(
    "code",
    [
        "self._events.emit(pod, 'Made', 'text')",
        "REASON = 'Made'\nself._events.emit(pod, REASON, 'text')",
        "f(warn=events.emit)\nself._warn = warn\nself._warn(pod, 'Made', 'text')",
        "f(tell=events.emit)\nself.say = tell\nself.say(pod, 'Made', 'text')",
    ],
)
def test_each_way_to_write_an_event_is_read(code: str) -> None:
    assert list(reasons({SOURCE / "watch" / "made.py": ast.parse(code)})) == [Said("Made", "control plane")]
