"""The page of the control plane: valid in both formats, bounded, documented."""

import re
from pathlib import Path

import msgspec
import pytest

from fractile.metrics import control_plane
from fractile.metrics.control_plane import LIMIT, ControlPlaneFigures, Held, Limited, page
from fractile.metrics.exposition import Family
from tests.metrics.parsers import parsed

DOCS = Path(__file__).parents[2] / "docs" / "metrics-control-plane.md"
FIGURES = ControlPlaneFigures(
    version="1.2.3",
    ready=True,
    nodes=3,
    cards=8,
    assumed=1,
    bound=12,
    conflicts=2,
    waiting=4,
    quota_read=False,
    quota_namespaces=1,
    cpu=3.5,
    resident=2**26,
    descriptors=30,
    tasks=20,
    limits=(Limited("a", "M40", 200, 150),),
    held=(
        Held("a", "", "Tesla M40", "public", 100),
        Held("a", "small", "Tesla M40", "public", 50),
        Held("a", "", "Tesla M40", "public", 25),
        Held("b", "", 'odd "model"', "", 1),
    ),
)


@pytest.mark.parametrize("openmetrics", [True, False], ids=["openmetrics", "text"])
def test_the_page_says_what_is_held_and_what_may_be(openmetrics: bool) -> None:
    found = parsed(page(FIGURES).render(openmetrics=openmetrics), openmetrics=openmetrics)
    assert [(s.labels["model"], s.value) for s in found["fractile_quota_limit_cards"].samples] == [("M40", 2)]
    assert [s.value for s in found["fractile_quota_used_cards"].samples] == [1.5]
    assert [(tuple(s.labels.values()), s.value) for s in found["fractile_namespace_held_cards"].samples] == [
        (("a", "", "Tesla M40", "public"), 1.25),
        (("a", "small", "Tesla M40", "public"), 0.5),
        (("b", "", 'odd "model"', ""), 0.01),
    ]
    assert {s.labels["state"]: s.value for s in found["fractile_ledger_pods"].samples} == {"assumed": 1, "bound": 12}
    assert found["fractile_quota_read"].samples[0].value == 0


def test_the_number_of_series_has_a_limit_and_the_page_says_how_many_are_missing() -> None:
    many = msgspec.structs.replace(FIGURES, held=[Held(f"n{i}", "", "m", "", 1) for i in range(LIMIT + 100)])
    made = page(many)
    found = parsed(made.render(openmetrics=True), openmetrics=True)
    assert found["fractile_control_plane_dropped_series"].samples[0].value == made.dropped == 102
    assert found["fractile_control_plane_ready"].samples[0].value == 1


def test_every_metric_is_in_the_documentation_with_its_labels_and_nothing_else_is() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    families = [value for value in vars(control_plane).values() if isinstance(value, Family)]
    assert dict(rows) == {f.sample: ", ".join(f.labels) or "none" for f in families}
