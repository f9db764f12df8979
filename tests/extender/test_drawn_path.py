"""The drawing of the path of filter and bind (docs/pictures/path-of-a-call.svg) is the path that calls take."""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import pytest

from tests.builders import container, in_use, pod
from tests.main.plane import plane

ROOT = Path(__file__).parents[2]
# Passed too, but not drawn: plain data, checks of sizes, and the arithmetic inside a step.
BESIDE = ("model.", "wire.", "dialects.", "policy.cards.", "ledger.", "kube.", "metrics.")
HELPERS = {
    "extender.engine",
    "extender.expected",
    "extender.nominated",
    "extender.policies",
    "extender.score",
    "reconcile.nominations",
    "watch.waiting_pods",
}


def _drawings() -> Any:
    spec = importlib.util.spec_from_file_location("drawings", ROOT / "hack" / "drawings.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Passed:
    """The functions of Fractile that are called while it is the profiler, by module."""

    def __init__(self) -> None:
        self.functions: dict[str, set[str]] = {}

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        module = str(frame.f_globals.get("__name__", ""))
        if event == "call" and module.startswith("fractile."):
            self.functions.setdefault(module.removeprefix("fractile."), set()).add(frame.f_code.co_qualname)

    def follow(self, call: Callable[[], object]) -> object:
        sys.setprofile(self)
        try:
            return call()
        finally:
            sys.setprofile(None)


def check(drawn: Any, passed: Passed) -> None:
    """Everything that is drawn is called; what is called and not drawn is none of the steps."""
    assert len(drawn) <= 12
    wanted = {module.replace("/", "."): function for module, function, _ in drawn}
    assert {m: f for m, f in wanted.items() if f not in passed.functions.get(m, ())} == {}
    others = {m for m in passed.functions if m not in wanted and not m.startswith(BESIDE)}
    assert others <= HELPERS


async def test_a_filter_passes_the_modules_that_are_drawn() -> None:
    passed = Passed()
    names = [f"n{i}" for i in range(101)]
    async with plane(nodes=names[:3]) as p:
        in_use(p.ledger, "n1", 16276, 16276)
        for asked in (
            pod("many", container(memory=8138)),
            pod("two", container("a", memory=8138), container("b", memory=16276)),
        ):
            body = msgspec.json.encode({"Pod": asked, "NodeNames": names})
            passed.follow(lambda body=body: p.extender.filter(body))
    check(_drawings().FILTER, passed)


async def test_a_bind_passes_the_modules_that_are_drawn() -> None:
    passed = Passed()
    async with plane(nodes=("n1",)) as p:
        asked = p.submit("p", container(memory=8138)).metadata
        body = {"PodName": asked.name, "PodNamespace": asked.namespace, "PodUID": asked.uid, "Node": "n1"}
        sys.setprofile(passed)
        try:
            answer = await p.extender.bind(msgspec.json.encode(body))
        finally:
            sys.setprofile(None)
    assert msgspec.json.decode(answer) == {"Error": ""}
    check(_drawings().BIND, passed)


def test_what_is_drawn_and_not_called_is_found() -> None:
    with pytest.raises(AssertionError):
        check((("extender/app", "Extender.filter", ""),), Passed())
