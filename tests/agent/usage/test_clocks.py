"""A node's clock may jump; nothing that the agent decides rests on it."""

import ast
from pathlib import Path

from fractile import agent, nvml, region

SHOWN = {  # who asks what time it is, to tell people and the API server, and measures nothing by it
    "audit": "since when a finding stands",
    "availability": "since when an object is in its phase",
    "debug_state": "when the state was shown",
    "health": "times of the status, and whether an object is older than the last boot",
    "pages": "how old the picture is, as text",
    "prestart": "when a traced step was, for who looks at traces",
    "loop": "when the picture was taken",
}
WALL = {"time", "time_ns", "now", "utcnow", "today", "localtime", "gmtime"}
CLOCKS = {"time", "datetime", "date", "_datetime"}


def asks_the_time(file: Path) -> bool:
    """Whether the module names a function that gives the time of day."""
    return any(
        isinstance(node, ast.Attribute)
        and node.attr in WALL
        and isinstance(node.value, ast.Name)
        and node.value.id in CLOCKS
        for node in ast.walk(ast.parse(file.read_text()))
    )


def test_only_what_is_shown_to_people_comes_from_a_clock_that_may_jump() -> None:
    folders = [Path(package.__path__[0]) for package in (agent, nvml, region)]
    modules = [file for folder in folders for file in folder.rglob("*.py")]
    assert len(modules) > 50
    assert {file.stem for file in modules if asks_the_time(file)} == set(SHOWN)


def test_durations_are_of_the_clock_that_does_not_jump() -> None:
    """The same look finds what it looks for: the modules with timers of their own."""
    folder = Path(agent.__path__[0])
    timed = {file.stem for file in folder.rglob("*.py") if "time.monotonic" in file.read_text()}
    assert timed >= {
        "garbage_collection",
        "library",
        "isolation",
        "preferred_allocation",
        "prestart",
        "pods",
        "register",
        "health",
        "audit",
    }
