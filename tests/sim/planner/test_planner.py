"""What fits, why the rest waits, what would help."""

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.policy.nodes.policies.table import POLICIES
from fractile.policy.nodes.where import Where
from fractile.sim.planner.free import consolidation
from fractile.sim.planner.growth import least
from fractile.sim.planner.placing import Placed, Placer
from fractile.sim.planner.planner import Question, plan
from fractile.sim.planner.shapes import name_of, shape_of, shapes_in
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine, Snapshot, Task
from fractile.wire.kubernetes.manifests import Taint
from fractile.wire.output.plan import Growth, Plan, PodChange, Reason
from tests.sim.worlds import machine, part, question, snapshots, task, whole


def planned(*machines: Machine, bound: tuple[Task, ...] = (), waiting: tuple[Demand, ...] = ()) -> Plan:
    pending = tuple(task(f"w{i}", d) for i, d in enumerate(waiting))
    return plan(Snapshot(machines, bound, pending), question())


def changes(found: Plan) -> dict[str, PodChange]:
    return {c.change: c for c in found.waiting[0].changes}


# ── what fits ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pods_are_placed_and_equal_ones_that_wait_are_one_entry() -> None:
    found = planned(machine(gpus=2), waiting=(whole(), whole(), whole(), whole()))

    assert (found.now.pods, found.now.placed, found.now.gpus, found.now.gpus_placed) == (4, 2, 4, 2)
    assert [(p.pod, p.node) for p in found.now.placements] == [("default/w0", "n0"), ("default/w1", "n0")]
    assert [w.pods for w in found.waiting] == [("default/w2", "default/w3")]


def test_higher_priority_comes_first_then_age() -> None:
    late, early, first = (task(n, whole()) for n in ("late", "early", "first"))
    pending = (
        msgspec.structs.replace(late, created="2026-01-02"),
        msgspec.structs.replace(early, created="2026-01-01"),
        msgspec.structs.replace(first, priority=7, created="2026-01-03"),
    )
    found = plan(Snapshot((machine(gpus=2),), (), pending), question())

    assert [p.pod for p in found.now.placements] == ["default/first", "default/early"]


def test_running_pods_keep_the_cards_that_their_placement_names() -> None:
    bound = (task("r", part(8_000), on="n0", cards=[1]),)
    found = planned(machine(gpus=2), bound=bound, waiting=(whole(),))

    assert [p.cards for p in found.now.placements] == [(0,)]


def test_running_pods_without_a_placement_are_put_together() -> None:
    bound = tuple(task(f"r{i}", part(8_000), on="n0") for i in range(4))
    found = planned(machine(gpus=4), bound=bound, waiting=(whole(2),))

    assert found.now.placed == 1


# ── why ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_node_counts_once_with_all_that_it_lacks() -> None:
    machines = (
        machine("cordoned", cordoned=True),
        machine("small", card=4_000),
        machine("busy", cpu=2_000),
        machine("busy2", cpu=2_000),
        machine("none", 0, model=""),
        machine("other", model="T4", cpu=2_000),
        machine("labels", labels={"pool": "a"}),
        machine("memory", memory=512),
        machine("places", slots=0),
    )
    demand = Demand(4_000, 1_024, DemandPart(1, memory=8_000, models=("V100",)), Where())
    found = planned(*machines[:6], *machines[7:], waiting=(demand,))

    assert set(found.waiting[0].reasons) == {
        Reason(("taint",), 1),
        Reason(("size",), 1),
        Reason(("cpu",), 2),
        Reason(("no_gpu",), 1),
        Reason(("model", "cpu"), 1),
        Reason(("memory",), 1),
        Reason(("places",), 1),
    }
    assert found.waiting[0].reasons[0].nodes == 2


def test_a_node_selector_that_no_node_has_is_told_and_dropping_it_is_a_change() -> None:
    found = planned(machine(), waiting=(whole(where=Where(selector=(("pool", "gold"),))),))

    assert found.waiting[0].reasons == (Reason(("label",), 1),)
    assert list(changes(found)) == ["drop-node-selector"]


# ── which single change ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("machines", "demand", "change", "to"),
    [
        pytest.param((machine(model="T4"),), whole(models=("V100",)), "drop-model", None, id="model"),
        pytest.param((machine(cpu=2_500),), whole(cpu=4_000), "fewer-cpus", 2_500, id="cpus"),
        pytest.param((machine(memory=512),), whole(), "less-memory", 512, id="memory"),
        pytest.param((machine(gpus=3),), whole(8), "fewer-gpus", 3, id="gpus"),
        pytest.param((machine(card=4_000),), part(8_000), "smaller-part", 4_000, id="part of memory"),
        pytest.param((machine(cordoned=True),), whole(), "uncordon", None, id="cordon"),
        pytest.param((machine(taints=[Taint("a", "b", "NoSchedule")]),), whole(), "tolerate", None, id="taint"),
    ],
)
def test_one_change_lets_it_in(machines: tuple[Machine, ...], demand: Demand, change: str, to: int | None) -> None:
    found = changes(planned(*machines, waiting=(demand,)))

    assert list(found) == [change]
    assert (found[change].to, found[change].node) == (to, "n0")


