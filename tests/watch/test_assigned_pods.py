"""The bound pods as preemption sees them: what is kept of their labels, and which budgets protect them."""

import gc
import random
import time
import tracemalloc
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from fractile.model.units import PodUID
from fractile.policy.cards.effort import Effort
from fractile.watch.assigned_pods import AssignedPods
from fractile.wire.kubernetes.disruption import PodDisruptionBudget
from fractile.wire.kubernetes.objects import Pod
from tests.builders import card, cluster, on_card, pod

PODS = 55
BAR = 0.4  # s of processor time; each of these took 3 s and more


@pytest.fixture
def assigned_pods() -> AssignedPods:
    """None so far, on a node of eight cards with pods on it that hold something."""
    ledger = cluster({"n": [card("n", i) for i in range(8)]})
    for i in range(2 * PODS):
        assert ledger.observe(PodUID(f"p{i}"), on_card(i % 8, 1, node="n")) is None
    return AssignedPods(ledger)


def resident(i: int, labels: Mapping[str, str], namespace: str = "t") -> Pod:
    made = pod(f"p{i}", uid=f"p{i}", node="n", namespace=namespace)
    return msgspec.structs.replace(made, metadata=msgspec.structs.replace(made.metadata, labels=dict(labels)))


def budget(
    name: str, match: Mapping[str, str], further: Sequence[Mapping[str, Any]] = (), *, allowed: int = 0, of: str = "t"
) -> PodDisruptionBudget:
    body = {
        "metadata": {"namespace": of, "name": name},
        "spec": {"selector": {"matchLabels": match, "matchExpressions": further}},
        "status": {"disruptionsAllowed": allowed},
    }
    return msgspec.convert(body, PodDisruptionBudget)


def protected(assigned_pods: AssignedPods) -> set[str]:
    """The pods of the node that would break a budget."""
    return {c.uid for c in assigned_pods.below("n", 100) if c.violates}


def of_many_values(name: str, values: int) -> PodDisruptionBudget:
    return budget(name, {}, [{"key": "b", "operator": "NotIn", "values": [f"{i:05x}" for i in range(values)]}])


# ── labels ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_pod_that_gets_other_labels_again_and_again_takes_the_room_of_the_last(assigned_pods: AssignedPods) -> None:
    def patched(k: int, count: int) -> None:
        assigned_pods.changed(resident(0, {f"a{k}x{i:05}": "" for i in range(count)}))

    patched(0, 100)
    tracemalloc.start()
    try:
        for k in range(30):
            patched(2 * k, 100)
            patched(2 * k + 1, 15_000)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 100_000


def test_equal_labels_are_kept_once_and_until_the_last_pod_that_has_them_is_gone(assigned_pods: AssignedPods) -> None:
    for i in range(3):
        assigned_pods.changed(resident(i, {"app": "web", "tier": "x"}))
        assigned_pods.changed(resident(i, {"tier": "x", "app": "web"}))
    one, two = (assigned_pods.find(PodUID(f"p{i}")) for i in (0, 2))
    assert one is not None
    assert two is not None
    assert one.labels is two.labels
    assert assigned_pods.kept_labels == 1
    for i in range(3):
        assert assigned_pods.kept_labels == 1
        assigned_pods.gone(PodUID(f"p{i}"))
        assigned_pods.gone(PodUID(f"p{i}"))
    assert assigned_pods.kept_labels == 0


def test_a_pod_with_labels_too_long_to_be_kept_is_protected_by_every_budget_of_its_namespace(
    assigned_pods: AssignedPods,
) -> None:
    long = {"app": "none", **{f"a{i}": "x" * 63 for i in range(300)}}
    assigned_pods.changed(resident(0, long))
    assigned_pods.changed(resident(1, long, namespace="other"))
    assigned_pods.budget_changed(budget("web", {"app": "web"}))
    assert protected(assigned_pods) == {"p0"}
    assigned_pods.budget_changed(budget("web", {"app": "web"}, allowed=1))
    assert protected(assigned_pods) == set()


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "budgets",
    [
        pytest.param([of_many_values(f"x{i}", 150_000) for i in range(10)], id="ten of 150,000 values"),
        pytest.param([budget(f"s{i}", {"b": "d"}) for i in range(20_000)], id="20,000 small ones"),
        pytest.param(
            [budget("x", {}, [{"key": f"k{i}", "operator": "DoesNotExist"} for i in range(65)])], id="65 requirements"
        ),
    ],
)
def test_budgets_too_large_to_be_read_protect_their_namespace_in_a_bounded_time(
    assigned_pods: AssignedPods, budgets: list[PodDisruptionBudget]
) -> None:
    for i in range(PODS):
        assigned_pods.changed(resident(i, {"b": "c"}))
    assigned_pods.changed(resident(PODS, {"b": "c"}, namespace="other"))
    for one in budgets:
        assigned_pods.budget_changed(one)
    gc.collect()
    began = time.process_time()
    found = protected(assigned_pods)
    assert time.process_time() - began < BAR
    assert found == {f"p{i}" for i in range(PODS)}
    for one in budgets:
        assigned_pods.budget_gone("t", one.metadata.name)
    assert protected(assigned_pods) == set()


