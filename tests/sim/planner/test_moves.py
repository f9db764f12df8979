"""Moves that make room: every step is possible at its moment, by the books of somebody else."""

import pytest
from hypothesis import HealthCheck, given, settings

from fractile.sim.kinds import Kinds
from fractile.sim.planner.moves import MoveBudgets, MoveStage, MoveStep
from fractile.sim.planner.moves_stages import merged
from fractile.sim.planner.placing import holding
from fractile.sim.planner.planner import plan
from fractile.sim.planner.stock import PlannerStock, PodHold
from fractile.sim.snapshot.cluster_snapshot import Demand, Snapshot, SnapshotBudget, Task
from fractile.wire.output.plan import Defragmentation
from tests.sim.replay import Books, replay
from tests.sim.worlds import CARD, machine, part, question, snapshots, task, whole


def planned(snapshot: Snapshot) -> Defragmentation:
    found = plan(snapshot, question(defragment=True)).defragmentation
    assert found is not None
    return found


def demands_of(*tasks: Task) -> dict[str, Demand]:
    return {t.key: t.demand for t in tasks}


def carried_out(snapshot: Snapshot) -> Defragmentation:
    """The plan of a cluster whose running pods name their cards, after it was replayed."""
    report = plan(snapshot, question(defragment=True))
    found = report.defragmentation
    assert found is not None
    books = Books(snapshot.machines)
    for t in snapshot.bound:
        places = {c.uuid: i for i, c in enumerate(books.machines[t.node].cards)}
        books.put(t.node, t.key, t.demand, [places[uuid] for uuid, _, _ in t.cards])  # type: ignore[index]
    wanted = demands_of(*snapshot.bound, *snapshot.pending)
    wanted |= {f"{t.key} (one more)": t.demand for t in snapshot.bound}
    for p in report.now.placements:
        books.put(p.node, p.pod, wanted[p.pod], p.cards)
    fixed = frozenset(t.key for t in snapshot.bound if t.fixed)
    replay(books, found, demands=wanted, budgets=snapshot.budgets, fixed=fixed)
    return found


def with_cards(snapshot: Snapshot) -> Snapshot:
    """What placements say: which cards each running pod holds."""
    books = Books(snapshot.machines)
    bound: list[Task] = []
    for t in snapshot.bound:
        assert books.settle(t)
        bound.append(task(t.name, t.demand, on=t.node, fixed=t.fixed, cards=books.on[t.node, t.key]))
    return Snapshot(snapshot.machines, tuple(bound), snapshot.pending, snapshot.budgets)


def test_parts_that_fill_a_card_are_no_more_than_all_of_it() -> None:
    """On a card each they count as 334 and 667 thousandths; together they are one card, and the other is let in."""
    some = CARD * 3335 // 10000
    bound = (task("a", part(some), on="n0", cards=[0]), task("b", part(CARD - some), on="n1", cards=[0]))
    found = planned(Snapshot((machine("n0", 1), machine("n1", 1)), bound, (task("c", whole()),), ()))
    assert (found.moves, found.pods, found.allocation_after) == (1, 1, 100)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_every_plan_can_be_carried_out_step_by_step(snapshot: Snapshot) -> None:
    found = carried_out(with_cards(snapshot))

    assert found.pods == sum(len(s.admits) for s in found.stages)
    assert found.moves == sum(len(s.moves) for s in found.stages)
    assert found.allocation_before <= found.allocation_after <= 100


def three_half_used_nodes(*budgets: SnapshotBudget, waiting: int = 4) -> Snapshot:
    """Nodes of four cards; two are in use on each. Together six are free, and no four on one node."""
    bound = [task(f"r{n}{i}", whole(), on=f"n{n}", cards=[i]) for n in range(3) for i in range(2)]
    pending = (task("w", whole(waiting)),)
    return Snapshot(tuple(machine(f"n{n}") for n in range(3)), tuple(bound), pending, budgets)


def test_scattered_pods_are_brought_together_for_one_that_needs_a_whole_node() -> None:
    found = carried_out(three_half_used_nodes())

    assert (found.goal, found.moves, found.pods, len(found.stages)) == ("waiting", 2, 1, 1)
    assert found.stages[0].admits[0].cards == (0, 1, 2, 3)
    assert (found.allocation_before, found.allocation_after) == (50.0, pytest.approx(83.3333))


