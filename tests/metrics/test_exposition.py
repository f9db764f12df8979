"""The text, judged by Prometheus' own parsers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import Metric

from fractile.metrics.exposition import Family, MetricsPage, wants_openmetrics
from tests.metrics.parsers import parsed

GAUGE = Family("f_size_bytes", "gauge", "A size.", ("a", "b"))
COUNTER = Family("f_seen", "counter", "Times\nseen \\ so far.", ("a",))
INFO = Family("f_thing", "info", "What it is.", ("a", "version"))


def parse(page: MetricsPage, *, openmetrics: bool) -> dict[str, Metric]:
    return parsed(page.render(openmetrics=openmetrics), openmetrics=openmetrics)


@pytest.mark.parametrize("openmetrics", [False, True], ids=["text", "openmetrics"])
def test_families_of_all_kinds_are_read_back(openmetrics: bool) -> None:
    page = MetricsPage(limit=10)
    page.add(GAUGE, 1.5, "x", "y")
    page.add(GAUGE, 2, "x", "z")
    page.add(COUNTER, 7, "x")
    page.add(INFO, 1, "x", "1.0")
    found = parse(page, openmetrics=openmetrics)
    assert [(s.labels, s.value) for s in found["f_size_bytes"].samples] == [
        ({"a": "x", "b": "y"}, 1.5),
        ({"a": "x", "b": "z"}, 2),
    ]
    seen = found["f_seen"]
    assert (seen.type, [(s.name, s.value) for s in seen.samples]) == ("counter", [("f_seen_total", 7)])
    assert seen.documentation == "Times\nseen \\ so far."
    info = found["f_thing" if openmetrics else "f_thing_info"]
    assert info.type == ("info" if openmetrics else "gauge")
    assert info.samples[0].name == "f_thing_info"


def test_a_unit_is_told_to_who_can_read_it() -> None:
    page = MetricsPage(limit=1)
    page.add(GAUGE, 1, "x", "y")
    assert parse(page, openmetrics=True)["f_size_bytes"].unit == "bytes"


def test_a_series_without_a_value_is_none_and_its_family_is_not_shown() -> None:
    page = MetricsPage(limit=1)
    page.add(GAUGE, None, "x", "y")
    assert page.render(openmetrics=False) == b""
    assert page.render(openmetrics=True) == b"# EOF\n"


def test_beyond_the_limit_series_are_counted_and_not_shown() -> None:
    page = MetricsPage(limit=2)
    for n in range(5):
        page.add(COUNTER, n, str(n))
    page.add(COUNTER, 9, "0")  # no new series
    assert (page.size, page.dropped) == (2, 3)
    assert [s.value for s in parse(page, openmetrics=True)["f_seen"].samples] == [9, 1]


def test_what_must_be_shown_is_shown_beyond_the_limit_too() -> None:
    page = MetricsPage(limit=0)
    page.always(COUNTER, 1, "x")
    page.add(COUNTER, 1, "y")
    assert (page.size, page.dropped) == (1, 1)


def test_the_wrong_number_of_labels_is_an_error() -> None:
    with pytest.raises(ValueError, match="has 2 labels, not 1"):
        MetricsPage(limit=1).add(GAUGE, 1, "x")


@given(
    labels=st.lists(st.text(max_size=20), min_size=1, max_size=5, unique=True),
    value=st.floats(allow_nan=False) | st.integers(min_value=-(2**70), max_value=2**70),
    openmetrics=st.booleans(),
)
def test_any_label_and_any_number_come_back(labels: list[str], value: float, openmetrics: bool) -> None:
    page = MetricsPage(limit=10)
    for label in labels:
        page.add(GAUGE, value, label, "y")
    if any(c in label for label in labels for c in "\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        return  # the parsers of Python split lines at these too; Prometheus does not
    found = parse(page, openmetrics=openmetrics)["f_size_bytes"].samples
    assert [s.labels["a"] for s in found] == labels
    assert all(float(s.value) == float(value) for s in found)


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", True),
        ("application/openmetrics-text", True),
        ("text/plain", False),
        ("*/*", False),
        ("", False),
    ],
)
def test_openmetrics_is_for_who_asks_for_it(accept: str, wanted: bool) -> None:
    assert wants_openmetrics(accept) is wanted
