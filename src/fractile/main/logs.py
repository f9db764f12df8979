"""Logging of the long-running programs: one line per decision on stderr, UTC; key=value, or JSON.

In JSON the ``key=value`` pairs of the message are also separate fields, so log collectors need no pattern for them.
"""

import json
import logging
import re
import time
from collections.abc import Callable
from functools import lru_cache
from typing import Any, TypeVar

import click
import msgspec

Command = TypeVar("Command", bound=Callable[..., Any])

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S"
_FIELD = re.compile(r"(?:^|(?<= ))([a-z_]+)=%[-#0 +]*\d*(?:\.\d+)?([a-z])")
_RESERVED = frozenset({"time", "level", "module", "decision", "message", "traceback"})


class _Text(logging.Formatter):
    """Formats the time once per second, since there may be hundreds of lines in one."""

    def __init__(self) -> None:
        super().__init__(_FORMAT, datefmt=_TIME)
        self._second, self._spelled = -1, ""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        second = int(record.created)
        if second != self._second:
            self._second, self._spelled = second, time.strftime(datefmt or _TIME, time.gmtime(second))
        return self._spelled


class _Json(_Text):
    """Takes fields from the arguments of the message, not from its text, so that no value is cut at a blank."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": f"{self.formatTime(record, _TIME)}.{int(record.msecs):03d}Z",
            "level": record.levelname,
            "module": record.name,
            **_fields(record),
            "message": record.getMessage(),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False, default=str)


class _Template(msgspec.Struct, frozen=True):
    """``decision``: the words before the first field. ``fields``: names, and the index of each among the arguments.
    ``holders``: the number of arguments."""

    decision: str
    fields: tuple[tuple[str, int], ...]
    holders: int


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """The decision, then the fields; numbers stay numbers."""
    known, values = _known(str(record.msg)), record.args
    if not known.fields or not isinstance(values, tuple) or len(values) != known.holders:
        return {}
    return {"decision": known.decision, **{name: _value(values[at]) for name, at in known.fields}}


@lru_cache(maxsize=512)  # the programs have a few dozen templates
def _known(template: str) -> _Template:
    fields = list(_FIELD.finditer(template))
    holders = [m.start() for m in re.finditer(r"%(?!%)", template.replace("%%", "\0\0"))]
    named = (
        (f"{field[1]}_" if field[1] in _RESERVED else field[1], holders.index(template.index("%", field.start())))
        for field in fields
    )
    first = fields[0].start() if fields else 0
    return _Template(template[:first].strip(), tuple(named), len(holders))


def _value(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def log_options(command: Command) -> Command:
    """Add the options ``log_level`` and ``log_format``."""
    for option in (
        click.option(
            "--log-format",
            default="text",
            show_default=True,
            type=click.Choice(["text", "json"]),
            help="text: key=value; json: one object per line.",
        ),
        click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"])),
    ):
        command = option(command)
    return command


def set_up_logging(level: str, form: str = "text") -> None:
    """Configure the root logger; libraries that log every request are limited to warnings."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text())
    # No format uses these, and each record would look them up.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