def test_a_budget_of_one_at_a_time_makes_two_stages() -> None:
    keys = frozenset(f"default/r{n}{i}" for n in range(3) for i in range(2))
    found = carried_out(three_half_used_nodes(SnapshotBudget("b", keys, 1)))

    assert [len(s.moves) for s in found.stages] == [1, 1]
    assert [len(s.admits) for s in found.stages] == [0, 1]


def test_a_budget_that_allows_nobody_away_leaves_everybody_where_he_is() -> None:
    keys = frozenset(f"default/r{n}{i}" for n in range(3) for i in range(2))
    found = carried_out(three_half_used_nodes(SnapshotBudget("b", keys, 0)))

    assert (found.moves, found.pods, found.still_waiting) == (0, 0, ("default/w",))


def test_a_pod_of_two_budgets_is_not_moved() -> None:
    one, two = (SnapshotBudget(name, frozenset({"default/r00", "default/r01"}), 2) for name in ("a", "b"))
    found = carried_out(three_half_used_nodes(one, two))

    assert found.pods == 1
    assert not {"default/r00", "default/r01"} & {m.pod for s in found.stages for m in s.moves}


def test_a_pod_that_needs_only_a_part_moves_one_other_at_most() -> None:
    bound = [task(f"r{c}", part(9_000), on="n0", cards=[c]) for c in range(2)]
    other = task("b", whole(), on="n1", cards=[0])
    machines = (machine("n0", 2), machine("n1", 2, card=9_000))
    found = carried_out(Snapshot(machines, (*bound, other), (task("w", part(16_000)),)))

    assert [(m.pod, m.target) for s in found.stages for m in s.moves] == [("default/r0", "n1")]
    assert found.pods == 1


def test_cpu_that_is_in_the_way_is_moved_too() -> None:
    bound = (task("cpu", Demand(30_000, 1_024), on="n0"),)
    machines = (machine("n0", 2), machine("n1", 0, card=0, model=""))
    found = carried_out(Snapshot(machines, bound, (task("w", whole(2, cpu=8_000)),)))

    assert [(m.pod, m.target, m.cards) for s in found.stages for m in s.moves] == [("default/cpu", "n1", ())]


def test_stages_that_do_not_need_each_other_are_one() -> None:
    bound = [task(f"r{n}", whole(), on=f"n{n}", cards=[0]) for n in range(4)]
    machines = tuple(machine(f"n{n}", 2) for n in range(4))
    found = carried_out(Snapshot(machines, tuple(bound), (task("w0", whole(2)), task("w1", whole(2)))))

    assert (found.moves, found.pods, len(found.stages)) == (2, 2, 1)


def test_a_target_that_a_source_leaves_comes_a_stage_later() -> None:
    machines = tuple(machine(f"n{n}", 1) for n in range(3))
    stock = PlannerStock(machines, Kinds(machines, ()))
    first, second = (task(f"r{n}", whole(), on=f"n{n}", cards=[0]) for n in range(2))
    there = [stock.hold(holding(stock, t)) for t in (first, second)]
    to_empty, to_left = (PodHold(row, 1_000, 1_024, there[0].taken) for row in (2, 0))
    stages = [MoveStage((MoveStep(first, there[0], to_empty),)), MoveStage((MoveStep(second, there[1], to_left),))]

    assert merged(stages, stock, MoveBudgets(())) == stages
    assert stock.users[:, 0].tolist() == [1, 0, 1]


def test_when_nobody_waits_room_is_made_for_one_more_of_each_kind_that_runs() -> None:
    bound = [task(f"r{n}", whole(), on=f"n{n}", cards=[0]) for n in range(3)]
    big = task("big", whole(4), on="n3", cards=[0, 1, 2, 3])
    machines = (*(machine(f"n{n}") for n in range(3)), machine("n3"))
    found = carried_out(Snapshot(machines, (*bound, big)))

    assert found.goal == "mix"
    assert "default/big (one more)" in {p.pod for s in found.stages for p in s.admits}
    assert found.moves == 1


def test_nothing_is_moved_from_a_pods_own_node_to_itself_or_for_those_that_fit_anyway() -> None:
    found = planned(Snapshot((machine(),), (), (task("w", whole(2)),)))

    assert (found.goal, found.moves, found.stages) == ("mix", 0, ())
