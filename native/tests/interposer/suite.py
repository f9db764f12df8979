"""Runs the tests of a script with the output that run.sh counts. A test is a function whose name is a sentence."""

from collections.abc import Callable
from typing import Any


class Skip(Exception):
    """The test is skipped; the text says why."""


def run(names: dict[str, Any]) -> int:
    passed = skipped = failed = 0
    tests: list[Callable[[], None]] = [test for name, test in names.items() if name.startswith("test_")]
    for test in tests:
        name = test.__name__.removeprefix("test_")
        try:
            test()
            passed += 1
            print(f"ok   {name}")
        except Skip as reason:
            skipped += 1
            print(f"skip {name}: {reason}")
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {type(error).__name__}: {error}")
    print(f"{passed} passed, {skipped} skipped, {failed} failed")
    return 1 if failed else 0
