"""Access to numba, an optional extra; only the modules whose names begin with ``compiled`` import this one."""

import importlib
from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def jit(function: F) -> F:
    """Compile a function at its first call on a machine; the result is cached on disk. numba has no type stubs."""
    njit: Any = importlib.import_module("numba").njit
    return cast(F, njit(cache=True, nogil=True)(function))
