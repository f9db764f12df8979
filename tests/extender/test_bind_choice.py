"""Which card a bind takes: the policy's, within the quota, and none that is kept for a pod nominated before."""

import random
import time
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from fractile.dialects.table import NAMES, parse_pod
from fractile.extender.bind import Binder, Narrowed
from fractile.model.device_class import DeviceClass
from fractile.model.quota import NamespaceQuota, NodePlace, Quota
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest, Selector
from fractile.model.units import MemoryUnit, MiB, NodeName, Percent, PodUID
from fractile.policy.cards.choice import fits
from fractile.policy.cards.effort import Effort
from fractile.wire.fractile.resource_class import GPU_SLOT, resource_name
from fractile.wire.kubernetes.objects import Container, Pod, ResourceRequirements
from tests.builders import CARD_MEMORY, card_uuid, cards, container, in_use, on_card, only, pod
from tests.extender.test_bind import args, bind
from tests.main.plane import NOW_NS, Plane, plane

FULL = CARD_MEMORY
KEPT = Refusal(Code.NO_ROOM, "the room is kept for a pod for which others are being evicted")


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        yield made


def open_choice(request: PodRequest, node: str) -> None:
    """A policy to which all cards are alike."""


def plain(p: Plane, narrowed: Narrowed = open_choice, dialects: frozenset[str] = NAMES) -> Binder:
    """A binder without anything that it may do without."""
    return Binder(
        ledger=p.ledger,
        waiting=p.waiting,
        handlers=p.handlers,
        client=p.client,
        unit=MemoryUnit.MiB,
        wall_ns=lambda: NOW_NS,
        narrowed=narrowed,
        dialects=dialects,
    )


def request_of(found: Pod) -> PodRequest:
    made = parse_pod(found, MemoryUnit.MiB, NAMES)
    assert isinstance(made, PodRequest)
    return made


