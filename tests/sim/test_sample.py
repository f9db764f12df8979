"""Policies that are shown a part of the nodes, as kube-scheduler does."""

import pytest

from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.policies.table import find
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import TaskDemand
from fractile.sim.cluster import Cluster
from fractile.sim.sample import ADAPTIVE, Sampled, enough, percent_of
from fractile.sim.snapshot.trace import NodeRow

WHOLE = TaskDemand(1000, 0, 1, 1000)
PART = TaskDemand(1000, 0, 1, 600)


@pytest.mark.parametrize(
    ("nodes", "percent", "wanted"),
    [
        pytest.param(99, ADAPTIVE, 99, id="few nodes are all looked at"),
        pytest.param(1213, ADAPTIVE, 497, id="50 - 1213 / 125 = 41 percent"),
        pytest.param(5000, ADAPTIVE, 500, id="10 percent"),
        pytest.param(10_000, ADAPTIVE, 500, id="5 percent at least"),
        pytest.param(1213, 5, 100, id="100 nodes at least"),
        pytest.param(1213, 100, 1213, id="all"),
    ],
)
def test_so_many_feasible_nodes_are_looked_for(nodes: int, percent: int, wanted: int) -> None:
    assert enough(nodes, percent) == wanted


@pytest.mark.parametrize(
    ("text", "wanted"), [("adaptive", ADAPTIVE), ("1", 1), ("100", 100), ("0", None), ("101", None), ("x", None)]
)
def test_a_sample_is_adaptive_or_a_percentage(text: str, wanted: int | None) -> None:
    assert percent_of(text) == wanted


def sampled(nodes: list[NodeRow], policy: str, percent: int) -> tuple[Sampled, Cluster]:
    cluster = Cluster(nodes)
    found = find(policy)
    assert found is not None
    score_cache = ScoreCache(cluster.view, found, scoring_of(cluster.view, mix_of([WHOLE])))
    return Sampled(score_cache, cluster.view, percent), cluster


def test_each_look_begins_where_the_last_one_ended() -> None:
    seen, _ = sampled([NodeRow(f"n{i}", 64_000, 1000, 8, "T4") for i in range(250)], "first-fit", 40)
    rows = [choice.row for _ in range(4) if (choice := seen.best(WHOLE, 0)) is not None]
    assert rows == [0, 100, 0, 50]


def test_nodes_that_do_not_fit_by_their_sums_do_not_count() -> None:
    """The best node is the last one, and comes into view since most before it lack CPU."""
    nodes = [NodeRow(f"n{i}", 500 if i < 150 else 64_000, 1000, 2 if i == 249 else 8, "T4") for i in range(250)]
    seen, _ = sampled(nodes, "bestfit", 40)
    choice = seen.best(WHOLE, 0)
    assert choice is not None
    assert choice.row == 249


def test_a_pod_comes_again_until_all_nodes_have_been_shown() -> None:
    """By their sums 200 nodes have room for 600 thousandths, on no single card: only the last node has."""
    nodes = [NodeRow(f"n{i}", 64_000, 1000, 2, "T4") for i in range(201)]
    seen, cluster = sampled(nodes, "bestfit", 50)
    cluster.view.gpu_left[:200] = 500
    choice = seen.best(PART, 0)
    assert choice is not None
    assert choice.row == 200
    cluster.view.gpu_left[200] = 500
    seen.changed(200)
    assert seen.best(PART, 0) is None


def test_with_all_nodes_shown_nothing_is_lost() -> None:
    nodes = [NodeRow(f"n{i}", 64_000, 1000, 1 + i % 8, "T4") for i in range(120)]
    seen, cluster = sampled(nodes, "bestfit", 100)
    found = find("bestfit")
    assert found is not None
    score_cache = ScoreCache(cluster.view, found, scoring_of(cluster.view, mix_of([WHOLE])))
    assert [seen.best(a, 0) for a in (WHOLE, PART)] == [score_cache.best(a, 0) for a in (WHOLE, PART)]
