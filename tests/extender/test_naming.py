"""How many nodes the filter names, and that kube-scheduler decides as it would have decided."""

import json
import random
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.extender.app import Extender
from fractile.extender.filter import BEST
from fractile.extender.naming import Naming
from fractile.model.units import MemoryUnit, PodUID
from fractile.wire.kubernetes.extender import AskedPod
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.scheduler_config import OTHERS, WEIGHT, clear_lead
from tests.builders import CARD_MEMORY, container, in_use
from tests.main.plane import Plane, plane

STEP = 10 * WEIGHT  # of kube-scheduler's sum
LEADS = {"default-scheduler": clear_lead()}
PREFERENCES: dict[str, dict[str, Any]] = {
    "node affinity": {"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    "pod affinity": {"affinity": {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{}]}}},
    "soft spread": {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}]},
}
RULES: dict[str, dict[str, Any]] = {
    "nothing": {},
    "required affinity": {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {}}}},
    "hard spread": {"topologySpreadConstraints": [{"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}]},
    "null": {"affinity": None, "topologySpreadConstraints": None},
}


def pod(**spec: Any) -> AskedPod:
    return msgspec.json.decode(msgspec.json.encode({"metadata": {"name": "p"}, "spec": spec}), type=AskedPod)


def chosen(naming: Naming, scores: list[int], **spec: Any) -> list[str]:
    return naming.chosen(pod(**spec), [f"n{i}" for i in range(len(scores))], np.array(scores, np.int64))


@given(st.lists(st.integers(0, 10), min_size=1, max_size=100), st.randoms(use_true_random=False))
def test_kube_scheduler_decides_the_same_whatever_its_own_scores_are(scores: list[int], rng: random.Random) -> None:
    named = chosen(Naming(leads=LEADS), scores)
    others = [rng.randrange(100 * OTHERS + 1) for _ in scores]
    sums = {f"n{i}": score * STEP + others[i] for i, score in enumerate(scores)}
    most = max(sums.values())
    assert {n for n in sums if sums[n] == most} == {n for n in named if sums[n] == max(sums[n] for n in named)}


def test_two_steps_are_enough_for_default_weights_and_one_is_not() -> None:
    assert clear_lead() == 2
    assert chosen(Naming(leads=LEADS), [3, 7, 5]) == ["n1"]
    assert chosen(Naming(leads=LEADS), [3, 7, 6]) == ["n0", "n1", "n2"]


@pytest.mark.parametrize(("weight", "others", "steps"), [(100, 12, 2), (1, 15, 151), (1000, 15, 1), (100, 115, 12)])
def test_a_lead_outweighs_all_other_scores_and_one_step_less_does_not(weight: int, others: int, steps: int) -> None:
    assert clear_lead(weight, others) == steps
    assert steps * 10 * weight > 100 * others >= (steps - 1) * 10 * weight


def test_a_lead_is_that_of_the_pods_profile() -> None:
    naming = Naming(leads={"packing": 3})
    assert chosen(naming, [9, 1]) == ["n0", "n1"]
    assert chosen(naming, [9, 1], schedulerName="default-scheduler") == ["n0", "n1"]
    assert chosen(naming, [9, 1], schedulerName="packing") == ["n0"]
    assert not naming.concerns(pod())
    assert naming.concerns(pod(schedulerName="packing"))


def test_no_more_are_named_than_wanted_the_best_first() -> None:
    scores = [5, 9, 5, 9, 8]
    assert chosen(Naming(1), scores) == ["n1"]
    assert chosen(Naming(3), scores) == ["n1", "n3", "n4"]
    assert chosen(Naming(50), scores) == ["n0", "n1", "n2", "n3", "n4"]


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in PREFERENCES.items()])
def test_a_pod_with_preferences_keeps_the_whole_list(spec: dict[str, Any]) -> None:
    assert len(chosen(Naming(1), [5, 5], **spec)) == 2
    assert not Naming(1).concerns(pod(**spec))


@pytest.mark.parametrize("spec", [pytest.param(spec, id=name) for name, spec in RULES.items()])
def test_a_rule_is_no_preference(spec: dict[str, Any]) -> None:
    assert chosen(Naming(1), [5, 5], **spec) == ["n0"]


def test_nothing_is_left_out_unless_it_is_asked_for() -> None:
    assert not Naming().concerns(pod())
    assert Naming().most == BEST


NODES = tuple(f"n{i:03d}" for i in range(BEST + 20))


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    """More nodes than are named; one is half full."""
    async with plane(nodes=NODES) as made:
        in_use(made.ledger, NODES[50], CARD_MEMORY, 0)
        yield made


def extender(p: Plane, naming: Naming) -> Extender:
    return Extender(
        ledger=p.ledger,
        binder=p.binder,
        expected=p.expected,
        unit=MemoryUnit.MiB,
        ready=lambda: True,
        classes=p.index,
        naming=naming,
    )


def named(served: Extender, asked: Pod) -> list[str]:
    body = msgspec.json.encode({"Pod": asked, "Nodes": None, "NodeNames": NODES})
    return json.loads(served.filter(body))["NodeNames"]


async def test_the_filter_names_a_node_that_is_clearly_ahead_alone_and_expects_the_pod_there(p: Plane) -> None:
    asked = p.submit("p", container(memory=1000))
    assert len(named(extender(p, Naming()), asked)) == BEST
    assert not len(p.expected)
    assert named(extender(p, Naming(leads=LEADS)), asked) == [NODES[50]]
    assert [node for node, _ in p.expected.others(PodUID(""))] == [NODES[50]]


async def test_where_nodes_are_alike_all_of_the_best_are_named(p: Plane) -> None:
    p.ledger.release(PodUID(f"filler-{NODES[50]}-0"))
    asked = p.submit("p", container(memory=1000))
    assert len(named(extender(p, Naming(leads=LEADS)), asked)) == BEST
    assert len(named(extender(p, Naming(1)), asked)) == 1
    assert len(named(extender(p, Naming(7)), asked)) == 7


async def test_a_policy_that_leaves_the_choice_to_kube_scheduler_keeps_it(p: Plane) -> None:
    asked = p.submit("p", container(memory=1000), annotations={"fractile.dev/node-policy": "none"})
    assert len(named(extender(p, Naming(1, LEADS)), asked)) == len(NODES)


async def test_where_no_more_are_asked_than_are_named_none_is_left_out(p: Plane) -> None:
    asked = p.submit("p", container(memory=1000))
    body = msgspec.json.encode({"Pod": asked, "Nodes": None, "NodeNames": NODES[:BEST]})
    assert len(json.loads(extender(p, Naming(1, LEADS)).filter(body))["NodeNames"]) == BEST


async def test_the_card_of_a_pod_named_alone_is_chosen_by_its_policy_as_after_a_score(p: Plane) -> None:
    asked = p.submit("p", container(memory=1000))
    served = extender(p, Naming(1))
    (node,) = named(served, asked)
    meta = asked.metadata
    body = {"PodName": meta.name, "PodNamespace": meta.namespace, "PodUID": meta.uid, "Node": node}
    assert json.loads(await served.bind(msgspec.json.encode(body)))["Error"] == ""
    assert p.annotations()
    assert not len(p.expected), "it has arrived"
