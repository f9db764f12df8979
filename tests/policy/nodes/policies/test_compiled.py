"""The compiled scores are those of the arrays, number by number."""

import importlib.util
from random import Random

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.policy.nodes.fragmentation import forecast, fragments
from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.policies.table import POLICIES, find
from fractile.policy.nodes.policy import ScoringContext
from fractile.policy.nodes.score_cache import ScoreCache
from fractile.policy.nodes.scoring_context import scoring_of
from fractile.policy.nodes.view import NEVER, Ints, Scores, TaskDemand, View, feasible
from tests.policy.nodes.nodes import Node, node, view

if importlib.util.find_spec("numba") is None:
    pytest.skip("numba is not installed (pip install fractile[fast])", allow_module_level=True)

from fractile.policy.nodes.policies import compiled

MODELS = ("P100", "T4", "V100")
SIZES = (110, 230, 470, 810, 999, 1000)


@st.composite
def asks(draw: st.DrawFn) -> TaskDemand:
    gpus = draw(st.sampled_from([0, 1, 1, 1, 2, 4]))
    memory = draw(st.sampled_from([0, 8, 300_000]))
    milli = 0 if gpus == 0 else draw(st.sampled_from(SIZES)) if gpus == 1 else 1000
    models = tuple(draw(st.lists(st.sampled_from(MODELS), max_size=2))) if gpus else ()
    return TaskDemand(draw(st.integers(0, 96)) * 1000, memory, gpus, milli, models)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    left = draw(st.lists(st.sampled_from([0, 100, 190, 530, 770, 1000, 1000]), max_size=5))
    cpu = draw(st.sampled_from([8_000, 96_000, 192_000]))
    memory = draw(st.sampled_from([8, 393_216]))
    return node(
        *left,
        cpu=cpu,
        cpu_left=draw(st.integers(0, cpu)),
        memory=memory,
        memory_left=draw(st.integers(0, memory)),
        model=draw(st.sampled_from(MODELS)),
        kinds=draw(st.dictionaries(st.sampled_from([0, 1, 2, 4]), st.integers(0, 3))),
    )


clusters = st.lists(nodes(), min_size=1, max_size=8)
wanted = st.lists(asks(), min_size=1, max_size=10)


@settings(max_examples=200, deadline=None)
@given(clusters, wanted)
def test_fragments_are_equal(some: list[Node], expected: list[TaskDemand]) -> None:
    v = view(*some)
    f = forecast(mix_of(expected), v.models)

    assert (
        compiled.fragments(v.cpu_left, v.gpu_left, v.model, f).tolist()
        == fragments(v.cpu_left, v.gpu_left, v.model, f).tolist()
    )


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25, deadline=None)
@given(some=clusters, expected=wanted, ask=asks(), draw=st.integers(0, 2**50), leaving=st.booleans(), data=st.data())
def test_scores_and_devices_are_equal(
    name: str,
    some: list[Node],
    expected: list[TaskDemand],
    ask: TaskDemand,
    draw: int,
    leaving: bool,
    data: st.DataObject,
) -> None:
    v = view(*some)
    scoring = msgspec.structs.replace(scoring_of(v, mix_of(expected), leaving=leaving), draw=draw)
    rows = np.array(data.draw(st.lists(st.integers(0, len(some) - 1), min_size=1, unique=True)), np.int64)
    plain = POLICIES[name].score(v, ask, scoring)
    wanted_value = np.where(feasible(v, ask), plain.value, NEVER)[rows]

    value, device = _rescored(name, v, ask, rows, scoring)

    assert value.tolist() == wanted_value.tolist()
    there = wanted_value > NEVER
    assert device[there].tolist() == plain.device[rows][there].tolist()


@pytest.mark.parametrize("leaving", [False, True], ids=["pods stay", "pods leave"])
@pytest.mark.parametrize("name", POLICIES)
def test_they_are_equal_on_a_crowded_cluster_too(name: str, leaving: bool) -> None:
    """Where most requests fit somewhere and nodes hold pods of all kinds; 300 nodes, 40 requests."""
    lots = Random(name)
    v = view(*(_crowded(lots) for _ in range(300)))
    queue = [
        TaskDemand(
            1000 * lots.randrange(0, 9),
            lots.choice([0, 2_000]),
            gpus,
            lots.choice(SIZES) if gpus == 1 else 1000 if gpus else 0,
        )
        for gpus in lots.choices([0, 1, 2, 4], [1, 6, 1, 1], k=40)
    ]
    scoring = scoring_of(v, mix_of(queue), leaving=leaving)
    rows = np.arange(len(v.number))
    for number, ask in enumerate(queue):
        drawn = msgspec.structs.replace(scoring, draw=number)
        plain = POLICIES[name].score(v, ask, drawn)
        value, device = _rescored(name, v, ask, rows, drawn)
        there = feasible(v, ask)

        assert value.tolist() == np.where(there, plain.value, NEVER).tolist()
        assert device[there].tolist() == plain.device[there].tolist()


def _crowded(lots: Random) -> Node:
    left = [lots.choice([0, 110, 190, 530, 770, 1000, 1000]) for _ in range(lots.choice([1, 2, 4, 8]))]
    kinds = {kind: lots.randrange(1, 3) for kind in (0, 1, 2, 4) if lots.random() < 0.3}
    return node(
        *left,
        cpu_left=lots.randrange(96_001),
        memory_left=lots.randrange(393_217),
        model=lots.choice(MODELS),
        kinds=kinds,
    )


def _rescored(name: str, v: View, ask: TaskDemand, rows: Ints, scoring: ScoringContext) -> tuple[Ints, Ints]:
    policy = compiled.compiled(name, POLICIES[name])
    assert policy.rescore is not None
    scores = Scores(np.full(len(v.number), -7, np.int64), np.full(len(v.number), -7, np.int64))
    policy.rescore(v, rows, ask, scoring, scores)
    others = np.setdiff1d(np.arange(len(v.number)), rows)
    assert (scores.value[others] == -7).all()
    return scores.value[rows], scores.device[rows]


@pytest.mark.parametrize("name", POLICIES)
def test_a_board_chooses_alike_with_both(name: str) -> None:
    v = view(node(1000, 530, 100), node(770, 770, model="V100"), node(*[1000] * 4))
    wanted_asks = [
        TaskDemand(4_000, 0, 1, 470),
        TaskDemand(4_000, 0, 1, 1000),
        TaskDemand(4_000, 0, 2, 1000),
        TaskDemand(4_000, 0),
    ]
    scoring = scoring_of(v, mix_of(wanted_asks))
    plain = ScoreCache(v, POLICIES[name], scoring)
    fast = ScoreCache(v, compiled.compiled(name, POLICIES[name]), scoring)

    assert [plain.best(a, 0) for a in wanted_asks] == [fast.best(a, 0) for a in wanted_asks]


def test_sums_and_policies_with_another_device_have_no_compiled_form() -> None:
    found = find("bestfit@widest")
    assert found is not None

    assert compiled.compiled("bestfit@widest", found) is found
