"""What is still to happen: by the pods that are wanted, and by who would fit."""

from fractions import Fraction

import msgspec

from fractile.dialects.aliyun import MEMORY
from tests.chaos.judging import settled
from tests.chaos.judging.snapshot import SeenPod
from tests.chaos.world import NODES, SIZE, but, seen_pod, world


def left(*pods: SeenPod, wanted: str = "") -> list[str]:
    seen = world(*pods)
    names = wanted.split() if wanted else [p.name for p in seen.pods]
    return settled.unsettled(seen, dict.fromkeys(names, "aliyun-part"))


FULL = [seen_pod(f"full-{n}-{c}", memory=SIZE - 1000, node=n, card=c) for n in NODES for c in range(2)]


def test_pods_that_run_leave_nothing_to_do() -> None:
    assert left(seen_pod("a", node="n1"), seen_pod("b", node="n2")) == []


def test_a_pod_that_fits_and_is_not_bound_is_waited_for() -> None:
    assert left(seen_pod("a", memory=SIZE)) == ["a would fit on n1, n2 and is not bound"]


def test_a_pod_that_fits_on_no_card_may_wait_although_the_sum_would_do() -> None:
    assert left(*FULL, seen_pod("a", memory=1500)) == []
    assert left(*FULL, seen_pod("a", memory=1000)) != []


def test_a_pod_for_which_the_sum_of_kube_scheduler_does_not_suffice_may_wait() -> None:
    assert left(seen_pod("a", beside={"example.com/other": "1"})) == []


def test_a_node_that_does_not_show_all_its_cards_is_waited_for() -> None:
    seen = world(seen_pod("a", node="n1"))
    less = but(seen, allocatable={**seen.allocatable, "n2": {MEMORY: Fraction(SIZE)}})
    assert settled.unsettled(less, {"a": ""}) == ["n2 does not show all its cards"]
    node, card = seen.cards[0]
    sick = but(seen, cards=((node, msgspec.structs.replace(card, healthy=False)), *seen.cards[1:]))
    assert settled.unsettled(sick, {"a": ""}) == ["n1 does not show all its cards"]


def test_a_bound_pod_must_run() -> None:
    assert left(seen_pod("a", node="n1", phase="Pending")) == ["a is bound to n1 and does not run"]


def test_what_is_wanted_must_exist_and_what_is_not_must_go() -> None:
    assert left(seen_pod("a", node="n1"), wanted="a b") == ["b does not exist"]
    assert left(seen_pod("a", node="n1"), seen_pod("b", node="n1"), wanted="a") == ["b is to go and is still there"]
    going = seen_pod("a", node="n1", more={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert left(going) == ["a is to go and is still there"]


def test_refused_is_who_failed_without_ever_having_run() -> None:
    assert settled.refused(seen_pod("a", node="n1", phase="Failed"))
    assert not settled.refused(seen_pod("a", node="n1", phase="Failed", started=True))
    assert not settled.refused(seen_pod("a", node="n1"))