@pytest.mark.parametrize(
    ("running", "demand", "wanted", "to"),
    [
        pytest.param(part(10_000, compute=100), part(8_000), 8_000, 6_000, id="memory"),
        pytest.param(part(1_000, compute=700), part(1_000, compute=500), 500, 300, id="time"),
        pytest.param(part(1_000, compute=700), whole(), 1_000, 300, id="a part instead of a whole"),
        pytest.param(part(8_000), Demand(0, 0, DemandPart(1, share=700, compute=700)), 700, 500, id="a part of both"),
    ],
)
def test_the_smaller_part_is_all_that_is_left(running: Demand, demand: Demand, wanted: int, to: int) -> None:
    bound = (task("r", running, on="n0", cards=[0]),)
    found = changes(planned(machine(gpus=1), bound=bound, waiting=(demand,)))

    assert (found["smaller-part"].wanted, found["smaller-part"].to) == (wanted, to)


def test_amounts_are_those_of_nodes_that_lack_nothing_else() -> None:
    machines = (machine("n0", cpu=2_500), machine("n1", cpu=3_500, cordoned=True), machine("n2", cpu=3_700, model="T4"))
    found = changes(planned(*machines, waiting=(whole(cpu=4_000, models=("V100",)),)))

    assert [(c.change, c.node, c.to) for c in found.values()] == [("fewer-cpus", "n0", 2_500)]


def test_two_reasons_on_every_node_have_no_single_change() -> None:
    found = planned(machine(model="T4", cpu=2_000), waiting=(whole(cpu=4_000, models=("V100",)),))

    assert found.waiting[0].changes == ()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_amounts_that_are_offered_fit_and_no_more_would(snapshot: Snapshot) -> None:
    """A cluster with everything placed that fits takes ``to``, and not one thousandth or MiB more."""
    found = plan(snapshot, question())
    by_key = {t.key: t for t in snapshot.pending}
    placer = Placer(snapshot.machines, (t.demand for t in snapshot.pending), POLICIES["fgd-plus"])
    for t in snapshot.bound:
        placer.settle(t)
    for p in found.now.placements:
        placer.take(by_key[p.pod].demand, placer.stock.rows[p.node], p.cards)
    for waiting in found.waiting:
        demand = by_key[waiting.pods[0]].demand
        for change in waiting.changes:
            if change.change == "fewer-cpus" and change.to is not None:
                assert placer.would_fit(msgspec.structs.replace(demand, cpu=change.to)) is not None
                assert placer.would_fit(msgspec.structs.replace(demand, cpu=change.to + 1)) is None
            if change.change == "fewer-gpus" and change.to is not None and demand.part is not None:
                fewer = [msgspec.structs.replace(demand.part, count=change.to + more) for more in (0, 1)]
                fits = [placer.would_fit(msgspec.structs.replace(demand, part=p)) is not None for p in fewer]
                assert fits == [True, False]


# ── more nodes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def grown(
    *waiting: Demand, shapes: tuple[Machine, ...], machines: tuple[Machine, ...] = (), target: float = 100
) -> list[Growth]:
    pending = tuple(task(f"w{i}", d) for i, d in enumerate(waiting))
    asked = Question(
        "fgd-plus", POLICIES["fgd-plus"], tuple((name_of(s), s) for s in shapes), tuple(range(3)), target, False
    )
    found = plan(Snapshot(machines or (machine(gpus=1),), (), pending), asked).growth
    assert found is not None
    return list(found)


def test_as_many_nodes_are_added_as_are_needed_and_no_more() -> None:
    (found,) = grown(*[whole()] * 10, shapes=(machine("s", 4),))

    assert (found.nodes, found.gpus, found.acceptance, found.before) == (3, 12, 100, 10)  # one fits now


def test_shapes_are_compared_by_their_gpus() -> None:
    found = grown(*[whole(2)] * 5, shapes=(machine("s", 3), machine("t", 4), machine("u", 1)))

    assert [(len_of(g), g.nodes, g.gpus) for g in found] == [(4, 3, 12), (3, 5, 15), (1, None, None)]
    assert found[2].why_not
    assert found[2].acceptance == 0


def len_of(growth: Growth) -> int:
    return growth.shape.gpus


def test_a_target_below_all_needs_fewer_nodes() -> None:
    (found,) = grown(*[whole()] * 10, shapes=(machine("s", 1),), target=65)

    assert (found.nodes, found.acceptance) == (6, 70)


