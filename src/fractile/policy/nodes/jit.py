"""The door to numba, which is an optional extra: only the modules whose names begin with ``compiled`` pass through."""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compiled when it is first called on a machine, and kept on its disk. numba has no types of its own to check
    against."""
    njit: Any = importlib.import_module("numba").njit
    return cast(F, njit(cache=True, nogil=True)(function))