def test_budgets_too_large_to_be_read_are_not_kept(assigned_pods: AssignedPods) -> None:
    tracemalloc.start()
    try:
        for i in range(10):
            assigned_pods.budget_changed(of_many_values(f"x{i}", 20_000))
        for i in range(100):
            assigned_pods.budget_changed(of_many_values(f"y{i}", 1000))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 600_000  # four budgets of 1,000 values are read


@pytest.mark.parametrize("labels", [1, 2 * PODS], ids=["equal labels", "labels of their own"])
def test_as_many_budgets_as_are_read_take_a_bounded_time(assigned_pods: AssignedPods, labels: int) -> None:
    for i in range(2 * PODS):
        assigned_pods.changed(resident(i, {"b": "c", "mine": str(i % labels)}))
    for i in range(2000):
        assigned_pods.budget_changed(budget(f"x{i}", {}, [{"key": "b", "operator": "Exists"}], allowed=1))
    for _ in range(2):
        effort = Effort(1_000_000)
        gc.collect()
        began = time.process_time()
        below = assigned_pods.below("n", 100, effort.spend)
        assert time.process_time() - began < 2 * BAR  # measured 0.1
        assert sum(c.violates for c in below) == 2 * PODS - 1
        assert effort.spent > 50_000, "the call counts what it cost"


def test_where_no_looks_are_left_for_budgets_all_pods_of_their_namespaces_count_as_protected(
    assigned_pods: AssignedPods,
) -> None:
    for i in range(4):
        assigned_pods.changed(resident(i, {"b": str(i)}, namespace="other" if i == 3 else "t"))
    for i in range(100):
        assigned_pods.budget_changed(budget(f"x{i}", {"b": str(i)}, allowed=1))
    effort = Effort(1)
    assert [c.violates for c in assigned_pods.below("n", 100, effort.spend)] == [False, True, True, False]
    assert protected(assigned_pods) == set()


def test_pods_are_compared_once_until_a_selector_changes(assigned_pods: AssignedPods) -> None:
    for i in range(PODS):
        assigned_pods.changed(resident(i, {"app": f"a{i}"}))
    for i in range(800):
        assigned_pods.budget_changed(budget(f"b{i}", {"app": f"a{i}", "x": "y"}))

    def looks(*changes: PodDisruptionBudget) -> int:
        for one in changes:
            assigned_pods.budget_changed(one)
        effort = Effort(1_000_000)
        assigned_pods.below("n", 100, effort.spend)
        return effort.spent

    assert looks() > 10 * PODS
    assert looks() == 0
    assert looks(budget("b0", {"app": "a0", "x": "y"}, allowed=7)) == 0, "only how many may leave has changed"
    assert looks(budget("b0", {"app": "a0"})) > 10 * PODS
    assert protected(assigned_pods) == {"p0"}


def test_whatever_budgets_come_and_go_the_count_is_kube_schedulers(assigned_pods: AssignedPods) -> None:
    """Against all budgets gone through for every pod."""
    rng = random.Random(1)
    keys, values = ("app", "tier"), ("a", "b", "c")
    pods: dict[int, Pod] = {}
    budgets: dict[tuple[str, str], PodDisruptionBudget] = {}
    for _ in range(600):
        i, of = rng.randrange(8), rng.choice(("t", "u"))
        match rng.randrange(5):
            case 0 | 1:
                pods[i] = resident(i, {key: rng.choice(values) for key in keys if rng.random() < 0.7}, of)
                assigned_pods.changed(pods[i])
            case 2:
                pods.pop(i, None)
                assigned_pods.gone(PodUID(f"p{i}"))
            case 3:
                name = f"b{rng.randrange(5)}"
                budgets.pop((of, name), None)
                assigned_pods.budget_gone(of, name)
            case _:
                name, match = f"b{rng.randrange(5)}", {k: rng.choice(values) for k in keys if rng.random() < 0.5}
                budgets[of, name] = budget(name, match, allowed=rng.randrange(3), of=of)
                assigned_pods.budget_changed(budgets[of, name])
        assert protected(assigned_pods) == _expected(pods, budgets, assigned_pods)


def _expected(
    pods: Mapping[int, Pod], budgets: Mapping[tuple[str, str], PodDisruptionBudget], assigned_pods: AssignedPods
) -> set[str]:
    left = {key: one.status.disruptions_allowed for key, one in budgets.items()}
    found: set[str] = set()
    for uid in (c.uid for c in assigned_pods.below("n", 100)):
        meta = pods[int(uid[1:])].metadata
        for (of, name), one in budgets.items():
            match = one.spec.selector.match_labels if one.spec.selector else None
            if match and of == meta.namespace and match.items() <= (meta.labels or {}).items():
                left[of, name] -= 1
                found |= {uid} if left[of, name] < 0 else set()
    return found
