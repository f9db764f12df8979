import msgspec
import pytest

from tests.load.figures import (
    Round,
    Share,
    Times,
    Used,
    alone,
    best,
    mean_rate,
    percentile,
    rate_of,
    shares,
    sums,
    verbs_of,
    verdicts,
)
from tests.load.scenarios import ADAPTIVE, Scenario

US = "fractile:control-plane"
NONE = Scenario(name="none", about="", percentage=ADAPTIVE, extender=False)
OURS = Scenario(name="ours", about="", percentage=ADAPTIVE, extender=True, against="none", bar=0.95, writes_bar=1.0)


def played(scenario: str, rate: float, **more: object) -> Round:
    made = Round(
        scenario=scenario, number=1, nodes=10, pods=100, rate=rate, created=200, seconds=1, load=0, programs={}
    )
    return msgspec.structs.replace(made, **more)


def test_the_rate_counts_the_pods_after_the_first():
    assert rate_of([10.0, 10.5, 11.0, 12.0]) == 1.5


def test_one_pod_has_no_rate():
    assert rate_of([3.0]) == 0.0


def test_a_share_is_the_time_of_the_round_alone_and_the_memory_at_its_end():
    before = {"etcd": Used(10.0, 5_000_000), "gone": Used(1.0, 1)}
    after = {"etcd": Used(10.5, 7_000_000), "new": Used(9.0, 1)}
    assert shares(before, after, 100) == {"etcd": Share(5.0, 7.0)}


@pytest.mark.parametrize(("percent", "value"), [(50, 5.0), (99, 10.0), (1, 1.0), (100, 10.0)])
def test_a_percentile_is_one_of_the_values(percent: float, value: float):
    assert percentile([float(i) for i in range(10, 0, -1)], percent) == value


def test_how_often_kube_scheduler_asked_about_one_node_comes_from_the_lines_of_the_filter():
    lines = [
        b"2026-11-21T10:00:00Z INFO fractile.extender.app filter pod='a/b' asked=1 fit=1 reason='' ms=0.25",
        b"2026-11-21T10:00:00Z INFO fractile.extender.app filter pod='a/c' asked=1500 fit=1 reason='' ms=0.75",
        b"2026-11-21T10:00:00Z INFO fractile.extender.app bind pod='a/b' node='n' error='' ms=3.50",
    ]
    assert alone(lines) == 0.5
    assert alone([]) == 0.0


def test_times_of_verbs_come_from_the_lines_of_decisions():
    lines = [
        b"2026-11-21T10:00:00Z INFO fractile.extender.app filter pod='a/b' asked=500 fit=100 reason='' ms=0.25",
        b"2026-11-21T10:00:00Z INFO fractile.extender.app filter pod='a/c' asked=500 fit=100 reason='' ms=0.75",
        b"2026-11-21T10:00:00Z INFO fractile.extender.app bind pod='a/b' node='n' error='' ms=3.50",
        b"2026-11-21T10:00:00Z INFO fractile.main.control_plane ready pods=3 seconds=1.0",
    ]
    found = verbs_of(lines)
    assert (found["filter"].calls, found["filter"].p50, found["filter"].p99) == (2, 0.25, 0.75)
    assert found["bind"].p99 == 3.5
    assert set(found) == {"filter", "bind"}


PAGE = """# HELP attempts_total by result
attempts_total{profile="a",result="scheduled"} 40
attempts_total{profile="b",result="scheduled"} 2
attempts_total{profile="a",result="error"} 1
attempts_total_more{result="error"} 7
plain 3.5
"""


def test_samples_of_a_metric_are_added_up_by_a_label():
    assert sums(PAGE, "attempts_total", "result") == {"scheduled": 42.0, "error": 1.0}
    assert sums(PAGE, "plain", "result") == {"": 3.5}


def test_the_best_round_is_the_fastest_of_its_row():
    rounds = [played("none", 50), played("ours", 70), played("none", 60)]
    found = best(rounds, "none")
    assert found is not None
    assert found.rate == 60
    assert best(rounds, "other") is None


def test_the_mean_weighs_by_time():
    assert mean_rate([played("none", 50), played("none", 100)], "none") == pytest.approx(200 / 3)


def test_a_row_is_held_to_its_bars():
    slow = played("ours", 94, writes={US: {"create pods/binding": 1.0, "patch events": 0.5}, "other": {"x": 9.0}})
    found = verdicts([played("none", 100), slow], [NONE, OURS], US)
    assert [(v.value, v.met) for v in found] == [(0.94, False), (1.5, False)]
    fine = played("ours", 95, writes={US: {"create pods/binding": 1.0}})
    assert all(v.met for v in verdicts([played("none", 100), fine], [NONE, OURS], US))


def test_a_row_without_the_one_that_it_is_compared_with_has_no_verdict_on_speed():
    assert [v.most for v in verdicts([played("ours", 95)], [NONE, OURS], US)] == [True]


def test_kube_schedulers_time_has_a_bar_where_a_row_names_one():
    row = msgspec.structs.replace(OURS, cpu_bar=2.0, writes_bar=None, against="")
    (found,) = verdicts([played("ours", 1, programs={"kube-scheduler": Share(2.5, 1)})], [row], US)
    assert not found.met


def test_verbs_and_memory_have_bars_where_pods_come_at_a_pace():
    row = msgspec.structs.replace(OURS, writes_bar=None, against="", verb_bar=50.0, memory_bar=400.0)
    one = played(
        "ours",
        10,
        verbs={"bind": Times(100, 8.0, 51.0), "filter": Times(100, 1.0, 4.0)},
        programs={"control-plane": Share(5.0, 290.0)},
    )
    assert [v.met for v in verdicts([one], [row], US)] == [False, True, True]
