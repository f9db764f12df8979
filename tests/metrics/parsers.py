"""Prometheus' own parsers, which judge the pages."""

# The OpenMetrics parser has no types.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from prometheus_client import Metric
from prometheus_client import parser as text_parser
from prometheus_client.openmetrics import parser as openmetrics_parser


def parsed(page: bytes, *, openmetrics: bool) -> dict[str, Metric]:
    """The families by name; an error when the page is not valid, or says the same twice."""
    text = page.decode()
    read = (
        openmetrics_parser.text_string_to_metric_families(text)
        if openmetrics
        else text_parser.text_string_to_metric_families(text)
    )
    found: dict[str, Metric] = {}
    for metric in read:
        assert metric.name not in found, metric.name
        series = [(s.name, tuple(sorted(s.labels.items()))) for s in metric.samples]
        assert len(set(series)) == len(series), metric.name
        found[metric.name] = metric
    return found
