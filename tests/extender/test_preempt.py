"""The preempt verb: proposals of kube-scheduler in, victims that free the right card out; and room that is kept."""

import json
import random
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from fractile.ledger.classes import ClassIndex
from fractile.model.units import PodUID
from fractile.reconcile.nominations import Nominations
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes.disruption import PodDisruptionBudget
from fractile.wire.kubernetes.objects import Container, Pod, ResourceRequirements
from tests.builders import CARD_MEMORY, Clock, cards, cluster, container, pod
from tests.extender.test_bind import bind
from tests.main.plane import Plane, plane

FULL = CARD_MEMORY
HALF = FULL // 2


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        yield made


async def running(p: Plane, name: str, memory: int, *, priority: int = 0, node: str = "n1", **fields: Any) -> Pod:
    """A pod that was bound by us, and that the watch has shown."""
    cpu = fields.pop("cpu", None)
    asked = container(memory=memory, requests={"cpu": cpu} if cpu else None)
    body: dict[str, Any] = msgspec.to_builtins(pod(name, asked, **fields))
    body["metadata"].pop("uid")
    body["spec"]["priority"] = priority
    p.server.create("/api/v1/namespaces/default/pods", body)
    assert await bind(p, p.see(name), node) is None
    return p.see(name)


def wanting(p: Plane, name: str, memory: int = FULL, *, priority: int = 100, nominated: str = "", cpu: str = "") -> Pod:
    """A pod that waits, and was seen."""
    asked = container(memory=memory, requests={"cpu": cpu} if cpu else None)
    body: dict[str, Any] = msgspec.to_builtins(pod(name, asked))
    body["metadata"].pop("uid")
    body["spec"]["priority"] = priority
    body["status"] = {"phase": "Pending", "nominatedNodeName": nominated}
    p.server.create("/api/v1/namespaces/default/pods", body)
    return p.see(name)


def preempt(p: Plane, asking: Pod, proposed: Mapping[str, Sequence[str]], violations: int = 0) -> dict[str, list[str]]:
    """Node -> the victims' UIDs in the answer, in its order."""
    answer = ask(p, asking, proposed, violations)
    return {n: [v["UID"] for v in victims["Pods"]] for n, victims in answer.items()}


