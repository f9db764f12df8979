"""Runs the tests of a script in the form that run.sh counts: a test is a function named as a sentence."""

from collections.abc import Callable
from typing import Any


class Skip(Exception):
    """The text says why."""


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
