"""The page of the control plane: valid in both formats, bounded, documented."""

import re
from pathlib import Path

import msgspec
import pytest

from fractile.metrics import control_plane
from fractile.metrics.control_plane import LIMIT, ControlPlaneFigures, Limited, NamespaceHold, PlacementFigures, page
from fractile.metrics.exposition import Distribution, Family
from tests.metrics.parsers import parsed

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "metrics-control-plane.md"
FIGURES = ControlPlaneFigures(
    version="1.2.3",
    ready=True,
    certified=False,
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
    placement=PlacementFigures(
        pods={"undecided": 1, "reserved": 5},
        decisions={"nominated": 7},
        ended={"taken": 4, "expired": 1},
        gates={"leader": 6, "sweeper": 0},
        seconds=Distribution((0.1, 1.0), (3, 6, 7), 8.5),
    ),
    limits=(Limited("a", "M40", 200, 150),),
    held=(
        NamespaceHold("a", "", "Tesla M40", "public", 100),
        NamespaceHold("a", "small", "Tesla M40", "public", 50),
        NamespaceHold("a", "", "Tesla M40", "public", 25),
        NamespaceHold("b", "", 'odd "model"', "", 1),
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


@pytest.mark.parametrize("openmetrics", [True, False], ids=["openmetrics", "text"])
def test_the_page_says_what_became_of_nominations(openmetrics: bool) -> None:
    found = parsed(page(FIGURES).render(openmetrics=openmetrics), openmetrics=openmetrics)
    assert {s.labels["state"]: s.value for s in found["fractile_placement_pods"].samples} == {
        "undecided": 1,
        "reserved": 5,
    }
    ended = found["fractile_placement_reservations_ended"].samples
    assert {s.labels["how"]: s.value for s in ended} == {"taken": 4, "expired": 1}
    assert {s.labels["by"]: s.value for s in found["fractile_placement_gates_removed"].samples}["leader"] == 6
    times = found["fractile_placement_nomination_seconds"]
    assert times.type == "histogram"
    assert {s.labels["le"]: s.value for s in times.samples if s.name.endswith("_bucket")} == {
        "0.1": 3,
        "1.0": 6,
        "+Inf": 7,
    }
    assert {s.name.rpartition("_")[2]: s.value for s in times.samples if not s.labels} == {"sum": 8.5, "count": 7}


def test_no_limit_drops_what_is_said_of_placement() -> None:
    made = page(FIGURES, limit=0)
    assert parsed(made.render(openmetrics=True), openmetrics=True)["fractile_placement_nomination_seconds"].samples
    assert b'fractile_placement_decisions_total{decision="nominated"} 7' in made.render(openmetrics=False)


def test_the_number_of_series_has_a_limit_and_the_page_says_how_many_are_missing() -> None:
    many = msgspec.structs.replace(FIGURES, held=[NamespaceHold(f"n{i}", "", "m", "", 1) for i in range(LIMIT + 100)])
    made = page(many)
    found = parsed(made.render(openmetrics=True), openmetrics=True)
    assert found["fractile_control_plane_dropped_series"].samples[0].value == made.dropped == 102
    assert found["fractile_control_plane_ready"].samples[0].value == 1


def test_every_metric_is_in_the_documentation_with_its_labels_and_nothing_else_is() -> None:
    rows = re.findall(r"^\| `([a-z_]+)` \| ([^|]*) \|", DOCS.read_text(), re.MULTILINE)
    families = [value for value in vars(control_plane).values() if isinstance(value, Family)]
    assert dict(rows) == {f.sample: ", ".join(f.labels) or "none" for f in families}
