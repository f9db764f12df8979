"""The policies on the living cluster: the same choices as in the simulator, by what the ledger and the API say."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fractile.extender.engine import Coming, Engine
from fractile.extender.filter import filter_nodes
from fractile.extender.policies import NodePolicies, settled
from fractile.extender.score import MAX_SCORE, rank, rank_by
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_totals import NodeTotals
from fractile.ledger.wishes import wish_of
from fractile.model.placement import Placement
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.request import PodRequest, Selector
from fractile.model.units import NodeName, PodUID
from fractile.policy.cards.plan import plan
from fractile.policy.nodes.mix import Mix, mix_of
from fractile.policy.nodes.policies.table import POLICIES, find
from fractile.policy.nodes.prices import prices_of
from fractile.policy.nodes.score_cache import Choice, ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import NEVER, WHOLE_GPU, TaskDemand
from fractile.sim.cluster import POD_SLOTS, Cluster, TaskPlace
from fractile.sim.snapshot.trace import NodeRow
from fractile.wire.kubernetes.pod_totals import NodeCapacity, PodTotals
from tests.builders import Clock, by_card, by_memory, by_slots, card, cluster, container, only, pod, request

SIZE = 10_000  # MiB of a card: a thousandth is 10 MiB
MODELS = ("A", "B")
EACH = [*POLICIES, "fgd-plus+2*bestfit", "bestfit@widest", "fgd-plus@first"]


class Sides:
    """One cluster twice: in the simulator, and in the ledger as the API shows it."""

    def __init__(self, policy: str, nodes: list[NodeRow], mix: Mix, clock: Clock) -> None:
        found = find(policy)
        assert found is not None
        self.policy, self.nodes = policy, nodes
        self.cluster = Cluster(nodes)
        self.score_cache = ScoreCache(self.cluster.view, found, scoring_of(self.cluster.view, mix, leaving=True))
        self.ledger = Ledger(clock)
        self.totals = NodeTotals()
        for node in nodes:
            self.totals.put_node(NodeName(node.name), NodeCapacity(node.cpu, node.memory, POD_SLOTS))
            for index in range(node.gpus):
                self.ledger.put_card(NodeName(node.name), card(node.name, index, memory=SIZE, model=node.model))
        self.engine = Engine(self.ledger, self.totals, mix)
        self.policies = NodePolicies(self.ledger, self.engine, cluster=policy)
        self.held: dict[PodUID, tuple[TaskDemand, TaskPlace]] = {}

    def simulated(self, ask: TaskDemand, draw: int) -> Choice | None:
        return self.score_cache.best(ask, draw)

    def living(self, wish: PodDemand, draw: int) -> Choice | None:
        standing = self.engine.standing(self.policy, wish, draw=draw)
        assert standing is not None
        ranking = rank_by(standing, [n.name for n in self.nodes], self.ledger)
        if ranking is None:
            return None
        column = self.ledger.arrays.find(ranking.best)
        return Choice(column, int(standing.device[column]))

    def place(self, uid: PodUID, ask: TaskDemand, choice: Choice, asked: PodRequest) -> None:
        held = self.cluster.place(ask, choice)
        self.score_cache.changed(choice.row)
        self.held[uid] = ask, held
        name = self.nodes[choice.row].name
        selector = Selector(cards=tuple(card(name, d).uuid for d in held.devices))
        state = self.ledger.node(name)
        assert state is not None
        placed = plan(request(*(only(selector, c) for c in asked.containers), uid=uid), state)
        assert isinstance(placed, Placement)
        assert self.ledger.assume(uid, placed) is None
        self.totals.put_pod(uid, NodeName(name), wish_of(asked, PodTotals(ask.cpu, ask.memory), self.ledger.arrays))

    def release(self, uid: PodUID) -> None:
        ask, held = self.held.pop(uid)
        self.cluster.release(ask, held)
        self.score_cache.changed(held.row)
        self.ledger.release(uid)
        self.totals.drop_pod(uid)


def asked_for(ask: TaskDemand) -> PodRequest:
    """The pod that is the same in the API: parts in MiB, and models by name."""
    part = by_memory(SIZE * ask.milli // WHOLE_GPU) if ask.shares else by_card(ask.gpus)
    return request(only(Selector(models=ask.models), part))


Shape = tuple[int, int, str]  # GPUs, thousandths of CPUs, model

machines: st.SearchStrategy[list[Shape]] = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([4000, 8000, 16_000, 32_000]), st.sampled_from(MODELS)),
    min_size=1,
    max_size=6,
)


@st.composite
def asks(draw: st.DrawFn) -> TaskDemand:
    cpu, names = 1000 * draw(st.integers(0, 8)), draw(st.sampled_from([(), (), ("A",), ("B",)]))
    if draw(st.booleans()):
        return TaskDemand(cpu, 1024, 1, draw(st.integers(1, 999)), names)
    return TaskDemand(cpu, 1024, draw(st.integers(1, 4)), WHOLE_GPU, names)


@pytest.mark.parametrize("policy", EACH)
@settings(max_examples=20, deadline=None)
@given(
    shapes=machines,
    expected=st.lists(asks(), max_size=8),
    coming=st.lists(st.tuples(asks(), st.booleans()), max_size=25),
)
def test_the_extender_chooses_what_the_simulator_chooses(
    policy: str, shapes: list[Shape], expected: list[TaskDemand], coming: list[tuple[TaskDemand, bool]]
) -> None:
    nodes = [NodeRow(f"n{i}", cpu, 65_536, gpus, model) for i, (gpus, cpu, model) in enumerate(shapes)]
    there = {n.model for n in nodes}
    sides = Sides(policy, nodes, mix_of(expected), Clock())
    for number, (ask, leaves) in enumerate(coming):
        if not there.issuperset(ask.models):
            continue
        known = structs.replace(ask, models=() if there == set(ask.models) else ask.models)
        asked = asked_for(known)
        wish = wish_of(asked, PodTotals(known.cpu, known.memory), sides.ledger.arrays)
        choice = sides.simulated(known, number)
        assert sides.living(wish, number) == choice
        uid = PodUID(f"pod-{number}")
        if choice is not None:
            sides.place(uid, known, choice, asked)
        if leaves and sides.held:
            sides.release(next(iter(sides.held)))


# ── what the engine makes of what is there ───────────────────────────────────────────────────────────────────────────

PART = PodDemand(1000, 1024, parts=(PartOfCard(memory=SIZE // 2),))
ONE = PodDemand(1000, 1024, whole=1)


def totals_of(*names: str, cpu: int = 8000) -> NodeTotals:
    totals = NodeTotals()
    for name in names:
        totals.put_node(NodeName(name), NodeCapacity(cpu, 65_536, 110))
    return totals


def engine_of(ledger: Ledger, *names: str, cpu: int = 8000) -> Engine:
    return Engine(ledger, totals_of(*names, cpu=cpu))


def best(engine: Engine, ledger: Ledger, wish: PodDemand, *names: str, **more: Any) -> str:
    standing = engine.standing("bestfit", wish, draw=0, **more)
    assert standing is not None
    ranking = rank_by(standing, list(names), ledger)
    return ranking.best if ranking else ""


@pytest.fixture
def two() -> Ledger:
    """A node with one card, and one with four."""
    return cluster({n: [card(n, i, memory=SIZE) for i in range(c)] for n, c in (("small", 1), ("large", 4))})


def test_a_part_in_mib_is_another_part_of_each_size_of_card() -> None:
    ledger = cluster({"old": [card("old", 0, memory=8_000)], "new": [card("new", 0, memory=80_000, model="B")]})
    engine = engine_of(ledger, "old", "new")
    wish = PodDemand(1000, 1024, parts=(PartOfCard(memory=10_000),))
    standing = engine.standing("bestfit", wish, draw=0)
    assert standing is not None
    assert best(engine, ledger, wish, "old", "new") == "new"
    coming = standing.coming("new", ledger.arrays.find("new"))
    assert coming is not None
    assert (coming.ask.milli, coming.device) == (125, 0)


def test_a_node_without_enough_cpu_is_left_out(two: Ledger) -> None:
    engine = engine_of(two, "small", "large", cpu=900)
    assert best(engine, two, PART, "small", "large") == ""
    assert best(engine, two, structs.replace(PART, cpu=900), "small", "large") == "small"


def test_a_node_that_nobody_knows_is_left_out(two: Ledger) -> None:
    engine = engine_of(two, "large")
    assert best(engine, two, PART, "small", "large", "stranger") == "large"


def test_whoever_is_on_the_way_to_a_node_counts_there(two: Ledger) -> None:
    engine = engine_of(two, "small", "large")
    assert best(engine, two, ONE, "small", "large") == "small"
    standing = engine.standing("bestfit", ONE, draw=0)
    assert standing is not None
    coming = standing.coming("small", two.arrays.find("small"))
    assert coming is not None
    assert best(engine, two, ONE, "small", "large", coming=[coming]) == "large"
    assert best(engine, two, ONE, "small", "large", coming=[Coming("gone", coming.ask, 0)]) == "small"
    assert best(engine, two, ONE, "small", "large") == "small"


def test_a_pod_with_parts_of_several_cards_is_left_to_the_ledger(two: Ledger) -> None:
    engine = engine_of(two, "small", "large")
    wish = wish_of(request(by_slots(2, memory=100)), PodTotals(1000, 1024), two.arrays)
    assert engine.standing("bestfit", wish, draw=0) is None
    assert engine.standing("nonsense", ONE, draw=0) is None
    assert engine.standing("bestfit", PodDemand(1000, 1024), draw=0) is None


def test_scores_go_from_ten_for_the_best_to_zero_for_who_has_no_room(two: Ledger) -> None:
    two.put_card(NodeName("full"), card("full", 0, memory=100))
    engine = engine_of(two, "small", "large", "full")
    standing = engine.standing("bestfit", PART, draw=0)
    assert standing is not None
    assert standing.value[two.arrays.find("full")] == NEVER
    ranking = rank_by(standing, ["large", "small", "full", "stranger"], two)
    assert ranking is not None
    found = ranking.scores.tolist()
    assert found[1] == MAX_SCORE
    assert 0 <= found[0] < MAX_SCORE
    assert found[2:] == [0, 0]


def test_what_is_worked_out_beforehand_is_what_would_be_worked_out_then(two: Ledger) -> None:
    engine = engine_of(two, "small", "large")
    before = engine.standing("fgd-plus", PART, draw=0)
    engine.catch_up()
    after = engine.standing("fgd-plus", PART, draw=0)
    assert before is not None
    assert after is not None
    assert after.order is not None
    assert after.order.tolist() == sorted(range(len(after.value)), key=lambda c: (-int(before.value[c]), c))


def test_other_pods_are_expected_while_the_cluster_changes(two: Ledger) -> None:
    engine = engine_of(two, "small", "large")
    engine.standing("fgd-plus", PART, draw=0)
    mix = mix_of([TaskDemand(1000, 0, 1, 500), TaskDemand(1000, 0, 1, 300)])
    prepared = engine.prepare(mix, prices_of(mix))
    prepared.warm()
    two.put_card(NodeName("third"), card("third", 0, memory=SIZE))  # after the copy was made
    engine.expect(prepared)
    fresh = Engine(two, totals_of("small", "large"), mix).standing("fgd-plus", PART, draw=0)
    learned = engine.standing("fgd-plus", PART, draw=0)
    assert fresh is not None
    assert learned is not None
    assert learned.value.tolist() == fresh.value.tolist()


# ── who says which policy ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("own", "hami", "namespace", "wanted"),
    [
        pytest.param("", "", "", "binpack", id="the cluster's"),
        pytest.param("", "", "bestfit", "bestfit", id="the namespace's"),
        pytest.param("", "spread", "bestfit", "spread", id="the pod's, as HAMi writes it"),
        pytest.param("fgd-plus", "spread", "bestfit", "fgd-plus", id="the pod's"),
        pytest.param("nonsense", "", "fgd-plus+2*bestfit", "fgd-plus+2*bestfit", id="an unknown word"),
        pytest.param("x" * 10_000, "", "random+bestfit", "binpack", id="nothing that can be added up"),
    ],
)
def test_the_pod_decides_before_its_namespace_before_the_cluster(
    two: Ledger, own: str, hami: str, namespace: str, wanted: str
) -> None:
    policies = NodePolicies(two, engine_of(two), cluster="binpack", namespaces={"default": namespace})
    asked = by_memory(1000)
    asked = structs.replace(asked, request=structs.replace(asked.request, node_policy=hami))
    annotated = pod("p", container(memory=1000), annotations={"fractile.dev/node-policy": own} if own else None)
    assert policies.named(annotated, request(asked)) == wanted


def test_what_holds_for_the_pod_replaces_what_hami_has_written(two: Ledger) -> None:
    asked = by_memory(1000)
    asked = request(structs.replace(asked, request=structs.replace(asked.request, node_policy="spread")))
    annotated = pod("p", container(memory=1000), annotations={"fractile.dev/node-policy": "binpack"})
    asking = NodePolicies(two, engine_of(two)).asking(annotated, asked)
    assert [c.request.node_policy for c in settled(asked, asking).containers] == ["binpack"]


def test_kube_scheduler_may_be_left_to_choose(two: Ledger) -> None:
    assert not rank(request(by_memory(1000)), ["small", "large"], two, policy="none").scores.any()
    many = cluster({f"n{i}": [card(f"n{i}", 0)] for i in range(150)})
    named = filter_nodes(request(by_memory(1000)), [f"n{i}" for i in range(150)], many, "none").node_names
    assert len(named or ()) == 150


def test_the_card_is_the_one_by_which_the_policy_took_the_node(two: Ledger) -> None:
    engine = engine_of(two, "small", "large")
    policies = NodePolicies(two, engine, cluster="bestfit@widest")
    asked = request(by_memory(1000))
    two.observe(PodUID("other"), placed_on(two, "large", 0))
    asking = policies.asking(pod("p", container(memory=1000)), asked)
    assert policies.narrowed(asked, "large") is None  # nobody was asked yet
    policies.remember(asking)
    narrowed = policies.narrowed(asked, "large")
    assert narrowed is not None
    assert narrowed.containers[0].request.selector.cards == (card("large", 1).uuid,)
    policies.forget(asking.uid)
    assert policies.narrowed(asked, "large") is None


async def test_what_several_pods_free_is_worked_out_once_and_before_the_next_pod_asks(two: Ledger) -> None:
    engine = engine_of(two, "small", "large")
    policies = NodePolicies(two, engine, cluster="fgd-plus")
    asking = policies.asking(pod("p", container(memory=1000)), request(by_memory(1000)))
    policies.standing(asking)
    for index in range(2):
        two.observe(PodUID(f"other-{index}"), placed_on(two, "large", index))
    rounds: list[None] = []
    plain, engine.catch_up = engine.catch_up, lambda: rounds.append(plain())  # type: ignore[method-assign]
    for index in range(2):
        two.release(PodUID(f"other-{index}"))
        policies.soon()
    await asyncio.sleep(0)
    assert len(rounds) == 1
    standing = policies.standing(asking)
    assert standing is not None
    assert standing.order is not None
    policies.soon()
    await asyncio.sleep(0)
    assert len(rounds) == 2


def placed_on(ledger: Ledger, node: str, index: int) -> Placement:
    state = ledger.node(node)
    assert state is not None
    found = plan(request(only(Selector(cards=(card(node, index).uuid,)), by_memory(1000)), uid="other"), state)
    assert isinstance(found, Placement)
    return found
