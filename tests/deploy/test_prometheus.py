"""The alert rules: every expression is PromQL, and names only what the programs show."""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, cast

import promql_parser
import pytest
import yaml

from tests.deploy.promql import labels_of

ROOT = Path(__file__).parents[2]
RULES = ROOT / "deploy" / "prometheus" / "fractile-rules.yaml"
TESTS = RULES.with_name("fractile-rules-test.yaml")
SEVERITIES = {"critical", "warning", "info"}
_LABEL = re.compile(r"\$labels\.(\w+)")

Rule = dict[str, Any]


def read(path: Path) -> dict[str, Any]:
    return cast(dict[str, Any], yaml.safe_load(path.read_text()))


def rules() -> list[Rule]:
    return [rule for group in read(RULES)["groups"] for rule in group["rules"]]


@pytest.fixture(params=rules(), ids=[r["alert"] for r in rules()])
def rule(request: pytest.FixtureRequest) -> Rule:
    found: Rule = request.param
    return found


def test_its_expression_names_what_there_is_and_its_words_use_what_is_left(rule: Rule) -> None:
    labels = labels_of(rule["expr"])

    assert {name for text in rule["annotations"].values() for name in _LABEL.findall(text)} <= labels


def test_it_has_all_that_an_alert_needs_and_nothing_else(rule: Rule) -> None:
    assert rule.keys() - {"for"} == {"alert", "expr", "labels", "annotations"}
    assert rule["labels"].keys() == {"severity"}
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"].keys() == {"summary", "description"}
    assert promql_parser.parse_duration(rule.get("for", "1m")).total_seconds() >= 60


def test_names_are_given_once_and_explained() -> None:
    names = [r["alert"] for r in rules()]
    page = (ROOT / "docs" / "operate" / "observability.md").read_text()

    assert len(set(names)) == len(names)
    assert re.findall(r"^\| `(Fractile\w+)`", page, re.MULTILINE) == names


def test_each_alert_is_made_to_come_by_promtools_tests() -> None:
    checks = [check for each in read(TESTS)["tests"] for check in each["alert_rule_test"]]

    assert {c["alertname"] for c in checks if c["exp_alerts"]} == {r["alert"] for r in rules()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_promtool_agrees() -> None:
    subprocess.run(["promtool", "test", "rules", str(TESTS)], check=True, timeout=60)
