"""A line of the log as text and as JSON: the same decision, and no field cut or lost."""

import contextlib
import io
import json
import logging
from collections.abc import Generator

import pytest

from fractile.main.logs import set_up_logging


@pytest.fixture
def root() -> Generator[logging.Logger]:
    """The root logger, put back as it was."""
    found = logging.getLogger()
    before, level = found.handlers[:], found.level
    yield found
    found.handlers[:] = before
    found.setLevel(level)


def written(root: logging.Logger, form: str, template: str, *values: object, exc_info: bool = False) -> str:
    """What arrives at the error stream."""
    with contextlib.redirect_stderr(io.StringIO()) as text:
        set_up_logging("info", form)
        logging.getLogger("fractile.extender.app").info(template, *values, exc_info=exc_info)
    assert len(root.handlers) == 1
    return text.getvalue()


FILTER = "filter pod=%r asked=%d fit=%d reason=%r ms=%.2f", "team-a/p", 4, 2, "two words = odd", 0.4123


def test_as_text_a_decision_is_one_line_of_key_and_value(root: logging.Logger) -> None:
    line = written(root, "text", *FILTER)
    assert line.endswith(
        "Z INFO fractile.extender.app filter pod='team-a/p' asked=4 fit=2 reason='two words = odd' ms=0.41\n"
    )


def test_as_json_its_fields_are_fields(root: logging.Logger) -> None:
    found = json.loads(written(root, "json", *FILTER))
    assert found.pop("time").endswith("Z")
    assert found == {
        "level": "INFO",
        "module": "fractile.extender.app",
        "decision": "filter",
        "pod": "team-a/p",
        "asked": 4,
        "fit": 2,
        "reason": "two words = odd",
        "ms": 0.412,
        "message": "filter pod='team-a/p' asked=4 fit=2 reason='two words = odd' ms=0.41",
    }


@pytest.mark.parametrize(
    ("template", "values", "fields"),
    [
        pytest.param("listening address=%s", (":5678",), {"decision": "listening", "address": ":5678"}, id="one"),
        pytest.param("only words", (), {}, id="none"),
        pytest.param("at %d %% of pod=%s", (90, "p"), {"decision": "at %d %% of", "pod": "p"}, id="other values"),
        pytest.param("moved level=%s", ("x",), {"decision": "moved", "level_": "x"}, id="a name of ours"),
        pytest.param("seen nodes=%s", (["n1"],), {"decision": "seen", "nodes": "['n1']"}, id="a list"),
    ],
)
def test_what_is_no_plain_field_is_still_a_line(
    root: logging.Logger, template: str, values: tuple[object, ...], fields: dict[str, object]
) -> None:
    found = json.loads(written(root, "json", template, *values))
    assert {k: v for k, v in found.items() if k not in ("time", "level", "module", "message")} == fields
    assert found["message"] == (template % values if values else template)


def test_the_traceback_of_a_bug_stays_in_its_line(root: logging.Logger) -> None:
    try:
        raise ValueError("odd")
    except ValueError:
        text = written(root, "json", "verb failed path=%s", "/scheduler/filter", exc_info=True)
    assert text.count("\n") == 1
    assert "ValueError: odd" in json.loads(text)["traceback"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_every_line_has_its_own_time(root: logging.Logger, form: str) -> None:
    handler = logging.StreamHandler(lines := io.StringIO())
    set_up_logging("info", form)
    handler.setFormatter(root.handlers[0].formatter)
    for created in (1.25, 1.5, 86400.75, 1.125):
        record = logging.makeLogRecord({"msg": "x", "created": created, "msecs": created % 1 * 1000})
        handler.emit(record)
    found = lines.getvalue()
    times = ["1970-01-01T00:00:01.250Z", "1970-01-01T00:00:01.500Z", "1970-01-02T00:00:00.750Z"]
    assert [found.index(one) for one in (*times, "1970-01-01T00:00:01.125Z")] == sorted(
        found.index(one) for one in (*times, "1970-01-01T00:00:01.125Z")
    )