def test_cpu_may_be_what_decides_about_the_number_of_nodes() -> None:
    (found,) = grown(*[whole(cpu=16_000)] * 8, shapes=(machine("s", 8, cpu=32_000),), machines=(machine(gpus=0),))

    assert found.nodes == 4


@pytest.mark.parametrize("number", [1, 2, 7, 33, 100])
def test_the_least_number_is_found_from_any_guess(number: int) -> None:
    demands = [part(9_000, cpu=15_000)] * number  # one a card, two a node, though by sums four would fit
    (found,) = grown(*demands, shapes=(machine("s", 2, cpu=64_000),), machines=(machine(gpus=0),))

    assert found.nodes == -(-number // 2)


@given(st.integers(1, 200), st.integers(0, 200), st.integers(-5, 300))
def test_bisection_finds_the_least_number_and_asks_for_few(needed: int, more: int, guess: int) -> None:
    asked: list[int] = []

    def enough(nodes: int) -> bool:
        asked.append(nodes)
        return nodes >= needed

    assert least(enough, needed + more, guess=guess) == needed
    assert len(asked) <= 18
    assert all(0 < n <= needed + more for n in asked)


def test_no_nodes_are_needed_when_everything_fits() -> None:
    (found,) = grown(whole(), shapes=(machine("s", 4),))

    assert (found.nodes, found.acceptance) == (0, 100)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shapes_are_named_by_a_node_a_model_or_what_they_have() -> None:
    there = (machine("n0", 8, cordoned=True), machine("n1", 2, model="T4", card=15_000), machine("n2", 2, model="T4"))

    assert len(shape_of("n0", there)[1].cards) == 8
    assert not shape_of("n0", there)[1].cordoned
    assert shape_of("T4", there)[1].model == "T4"
    written = shape_of("cpu=96,memory=384Gi,gpus=8,model=T4", there)[1]
    assert (written.cpu, written.memory, len(written.cards), written.cards[0].memory) == (96_000, 393_216, 8, 15_000)
    assert shapes_in(there)[0][0] == "2x T4 with 32 CPUs and 128 GiB"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("A100", "'A100' is neither a node nor a model of GPU (known: V100)"),
        ("cpu=4", "does not say memory"),
        ("cpu=4,memory=1Gi,gpus=2", "does not say the model of its GPUs"),
        ("cpu=4,memory=1Gi,gpus=-2,model=T4", "gpus is '-2'"),
        ("cpu=4,memory=1Gi,colour=red", "'colour=red' is not understood"),
        ("cpu=0,memory=1Gi", "a node needs CPU and memory"),
        ("cpu=x,memory=1Gi", "cpu: 'x' is not a quantity"),
    ],
)
def test_a_shape_that_makes_no_sense_is_told(text: str, said: str) -> None:
    with pytest.raises(WireError) as e:
        shape_of(text, (machine(),))

    assert said in str(e.value)


# ── fewer nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_nodes_whose_pods_fit_on_others_in_use_could_be_emptied() -> None:
    bound = tuple(task(f"r{n}", whole(), on=f"n{n}", cards=[0]) for n in range(3))
    found = planned(*(machine(f"n{n}") for n in range(4)), bound=bound).consolidation

    assert found is not None
    assert (found.empty, len(found.emptied), found.gpus) == (1, 2, 8)


def test_a_node_with_a_pod_that_stays_is_not_emptied_but_a_daemon_goes_along() -> None:
    bound = (
        task("stuck", whole(), on="n0", fixed="is being deleted"),
        task("r", whole(), on="n1"),
        task("daemon", Demand(10, 10), on="n1", fixed="belongs to a DaemonSet"),
    )
    found = planned(machine("n0"), machine("n1"), bound=bound).consolidation

    assert found is not None
    assert [(e.node, e.pods) for e in found.emptied] == [("n1", 1)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(snapshots())
def test_looking_for_nodes_to_empty_leaves_the_books_as_they_were(snapshot: Snapshot) -> None:
    placer = Placer(snapshot.machines, (t.demand for t in snapshot.bound), POLICIES["fgd-plus"])
    running = [Placed(t, placer.settle(t)) for t in snapshot.bound]
    stock = placer.stock
    books = [stock.cpu_left, stock.memory_left, stock.slots_left, stock.card_left, stock.time_left, stock.users]
    before = [b.copy() for b in (*books, stock.view.gpu_left, stock.view.kinds)]
    found = consolidation(placer, running, ())

    after = [*books, stock.view.gpu_left, stock.view.kinds]
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    assert {e.node for e in found.emptied} <= {t.node for t in snapshot.bound}
    stuck = {t.node for t in snapshot.bound if t.fixed}
    assert not stuck & {e.node for e in found.emptied}
