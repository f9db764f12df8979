"""The judge of expressions refuses what it should."""

import pytest

from tests.deploy.promql import Wrong, labels_of


@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("fractile_waiting", "no program of Fractile shows fractile_waiting", id="metric"),
        pytest.param('fractile_card_healthy{gpu="1"}', "has no label gpu", id="matcher"),
        pytest.param("sum by (pod) (fractile_card_healthy)", "has no label pod", id="by"),
        pytest.param("fractile_waiting_pods > fractile_card_healthy", "the same labels", id="sides"),
        pytest.param("fractile_card_healthy * on (uid) fractile_card_healthy", "has no label uid", id="on"),
        pytest.param(
            "fractile_card_healthy * on (card) group_left (uid) fractile_card_info", "has no label uid", id="group_left"
        ),
        pytest.param("fractile_placement_nomination_seconds", "no program", id="a histogram has samples"),
        pytest.param(
            "histogram_quantile(0.5, sum(rate(fractile_placement_nomination_seconds_bucket[5m])))",
            "has no label le",
            id="quantile without its bounds",
        ),
        pytest.param("abs(fractile_waiting_pods)", "not known to this test", id="function"),
        pytest.param("fractile_waiting_pods unless ignoring (node) fractile_waiting_pods", "ignoring", id="ignoring"),
    ],
)
def test_what_no_program_shows_is_refused(text: str, said: str) -> None:
    with pytest.raises(Wrong, match=said):
        labels_of(text)


def test_what_is_no_promql_is_refused() -> None:
    with pytest.raises(ValueError, match="unclosed"):
        labels_of("sum(fractile_waiting_pods")


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("fractile_card_healthy == 0", {"node", "card"}),
        ("sum by (node) (rate(fractile_agent_looks_total[5m]))", {"node"}),
        ("sum without (card) (fractile_card_healthy)", {"node"}),
        ("sum(fractile_card_healthy) or vector(0)", set[str]()),
        ("topk(3, fractile_card_healthy)", {"node", "card"}),
        ("histogram_quantile(0.5, sum by (le) (rate(fractile_placement_nomination_seconds_bucket[5m])))", set[str]()),
        ("time() - fractile_agent_look_timestamp_seconds", {"node"}),
        (
            "fractile_card_healthy * on (node, card) group_left (model) fractile_card_info",
            {"node", "card", "model"},
        ),
        ("fractile_card_healthy * on (card) fractile_card_memory_bytes", {"card"}),
        ("fractile_card_healthy unless on (node) fractile_agent_info", {"node", "card"}),
    ],
)
def test_labels_are_those_that_prometheus_would_leave(text: str, labels: set[str]) -> None:
    assert labels_of(text) == labels