def ask(p: Plane, asking: Pod, proposed: Mapping[str, Sequence[str]], violations: int = 0) -> dict[str, Any]:
    meta = {
        node: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations}
        for node, uids in proposed.items()
    }
    body = {"Pod": msgspec.to_builtins(asking), "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
    answer = json.loads(p.extender.preempt(json.dumps(body).encode()))
    assert answer.keys() == {"NodeNameToMetaVictims"}
    return answer["NodeNameToMetaVictims"]


async def spread(p: Plane) -> dict[str, Pod]:
    """Both cards of n1 hold two pods each, those on the second are worth a little less."""
    found = {name: await running(p, name, HALF, priority=int(name in "ab")) for name in "abcd"}
    cards = {name: card_of(p, one) for name, one in found.items()}
    assert cards["a"] == cards["b"] != cards["c"] == cards["d"]
    return found


def card_of(p: Plane, one: Pod) -> str:
    entry = p.entry(one)
    assert entry is not None
    return entry.charges[0].card


# ── the right card ───────────────────────────────────────────────────────────────────────────────────────────────────


async def test_one_card_is_freed_where_kube_scheduler_would_take_half_of_two(p: Plane) -> None:
    pods = await spread(p)
    wrong = [pods["d"].metadata.uid, pods["b"].metadata.uid]
    answer = preempt(p, wanting(p, "high"), {"n1": wrong})
    assert sorted(answer["n1"]) == sorted(pods[name].metadata.uid for name in "cd")


async def test_a_proposal_that_frees_too_few_is_extended(p: Plane) -> None:
    pods = await spread(p)
    answer = preempt(p, wanting(p, "high"), {"n1": [pods["d"].metadata.uid]})
    assert sorted(answer["n1"]) == sorted(pods[name].metadata.uid for name in "cd")


async def test_a_proposal_that_evicts_too_many_is_reduced(p: Plane) -> None:
    pods = await spread(p)
    answer = preempt(p, wanting(p, "high", HALF), {"n1": [o.metadata.uid for o in pods.values()]})
    assert answer["n1"] in ([pods["c"].metadata.uid], [pods["d"].metadata.uid])


async def test_whole_pods_in_the_request_are_answered_by_uid(p: Plane) -> None:
    pods = await spread(p)
    asking = wanting(p, "high")
    victims = {"n1": {"Pods": [msgspec.to_builtins(pods["d"])], "NumPDBViolations": 0}}
    body = {"pod": msgspec.to_builtins(asking), "nodenametovictims": victims, "NodeNameToMetaVictims": None}
    answer = json.loads(p.extender.preempt(json.dumps(body).encode()))
    uids = [v["UID"] for v in answer["NodeNameToMetaVictims"]["n1"]["Pods"]]
    assert sorted(uids) == sorted(pods[name].metadata.uid for name in "cd")


async def test_the_lowest_priorities_leave_the_highest_of_them_first_in_the_answer(p: Plane) -> None:
    low = [await running(p, f"low-{i}", HALF, priority=i) for i in range(2)]
    high = [await running(p, f"high-{i}", HALF, priority=50) for i in range(2)]
    assert card_of(p, low[0]) == card_of(p, low[1])
    answer = preempt(p, wanting(p, "asking"), {"n1": [high[0].metadata.uid]})
    assert answer == {"n1": [low[1].metadata.uid, low[0].metadata.uid]}


async def test_nodes_where_it_cannot_help_are_left_out(p: Plane) -> None:
    small = [await running(p, f"low-{i}", HALF) for i in range(2)]
    same = [await running(p, f"same-{i}", HALF + 1, priority=100, node="n2") for i in range(2)]
    assert card_of(p, same[0]) != card_of(p, same[1])
    answer = preempt(p, wanting(p, "high"), {"n1": [small[0].metadata.uid], "n2": ["cpu"], "n9": []})
    assert answer.keys() == {"n1"}


async def test_an_answer_changes_nothing(p: Plane) -> None:
    await spread(p)
    before = p.ledger.statistics(), p.ledger.node("n1")
    for _ in range(10):
        preempt(p, wanting(p, f"h{_}"), {"n1": []})
    assert (p.ledger.statistics(), p.ledger.node("n1")) == before


# ── what is not about cards ──────────────────────────────────────────────────────────────────────────────────────────


async def test_pods_without_devices_stay_in_the_proposal(p: Plane) -> None:
    pods = await spread(p)
    answer = preempt(p, wanting(p, "high"), {"n1": ["cpu-1", pods["d"].metadata.uid, "cpu-2"]})
    assert sorted(answer["n1"]) == sorted(["cpu-1", "cpu-2", *(pods[name].metadata.uid for name in "cd")])


async def test_what_replaces_a_pod_gives_back_as_much_cpu_if_the_asking_pod_needs_any(p: Plane) -> None:
    big = await running(p, "big", FULL, cpu="4", priority=1)
    small = await running(p, "small", FULL, cpu="1")
    assert preempt(p, wanting(p, "modest"), {"n1": [big.metadata.uid]}) == {"n1": [small.metadata.uid]}
    assert preempt(p, wanting(p, "hungry", cpu="3"), {"n1": [big.metadata.uid]}) == {"n1": [big.metadata.uid]}


async def test_a_pod_that_was_nominated_before_gets_all_of_the_proposal(p: Plane) -> None:
    pods = await spread(p)
    odd = pods["b"].metadata.uid
    answer = preempt(p, wanting(p, "high", nominated="n1"), {"n1": [odd]})
    assert odd in answer["n1"]


async def test_a_proposal_that_has_nothing_to_do_with_cards_is_kept(p: Plane) -> None:
    one = await running(p, "one", HALF)
    assert preempt(p, wanting(p, "high", HALF), {"n1": [one.metadata.uid]}) == {"n1": [one.metadata.uid]}


async def test_a_pod_that_asks_for_nothing_of_ours_gets_the_proposal_back(p: Plane) -> None:
    assert preempt(p, pod("plain", container()), {"n1": ["x"], "n2": ["y"]}) == {"n1": ["x"], "n2": ["y"]}


async def test_before_the_ledger_is_rebuilt_it_helps_nowhere(p: Plane) -> None:
    p.is_ready = False
    assert preempt(p, pod("early"), {"n1": ["x"]}) == {}


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"\xff", b'{"Pod": 7}'], ids=repr)
async def test_nonsense_helps_nowhere(p: Plane, body: bytes) -> None:
    assert json.loads(p.extender.preempt(body)) == {"NodeNameToMetaVictims": {}}


