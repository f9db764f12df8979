"""The decisions about one pod, for tracing pods across programs (``main.tracing``); unused unless tracing is switched
on."""

from collections.abc import Callable, Mapping

import msgspec

Attribute = str | int | float | bool


class TraceStep(msgspec.Struct, frozen=True):
    """``pod`` is NAMESPACE/NAME; ``began`` and ``ended`` in nanoseconds since 1970. ``error``: why the pod did not get
    what it requested; "" when it did."""

    name: str
    uid: str
    pod: str
    began: int
    ended: int
    error: str = ""
    attributes: Mapping[str, Attribute] = {}


Trace = Callable[[TraceStep], None]
