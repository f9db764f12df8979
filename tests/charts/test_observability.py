"""Monitors, alert rules and dashboard as the chart renders them."""

import json
from typing import Any

import yaml

from tests.charts.rendering import CHART, ROOT, Document, documents, generator, kinds, named

ON: dict[str, Any] = {
    "metrics": {
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True, "labels": {"release": "prometheus"}},
        "dashboard": {"enabled": True},
    }
}
RULE, DASHBOARD = ("PrometheusRule", "fractile"), ("ConfigMap", "fractile-dashboard")


def test_neither_rules_nor_dashboard_come_unasked() -> None:
    assert kinds(documents()) & {RULE, DASHBOARD} == set()


def test_the_rules_are_those_that_are_tested() -> None:
    rule = named(documents(ON), *RULE)

    assert rule["spec"] == yaml.safe_load((ROOT / "deploy" / "prometheus" / "fractile-rules.yaml").read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_the_dashboard_is_the_one_that_is_tested_and_has_the_sidecars_label() -> None:
    found = named(documents(ON), *DASHBOARD)
    source = (ROOT / "deploy" / "grafana" / "fractile.json").read_text()

    assert json.loads(found["data"]["fractile.json"]) == json.loads(source)
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert len(source) < 2**20 * 0.9  # of a ConfigMap


def test_the_charts_files_are_copies() -> None:
    stale = [p.name for p in generator().COPIES if (CHART / "files" / p.name).read_text() != p.read_text()]

    assert stale == [], "run make chart"


def test_namespace_and_pod_in_the_figures_are_those_of_the_containers_and_not_the_agents_own() -> None:
    """Without honorLabels the operator's own labels push ours aside, to exported_namespace and exported_pod."""
    found: list[Document] = [d for d in documents(ON) if d["kind"] == "ServiceMonitor"]

    assert len(found) == 2
    assert [e["honorLabels"] for d in found for e in d["spec"]["endpoints"]] == [True, True]
