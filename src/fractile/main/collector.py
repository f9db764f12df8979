"""How often Python's collector looks for cycles while a program builds what it will keep.

Each young collection walks what was made since the last one, and every so often all there is. While 50,000 pods are
read that is a third of the time, and finds nothing: what is kept has no cycles. Switched off altogether, the collector
would let the little garbage of failing connections grow for as long as the API server is away.
"""

import gc
from collections.abc import Generator
from contextlib import contextmanager

_YOUNG = 50_000  # objects more than before: a few megabytes at most, walked in milliseconds
_MIDDLE = 50  # young collections
_ALL = 100  # middle ones


@contextmanager
def seldom() -> Generator[None]:
    """Inside, collections are rare; what is there in the end is what lives as long as the process, and is never walked
    again."""
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, _MIDDLE, _ALL)
    try:
        yield
        gc.collect()
        gc.freeze()
    finally:
        gc.set_threshold(*before)