# ── budgets ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def protect(assigned_pods: AssignedPods, app: str, allowed: int) -> None:
    body = {
        "metadata": {"namespace": "default", "name": app},
        "spec": {"selector": {"matchLabels": {"app": app}}},
        "status": {"disruptionsAllowed": allowed},
    }
    assigned_pods.budget_changed(msgspec.convert(body, PodDisruptionBudget))


async def labelled(p: Plane, name: str, app: str, **fields: Any) -> Pod:
    made = await running(p, name, FULL, **fields)
    p.server.merge(f"/api/v1/namespaces/default/pods/{name}", {"metadata": {"labels": {"app": app}}})
    return p.see(made.metadata.name)


async def test_a_pod_that_a_budget_protects_leaves_last_and_is_counted(p: Plane) -> None:
    protected = await labelled(p, "protected", "web")
    other = await labelled(p, "other", "batch", priority=50)
    protect(p.assigned_pods, "web", 0)
    first, second, third = (wanting(p, f"high-{i}") for i in range(3))

    def answer(victim: Pod, violations: int) -> dict[str, Any]:
        return {"n1": {"Pods": [{"UID": victim.metadata.uid}], "NumPDBViolations": violations}}

    assert ask(p, first, {"n1": [protected.metadata.uid]}, 1) == answer(other, 0)
    protect(p.assigned_pods, "batch", 0)
    assert ask(p, second, {"n1": [other.metadata.uid]}, 1) == answer(protected, 1)
    p.assigned_pods.budget_gone("default", "web")
    assert ask(p, third, {"n1": [protected.metadata.uid]}) == answer(protected, 0)


async def test_pods_of_a_namespace_with_very_many_budgets_leave_all_the_same(p: Plane) -> None:
    """Whoever writes them may not escape eviction by what it costs to compare them."""
    p.node("m", cards("m", 1))
    held = [await running(p, f"v{i}", 100, node="m") for i in range(120)]
    for i, one in enumerate(held):
        p.assigned_pods.changed(replace(one, metadata=replace(one.metadata, labels={"b": "c", "mine": str(i)})))
    for i in range(2000):
        body = {
            "metadata": {"namespace": "default", "name": f"x{i}"},
            "spec": {"selector": {"matchExpressions": [{"key": "b", "operator": "Exists"}]}},
            "status": {"disruptionsAllowed": 1000},
        }
        p.assigned_pods.budget_changed(msgspec.convert(body, PodDisruptionBudget))
    asking = wanting(p, "high")
    began = time.thread_time()
    answer = preempt(p, asking, {"m": [held[0].metadata.uid]})
    assert time.thread_time() - began < 0.8  # measured 0.2
    assert sorted(answer["m"]) == sorted(one.metadata.uid for one in held)


# ── room that is kept ────────────────────────────────────────────────────────────────────────────────────────────────


def fitting(p: Plane, asking: Pod, *nodes: str) -> list[str]:
    body = {"Pod": msgspec.to_builtins(asking), "NodeNames": list(nodes)}
    return json.loads(p.extender.filter(json.dumps(body).encode()))["NodeNames"]


def leaves(p: Plane, *pods: Pod) -> None:
    """Their deletion has begun, as the watch shows it."""
    for one in pods:
        meta = msgspec.structs.replace(one.metadata, deletion_timestamp="2026-01-01T00:01:00Z")
        p.assigned_pods.changed(msgspec.structs.replace(one, metadata=meta))


async def test_room_that_others_leave_is_kept_for_the_pod_that_they_leave_for(p: Plane) -> None:
    pods = await spread(p)
    wanting(p, "high", nominated="n1")
    leaves(p, pods["c"], pods["d"])
    p.handlers.gone(PodUID(pods["c"].metadata.uid))
    p.assigned_pods.gone(PodUID(pods["c"].metadata.uid))
    low = wanting(p, "low", HALF, priority=0)
    assert fitting(p, low, "n1", "n2") == ["n2"]
    refusal = await bind(p, low, "n1")
    assert refusal is not None
    assert "the room is kept for a pod for which others are being evicted" in refusal.message
    higher = wanting(p, "higher", HALF, priority=200)
    assert fitting(p, higher, "n1") == ["n1"], "a pod of higher priority does not wait"