# ── the policy ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Policy:
    """Takes the same card of a node for every pod."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.asked: list[tuple[str, str]] = []  # pod and node

    def narrowed(self, request: PodRequest, node: str) -> PodRequest:
        self.asked.append((request.name, node))
        (asked,) = request.containers
        selector = msgspec.structs.replace(asked.request.selector, cards=(card_uuid(node, self.index),))
        only = msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, selector=selector))
        return msgspec.structs.replace(request, containers=(only,))


async def test_the_card_is_the_one_that_the_policy_takes_on_that_node(p: Plane) -> None:
    policy = Policy(1)
    assert await plain(p, policy.narrowed).bind(args(p.submit("p"), "n2")) is None
    assert policy.asked == [("p", "n2")]
    assert p.free("n2") == [FULL, FULL - 8138]


async def test_where_the_policys_card_is_full_another_is_taken(p: Plane) -> None:
    in_use(p.ledger, "n1", 0, FULL)
    assert await plain(p, Policy(1).narrowed).bind(args(p.submit("p"))) is None
    assert p.free() == [FULL - 8138, 0]


async def test_where_the_policy_leaves_the_choice_open_the_first_of_equal_cards_is_taken(p: Plane) -> None:
    assert await plain(p).bind(args(p.submit("p"))) is None
    assert p.free() == [FULL - 8138, FULL]


# ── the quota ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", [Policy(1).narrowed, open_choice], ids=["one card", "any card"])
async def test_a_pod_is_bound_in_the_pools_of_its_namespace_only(p: Plane, policy: Narrowed) -> None:
    p.ledger.usage.put_place(NodeName("n1"), NodePlace("research", ""))
    p.ledger.usage.limit(Quota({"default": NamespaceQuota(pools=("research",))}))
    binder, pod = plain(p, policy), p.submit("p")
    assert await binder.bind(args(pod, "n2")) == Refusal(
        Code.QUOTA, "namespace default may use nodes of pool research only, and this one is in no pool"
    )
    assert await binder.bind(args(pod, "n1")) is None
    assert p.free("n2") == [FULL, FULL]


# ── pods that were nominated ─────────────────────────────────────────────────────────────────────────────────────────


def waits(p: Plane, name: str, memory: int = FULL, *, priority: int = 0, nominated: str = "") -> Pod:
    """A pod that was seen; all of them were created in the same second."""
    body: dict[str, Any] = msgspec.to_builtins(pod(name, container(memory=memory)))
    body["metadata"].pop("uid")
    body["spec"]["priority"] = priority
    body["status"] = {"phase": "Pending", "nominatedNodeName": nominated}
    p.server.create("/api/v1/namespaces/default/pods", body)
    return p.see(name)


async def test_a_card_is_kept_for_a_pod_of_higher_priority_that_is_nominated_to_the_node(p: Plane) -> None:
    in_use(p.ledger, "n1", FULL)
    high, low = waits(p, "high", priority=5, nominated="n1"), waits(p, "low", 100)
    assert await bind(p, low) == KEPT
    assert (p.writes(), p.entry(low)) == ([], None)
    assert await bind(p, low, "n2") is None  # to which nobody is nominated
    assert await bind(p, high) is None


async def test_the_other_cards_of_the_node_are_not_kept(p: Plane) -> None:
    waits(p, "high", priority=5, nominated="n1")
    assert await bind(p, waits(p, "low", FULL)) is None
    assert p.free() == [FULL, 0]


async def test_what_would_not_fit_either_way_is_refused_with_its_own_reason(p: Plane) -> None:
    waits(p, "high", priority=5, nominated="n1")
    refusal = await bind(p, waits(p, "huge", FULL + 1))
    assert refusal is not None
    assert refusal.code is Code.TOO_LARGE


async def test_without_a_nomination_a_full_node_is_refused_with_its_numbers(p: Plane) -> None:
    in_use(p.ledger, "n1", FULL, FULL)
    refusal = await bind(p, waits(p, "low", 100))
    assert refusal is not None
    assert refusal.message.startswith("100 MiB requested on one card")


async def test_of_two_equal_pods_that_are_nominated_to_the_node_one_goes_first(p: Plane) -> None:
    """They were created in the same second, so that their UIDs decide."""
    in_use(p.ledger, "n1", FULL)
    first, second = sorted(
        (waits(p, name, nominated="n1") for name in ("one", "two")), key=lambda one: one.metadata.uid
    )
    assert first.metadata.creation_timestamp == second.metadata.creation_timestamp
    assert await bind(p, second) == KEPT
    assert await bind(p, first) is None


async def test_a_card_is_kept_from_a_reservation_too(p: Plane) -> None:
    in_use(p.ledger, "n1", FULL)
    waits(p, "high", priority=5, nominated="n1")
    low = waits(p, "low", 100)
    assert p.binder.reserve(PodUID(low.metadata.uid), request_of(low), "n1") == KEPT


# ── reservations ─────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_reservation_holds_the_cards_until_the_pod_is_bound(p: Plane) -> None:
    pod = p.submit("p")
    chosen = p.binder.reserve(PodUID(pod.metadata.uid), request_of(pod), "n1")
    assert chosen == on_card(0, 8138)
    entry = p.entry(pod)
    assert entry is not None
    assert entry.placement == chosen
    assert (p.free("n1"), p.free("n2")) == ([FULL - 8138, FULL], [FULL, FULL])
    in_use(p.ledger, "n1", 0, 8000)  # where it would go now
    assert await bind(p, pod) is None
    assert p.free("n1") == [FULL - 8138, FULL - 8000]


async def test_a_reservation_for_a_pod_whose_rank_is_not_known_takes_what_is_free(p: Plane) -> None:
    """No watch has shown it yet, so nobody can say which nominated pods come before it."""
    waits(p, "high", priority=5, nominated="n1")
    unseen = p.create("unseen")
    assert p.binder.reserve(PodUID(unseen.metadata.uid), request_of(unseen), "n1") == on_card(0, 8138)


async def test_a_reservation_on_another_node_is_given_back_before_the_pod_is_bound(p: Plane) -> None:
    """Nothing was written yet that could still arrive; and that node may turn out to be full."""
    pod = p.submit("p")
    p.binder.reserve(PodUID(pod.metadata.uid), request_of(pod), "n1")
    in_use(p.ledger, "n2", FULL, FULL)
    refusal = await bind(p, pod, "n2")
    assert refusal is not None
    assert refusal.code is Code.NO_ROOM
    assert (p.free("n1"), p.entry(pod)) == ([FULL, FULL], None)


# ── classes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_class_gives_what_it_is_defined_as_at_the_time_of_the_bind(p: Plane) -> None:
    pod = p.submit("p", container(limits={GPU_SLOT: 1, resource_name("small"): 1}))
    unknown = Refusal(Code.NO_CLASS, "container main asks for class small, which does not exist")
    assert await bind(p, pod) == unknown
    p.index.put(DeviceClass("small", memory=MiB(4096), cores=Percent(25)))
    assert await plain(p).bind(args(pod)) == unknown  # to a binder that knows no classes
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 4096, FULL]


async def test_a_family_that_is_switched_off_is_bound_without_a_charge(p: Plane) -> None:
    """Kube-scheduler still leaves the Binding to the extender."""
    unseen = p.create("p")
    assert await plain(p, dialects=NAMES - {"aliyun"}).bind(args(unseen)) is None
    assert (p.stored().spec.node_name, p.annotations(), p.free()) == ("n1", {}, [FULL, FULL])


# ── the lead ─────────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_binding_names_the_lead_under_which_it_was_decided() -> None:
    async with plane(term="vm_1/7") as p:
        assert await bind(p, p.submit("p")) is None
        assert p.annotations()["fractile.dev/leader"] == "vm_1/7"
        assert await bind(p, p.submit("none", container(memory=0))) is None
        assert p.annotations("none") == {"fractile.dev/leader": "vm_1/7"}


# ── pods that are hard to place ──────────────────────────────────────────────────────────────────────────────────────


def of_many_sizes(p: Plane, name: str, total: int, *, count: int, seed: int) -> Pod:
    """A pod of so many containers, each with a part of one card."""
    rng = random.Random(seed)
    shares = [rng.randint(100, 600) for _ in range(count)]
    limits = [{"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(share * total // sum(shares))} for share in shares]
    return p.submit(
        name, *(Container(name=f"c{n}", resources=ResourceRequirements(limits=each)) for n, each in enumerate(limits))
    )


def on_cards(*indexes: int) -> Narrowed:
    """A policy that takes these cards of a node."""

    def narrowed(request: PodRequest, node: str) -> PodRequest:
        selector = Selector(cards=tuple(card_uuid(node, index) for index in indexes))
        return msgspec.structs.replace(request, containers=tuple(only(selector, c) for c in request.containers))

    return narrowed


async def test_bind_refuses_a_pod_that_is_too_hard_to_place_in_a_bounded_time(p: Plane) -> None:
    p.node("n8", cards("n8", 8))
    found = of_many_sizes(p, "hostile", 8 * CARD_MEMORY - 80, count=24, seed=1)
    began = time.thread_time()
    answer = await bind(p, found, "n8")
    assert time.thread_time() - began < 0.5  # measured 0.05; the bar allows for a busy machine
    assert answer is not None
    assert "no way to place its 24 containers" in str(answer)
    assert p.entry(found) is None


@pytest.mark.parametrize("policy", [open_choice, on_cards(*range(8))], ids=["any card", "the policy's cards"])
async def test_a_filter_does_not_repeat_a_search_that_a_bind_gave_up(p: Plane, policy: Narrowed) -> None:
    p.node("n8", cards("n8", 8))
    found = of_many_sizes(p, "hostile", 8 * CARD_MEMORY - 80, count=24, seed=1)
    assert await plain(p, policy).bind(args(found, "n8")) is not None
    request, state = policy(request_of(found), "n8") or request_of(found), p.ledger.node("n8")
    assert state is not None
    unknown, known = Effort(easy=0), Effort(easy=0, dead_ends=p.ledger.dead_ends)
    assert not fits(request, state, unknown)
    assert not fits(request, state, known)
    assert known.spent < unknown.spent / 10


@pytest.mark.parametrize(
    ("used", "policy"),
    [pytest.param([], open_choice, id="any card"), pytest.param([100], on_cards(1, 2, 3), id="the policy's cards")],
)
async def test_a_bind_searches_longer_than_a_filter_for_cards_that_hold_the_pod(
    p: Plane, used: list[int], policy: Narrowed
) -> None:
    """Three cards are unused, and the pod takes all of them but a few MiB."""
    p.node("n3", cards("n3", len(used) + 3))
    in_use(p.ledger, "n3", *used)
    found = of_many_sizes(p, "tight", 3 * FULL, count=14, seed=11)
    request, state = policy(request_of(found), "n3") or request_of(found), p.ledger.node("n3")
    assert state is not None
    assert not fits(request, state, Effort())
    assert await plain(p, policy).bind(args(found, "n3")) is None
    *others, first, second, third = p.free("n3")
    assert others == [FULL - taken for taken in used]
    assert max(first, second, third) < 20
