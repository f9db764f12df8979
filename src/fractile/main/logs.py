"""Logging of the long-running programs: one line per decision on stderr, UTC; key=value, or JSON.

As JSON the fields of a decision are fields: what stands in the message as ``key=value`` is found again by those who
collect logs, without a pattern of their own.
"""

import json
import logging
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
_TIME = "%Y-%m-%dT%H:%M:%S"
_FIELD = re.compile(r"(?:^|(?<= ))([a-z_]+)=%[-#0 +]*\d*(?:\.\d+)?([a-z])")
_RESERVED = frozenset({"time", "level", "module", "decision", "message", "traceback"})


class _Json(logging.Formatter):
    """Fields of the message are taken from its arguments, not from its text, so that no value is cut at a blank."""

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


def _fields(record: logging.LogRecord) -> dict[str, object]:
    """``decision``: the words before the first field; then the fields, as numbers where they are numbers."""
    template, values = str(record.msg), record.args
    fields = list(_FIELD.finditer(template))
    if not fields or not isinstance(values, tuple) or len(values) != template.replace("%%", "").count("%"):
        return {}
    holders = [m.start() for m in re.finditer(r"%(?!%)", template.replace("%%", "\0\0"))]
    found: dict[str, object] = {"decision": template[: fields[0].start()].strip()}
    for field in fields:
        at = holders.index(template.index("%", field.start()))
        name = f"{field[1]}_" if field[1] in _RESERVED else field[1]
        found[name] = _value(values[at])
    return found


def _value(value: object) -> object:
    if isinstance(value, float):
        return round(value, 3)
    return value if isinstance(value, bool | int | str) or value is None else str(value)


def log_options(command: Command) -> Command:
    """The options of the command line: ``log_level`` and ``log_format``."""
    for option in (
        click.option(
            "--log-format",
            default="text",
            show_default=True,
            type=click.Choice(["text", "json"]),
            help="text: key=value; json: one object a line.",
        ),
        click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"])),
    ):
        command = option(command)
    return command


def set_up_logging(level: str, form: str = "text") -> None:
    """Configure the root logger; libraries that log every request are kept to warnings."""
    formatter = _Json() if form == "json" else logging.Formatter(_FORMAT, datefmt=_TIME)
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn.access").setLevel(logging.WARNING)