async def test_what_was_promised_counts_before_the_victims_are_seen_to_leave(p: Plane) -> None:
    pods = await spread(p)
    p.handlers.gone(PodUID(pods["c"].metadata.uid))
    p.assigned_pods.gone(PodUID(pods["c"].metadata.uid))
    high = wanting(p, "high")
    answer = preempt(p, high, {"n1": [pods["d"].metadata.uid]})
    assert answer == {"n1": [pods["d"].metadata.uid]}
    p.server.merge("/api/v1/namespaces/default/pods/high/status", {"status": {"nominatedNodeName": "n1"}})
    p.see("high")
    assert fitting(p, wanting(p, "low", HALF, priority=0), "n1") == []
    p.clock.now += 3600
    assert fitting(p, wanting(p, "low2", HALF, priority=0), "n1") == ["n1"], "nobody left: the promise is forgotten"


async def test_a_pod_that_fits_beside_the_nominated_one_is_let_in(p: Plane) -> None:
    wanting(p, "high", FULL, nominated="n1")
    low = wanting(p, "low", HALF, priority=0)
    assert fitting(p, low, "n1") == ["n1"]
    assert await bind(p, low, "n1") is None
    assert await bind(p, p.see("high"), "n1") is None, "the other card was kept"


async def test_two_that_are_nominated_to_one_node_do_not_wait_for_each_other(p: Plane) -> None:
    await running(p, "there", FULL)
    both = [wanting(p, name, nominated="n1") for name in ("one", "two")]
    assert [fitting(p, one, "n1") for one in both] in ([["n1"], []], [[], ["n1"]])


async def test_the_nominated_pod_itself_is_let_in_and_once_bound_no_room_is_kept(p: Plane) -> None:
    high = wanting(p, "high", nominated="n1")
    assert fitting(p, high, "n1") == ["n1"]
    assert await bind(p, high, "n1") is None
    p.see("high")
    assert p.waiting.nominating() == []
    assert fitting(p, wanting(p, "low", priority=0), "n1") == ["n1"]


async def test_preemption_leaves_the_room_alone_that_is_kept_for_others(p: Plane) -> None:
    pods = await spread(p)
    wanting(p, "first", priority=100, nominated="n1")
    leaves(p, pods["c"], pods["d"])
    answer = preempt(p, wanting(p, "second"), {"n1": [pods["b"].metadata.uid]})
    assert set(answer["n1"]) >= {pods["a"].metadata.uid, pods["b"].metadata.uid}


def test_nobody_is_remembered_for_ever() -> None:
    ledger, clock = cluster({}), Clock()
    kept = Nominations(
        ledger=ledger,
        waiting=WaitingPods(),
        assigned_pods=AssignedPods(ledger),
        classes=ClassIndex(ledger),
        clock=clock,
    )
    for i in range(3000):
        kept.remember(PodUID(f"u{i}"), {})
    assert kept.remembered == 1000
    clock.now += 3600
    kept.remember(PodUID("last"), {})
    assert kept.remembered == 1


async def test_a_hostile_pod_of_high_priority_takes_a_bounded_time_and_evicts_nobody_for_nothing(p: Plane) -> None:
    """Whether it would fit is hard to tell, and asked once for each set of victims."""
    p.node("n8", cards("n8", 8))
    held = [await running(p, f"v{n}", 500, node="n8") for n in range(24)]
    rng = random.Random(1)
    shares = [rng.randint(100, 600) for _ in range(24)]
    sizes = [share * (8 * FULL - 80) // sum(shares) for share in shares]
    limits = [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(size)} for size in sizes]
    many = [Container(name=f"c{n}", resources=ResourceRequirements(limits=each)) for n, each in enumerate(limits)]
    body: dict[str, Any] = msgspec.to_builtins(pod("hostile", *many))
    body["metadata"].pop("uid")
    body["spec"]["priority"] = 100
    p.server.create("/api/v1/namespaces/default/pods", body)
    asking = p.see("hostile")
    began = time.thread_time()
    answer = preempt(p, asking, {"n8": [v.metadata.uid for v in held]})
    assert time.thread_time() - began < 0.5  # measured 0.02; the bar allows for a busy machine
    assert answer == {}
