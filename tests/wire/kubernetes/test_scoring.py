"""How kube-scheduler is told to score: what people write, and its own configuration, old and new."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.wire.kubernetes import scoring
from fractile.wire.kubernetes.scheduler_config import SchedulerConfigOptions, document
from fractile.wire.kubernetes.scoring import ShapePoint, Strategy, StrategyKind, Weighted


def test_a_shape_is_points_of_percent_and_score() -> None:
    assert scoring.parse_shape("0:0, 40:2,100:10") == (ShapePoint(0, 0), ShapePoint(40, 2), ShapePoint(100, 10))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not UTILIZATION:SCORE"),
        ("0:0,", "not UTILIZATION:SCORE"),
        ("0:-1", "not UTILIZATION:SCORE"),
        ("0:0,101:1", "utilization of 101"),
        ("0:0,100:11", "score of 11"),
        ("0:0,50:1,50:2", "must rise, and 50 comes after 50"),
        ("100:10,0:0", "must rise, and 0 comes after 100"),
    ],
)
def test_a_shape_that_kubernetes_would_refuse_is_refused(text: str, told: str) -> None:
    with pytest.raises(WireError, match=told):
        scoring.parse_shape(text)


def test_resources_have_weights_and_1_may_be_left_out() -> None:
    assert scoring.parse_resources("nvidia.com/gpu=5, cpu") == (Weighted("nvidia.com/gpu", 5), Weighted("cpu", 1))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "not the name of a resource"),
        ("cpu=0", "weight 0 of cpu"),
        ("cpu=101", "weight 101 of cpu"),
        ("cpu=x", "not NAME=WEIGHT"),
        ("cpu=", "not NAME=WEIGHT"),
        ("a b", "not the name of a resource"),
        ("cpu,memory,cpu=2", "cpu is named twice"),
    ],
)
def test_resources_that_kubernetes_would_refuse_are_refused(text: str, told: str) -> None:
    with pytest.raises(WireError, match=told):
        scoring.parse_resources(text)


_weighted = st.dictionaries(
    st.sampled_from(["cpu", "memory", "nvidia.com/gpu", "a/b"]), st.integers(1, 100), min_size=1
)
_shapes = st.dictionaries(st.integers(0, 100), st.integers(0, 10), min_size=1, max_size=5)


@given(
    st.sampled_from(StrategyKind),
    _weighted,
    _shapes,
    st.integers(20, 36),
    st.sampled_from(["default-scheduler", "packed"]),
)
def test_what_is_written_for_any_version_is_read_back(
    kind: StrategyKind, weights: dict[str, int], points: dict[int, int], minor: int, profile: str
) -> None:
    shape = (
        tuple(ShapePoint(u, s) for u, s in sorted(points.items()))
        if kind is StrategyKind.RATIO
        else scoring.BIN_PACKING
    )
    strategy = Strategy(kind, tuple(Weighted(n, w) for n, w in weights.items()), shape)

    written = document(SchedulerConfigOptions(minor, "config", strategy, profile=profile))

    assert scoring.of_configuration(written, profile) == strategy


@pytest.mark.parametrize(
    "strategy",
    [
        Strategy(StrategyKind.RATIO, (Weighted("a/b", 5), Weighted("cpu")), (ShapePoint(0, 3), ShapePoint(70, 0))),
        Strategy(StrategyKind.MOST),
        Strategy(StrategyKind.LEAST),
    ],
    ids=lambda strategy: str(strategy.kind),
)
def test_a_policy_file_is_read_back(strategy: Strategy) -> None:
    assert scoring.of_policy(document(SchedulerConfigOptions(20, "policy", strategy))) == strategy


def test_a_policy_file_without_priorities_has_kube_schedulers_own_and_one_with_others_alone_is_refused() -> None:
    assert scoring.of_policy({"kind": "Policy"}) == scoring.DEFAULT
    with pytest.raises(WireError, match="the Policy scores nodes by none of MostRequestedPriority"):
        scoring.of_policy({"priorities": [{"name": "ImageLocalityPriority", "weight": 1}]})


def test_without_a_word_about_scores_kube_schedulers_default_is_meant() -> None:
    assert scoring.of_configuration({}) == Strategy(StrategyKind.LEAST, (Weighted("cpu"), Weighted("memory")))
    assert scoring.of_configuration({"profiles": [{"schedulerName": "x"}]}, "other") == scoring.DEFAULT


@pytest.mark.parametrize(
    ("fit", "told"),
    [
        ({"scoringStrategy": {"type": "MostFull"}}, "'MostFull' is not a scoring strategy"),
        ({"scoringStrategy": {"type": "RequestedToCapacityRatio"}}, "has no shape"),
        ({"scoringStrategy": {"type": "MostAllocated", "resources": [{"name": "cpu", "weight": 200}]}}, "weight 200"),
        ({"scoringStrategy": {"resources": "cpu"}}, "NodeResourcesFitArgs: Expected"),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(fit: object, told: str) -> None:
    with pytest.raises(WireError, match=told):
        scoring.of_configuration({"profiles": [{"pluginConfig": [{"name": "NodeResourcesFit", "args": fit}]}]})


def test_a_name_that_no_file_can_hold_is_refused_with_a_sentence() -> None:
    """YAML knows an escape for half of a pair of surrogates, which is no text."""
    with pytest.raises(WireError, match="Policy: "):
        scoring.of_policy({"priorities": [{"\ud800": "x"}]})
