"""The format of ``fractile score -o json``."""

from fractile.wire.output.score_report import (
    PodReport,
    ResourceWeight,
    ScaleOfTen,
    ScoredNode,
    ScoreReport,
    ShapeReport,
    StrategyReport,
    TermReport,
    decode,
    encode,
)
from tests.wire.golden_files import golden

TERM = TermReport(
    resource="a/gpu", held=1, pod=2, requested=3, capacity=4, utilization=75, score=75, weight=5, counted=True
)
NODE = ScoredNode("n1", 75, 375, 5, (), (TERM,), ScaleOfTen(35, 5, 7))
STRATEGY = StrategyReport(
    "requested-to-capacity-ratio", "file", (ResourceWeight("a/gpu", 5),), (ShapeReport(0, 0), ShapeReport(100, 10))
)
REPORT = ScoreReport("1.36", (PodReport("default", "p", STRATEGY, (NODE,), ("n1",)),))


def test_the_report_is_encoded_as_recorded() -> None:
    assert encode(REPORT) + "\n" == golden("score-report.json").decode()


def test_the_recorded_report_is_read_back() -> None:
    assert decode(golden("score-report.json")) == REPORT
