"""The dashboard: every panel asks for what the programs show, and its legends for labels that are left."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.promql import METRICS, labels_of

DASHBOARD: dict[str, Any] = json.loads((Path(__file__).parents[2] / "deploy" / "grafana" / "fractile.json").read_text())
WIDTH = 24
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_VALUES = re.compile(r"label_values\((\w+), (\w+)\)")
BUILT_IN = {"__rate_interval", "__all"}


def panels() -> list[dict[str, Any]]:
    return [p for p in DASHBOARD["panels"] if p["type"] != "row"]


def variables() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = DASHBOARD["templating"]["list"]
    return found


@pytest.fixture(params=panels(), ids=[p["title"] for p in panels()])
def panel(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_its_expressions_name_what_there_is_and_its_legends_what_is_left(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        labels = labels_of(target["expr"].replace("$__rate_interval", "5m"))
        assert set(_LEGEND.findall(target["legendFormat"])) <= labels


def test_it_is_explained_and_has_a_unit(panel: dict[str, Any]) -> None:
    assert panel["description"].endswith((".", ")."))
    assert panel["fieldConfig"]["defaults"]["unit"]
    assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}


def test_panels_have_ids_of_their_own_and_do_not_lie_on_each_other() -> None:
    taken: dict[tuple[int, int], str] = {}
    for each in DASHBOARD["panels"]:
        at = each["gridPos"]
        assert at["x"] + at["w"] <= WIDTH, each["title"]
        for x in range(at["x"], at["x"] + at["w"]):
            for y in range(at["y"], at["y"] + at["h"]):
                assert taken.setdefault((x, y), each["title"]) == each["title"]

    assert len({p["id"] for p in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_variables_are_filled_from_labels_that_there_are_and_all_are_used() -> None:
    named = {v["name"] for v in variables()}
    used = {a or b for text in _texts(DASHBOARD["panels"]) for a, b in _VARIABLE.findall(text)}
    for variable in variables():
        if variable["type"] == "query":
            metric, label = _VALUES.findall(variable["definition"])[0]
            assert label in METRICS[metric]
            assert variable["query"]["query"] == variable["definition"]

    assert used - BUILT_IN == named


def _texts(found: Any) -> Iterator[str]:
    if isinstance(found, str):
        yield found
    elif isinstance(found, dict):
        for inner in found.values():  # pyright: ignore[reportUnknownVariableType]  # JSON
            yield from _texts(inner)
    elif isinstance(found, list):
        for inner in found:  # pyright: ignore[reportUnknownVariableType]  # JSON
            yield from _texts(inner)
