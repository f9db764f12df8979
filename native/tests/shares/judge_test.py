"""The judge of shares, on invented accounts: what it must report as an error, and what not."""

import sys
from dataclasses import replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "interposer"), str(HERE.parents[1] / "shares")]

import cases  # noqa: E402
import judge  # noqa: E402
import suite  # noqa: E402
from cases import Case, Workload  # noqa: E402
from host import Books, Tenant  # noqa: E402

MS = 1_000_000
LOAD = Workload("async", "loop=async kernels=1000:1024", 1.0)
ALONE = Books([0, 10000], [[0, 10000 * MS]], [[0, 10000]])
ALONE_TWICE = Books([0, 10000], [[0, 5000 * MS]] * 2, [[0, 0]] * 2)


def pair(first: int, then: int, arrive: int = 0) -> Case:
    tenants = (Tenant(LOAD.words, first), Tenant(LOAD.words, then, arrive=arrive))
    due = tuple(cases.entitled(tenants, k, 0, cases.WINDOW) for k in range(2))
    return Case(1, "pair", tenants, (LOAD, LOAD), due)


def close(a: float, b: float) -> bool:
    return abs(a - b) < 1e-6


def test_a_share_is_a_part_of_what_the_same_program_does_alone() -> None:
    half = Books([0, 10000], [[0, 5000 * MS]], [[0, 5000]])
    books = Books([0, 10000], [[0, 3500 * MS], [0, 3000 * MS]], [[0, 0], [0, 0]])
    v = judge.judge(pair(70, 30), books, [half, ALONE])
    assert close(v.shares[0], 0.7) and close(v.shares[1], 0.3), v.shares
    assert v.error < 1e-6 and close(v.throughput, 1), v


def test_the_error_of_a_case_is_that_of_its_worst_tenant() -> None:
    books = Books([0, 10000], [[0, 6900 * MS], [0, 2000 * MS]], [[0, 0], [0, 0]])
    v = judge.judge(pair(70, 30), books, [ALONE, ALONE])
    assert close(v.error, 10) and close(v.throughput, 0.89), v


def test_a_tenant_that_comes_late_is_due_a_share_of_what_is_left() -> None:
    c = pair(50, 50, arrive=4000)
    assert close(c.targets[0], 0.7) and close(c.targets[1], 0.3), c.targets


def test_a_slow_controller_is_seen_to_be_slow() -> None:
    at = list(range(0, 10001, judge.STEP))
    late = [[0 if t < 4800 else (t - 4800) * MS // 2 for t in at]]  # gets nothing for 800 ms
    books = Books(at, [[t * MS - late[0][i] for i, t in enumerate(at)], late[0]], [[0] * len(at)] * 2)
    v = judge.judge(pair(50, 50, arrive=4000), books, [ALONE, ALONE])
    assert 740 <= v.convergence[0] <= 800, v.convergence


def test_of_few_arrivals_the_worst_is_judged_and_of_many_the_95th_percentile() -> None:
    def figures(*took: float) -> dict[str, float | int]:
        shares = judge.judge(pair(50, 50), ALONE_TWICE, [ALONE, ALONE])
        return judge.figures([(pair(50, 50), replace(shares, convergence=list(took)))])

    few, many = figures(*[0.0] * 11, 501.0), figures(*[0.0] * 19, 501.0)
    assert few["convergence_ms_worst"] == 501
    assert any("convergence" in m for m in judge.missed(few))
    assert many["convergence_ms_p95"] == 0
    assert not any("convergence" in m for m in judge.missed(many))
    assert any("convergence" in m for m in judge.missed(figures(*[201.0] * 20)))


def test_lost_overlap_counts_where_kernels_run_together() -> None:
    several = Workload("streams", LOAD.words, 1.0, overlaps=True)
    c = Case(1, "alone 100", (Tenant(LOAD.words, 50),), (several,), (1.0,))
    alone = Books([0, 10000], [[0, 10000 * MS]], [[0, 40000]])
    v = judge.judge(c, Books([0, 10000], [[0, 10000 * MS]], [[0, 10000]]), [alone])
    assert close(v.error, 75) and close(v.times[0], 1), v


def long(*pieces: float, due: tuple[float, ...]) -> Case:
    loads = tuple(Workload("async", f"loop=async kernels={p * 1000:.0f}:1", p) for p in pieces)
    return Case(1, "pair", tuple(Tenant(w.words) for w in loads), loads, due)


def test_of_whole_kernels_of_two_seconds_one_has_three_and_the_other_two() -> None:
    assert close(judge.unavoidable(long(2000, 2000, due=(0.5, 0.5))), 10)


def test_beside_short_kernels_only_the_long_ones_are_counted_whole() -> None:
    assert close(judge.unavoidable(long(2000, 1, due=(0.5, 0.5))), 10)  # two or three of five
    assert close(judge.unavoidable(long(2000, 1, due=(0.6, 0.4))), 0)
    assert close(judge.unavoidable(long(1000, 1, due=(0.45, 0.55))), 5)


def test_a_hard_limit_of_a_second_is_missed_by_a_second_with_kernels_of_two() -> None:
    assert close(judge.unavoidable(long(2000, due=(0.1,))), 10)
    assert close(judge.unavoidable(long(1000, due=(0.1,))), 0)


def test_kernels_that_fit_have_no_unavoidable_error() -> None:
    assert close(judge.unavoidable(long(500, 1000, due=(0.7, 0.3))), 0)
    assert judge.unavoidable(long(1, 2, due=(0.7, 0.3))) == 0


def test_the_figures_are_of_all_cases_and_a_missed_bar_is_named() -> None:
    good = judge.Verdict([0.5, 0.5], [0.0, 0.0], 1.0, [100.0], [])
    bad = judge.Verdict([0.4, 0.5], [-10.0, 0.0], 0.9, [300.0], [])
    found = judge.figures([(pair(50, 50), good)] * 19 + [(pair(50, 50), bad)])
    assert found["cases"] == 20 and found["worst_error_points"] == 10 and found["mean_error_points"] == 0.5, found
    assert found["p95_error_points"] == 0 and found["min_total_throughput"] == 0.9, found
    assert any("worst" in m for m in judge.missed(found)) and not any("mean" in m for m in judge.missed(found))


def test_a_tenant_that_launched_nothing_is_a_fault_of_the_test_and_not_a_share() -> None:
    tenants = [Tenant(LOAD.words, 50), Tenant("loop=idle", 50)]
    assert Books([0, 10000], [[0, 10000 * MS], [0, 0]], [[0, 10], [0, 0]]).silent(tenants) == []
    assert Books([0, 10000], [[0, 0], [0, 0]], [[0, 0], [0, 0]]).silent(tenants) == [0]


def test_the_table_is_the_same_every_time_and_holds_what_it_should() -> None:
    table = cases.table()
    assert table == cases.table() and len(table) >= 500
    words = [w.words for c in table for w in c.loads]
    assert any("kernels=2:" in w for w in words) and any("2000000:" in w for w in words)
    assert any(":1000000" in w for w in words) and any(w.endswith(":1") for w in words)
    kinds = {w.kind for c in table for w in c.loads}
    assert kinds == {"async", "sync", "burst", "graph", "copy", "fill", "mix", "hidden", "streams", "processes", "idle"}


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
