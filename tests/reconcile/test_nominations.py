"""Room that is kept for nominated pods: what it costs to know where they will go, and that what is known stays true."""

import random
import time
from statistics import median

import pytest
from msgspec.structs import replace

from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.device_class import DeviceClass
from fractile.model.placement import Placement, charges
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest
from fractile.model.units import MiB, PodUID
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.plan import plan
from fractile.reconcile.nominations import Claim, Nominations, Rank, rank
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.waiting_pods import WaitingPod, WaitingPods
from fractile.wire.kubernetes.objects import Pod
from tests.builders import Clock, by_class, by_memory, card, cluster, on_card, pod, request

BAR = 0.4  # s of processor time; measured 0.1, before 0.6 to 3
LAST = rank(0, "2027-01-01", PodUID("asks last"))


class World:
    """A node ``n`` with some cards, and pods that are nominated to it."""

    def __init__(self, cards: int = 8, memory: int = 80_000) -> None:
        self.clock = Clock()
        self.ledger: Ledger = cluster({x: [card(x, i, memory=memory) for i in range(cards)] for x in ("n", "other")})
        self.assigned_pods = AssignedPods(self.ledger)
        self.waiting = WaitingPods()
        self.classes = ClassIndex(self.ledger)
        self.nominations = Nominations(
            ledger=self.ledger,
            waiting=self.waiting,
            assigned_pods=self.assigned_pods,
            classes=self.classes,
            clock=self.clock,
        )

    def nominate(self, name: str, *containers: ContainerRequest, priority: int = 10) -> WaitingPod:
        made = WaitingPod(
            uid=PodUID(name),
            namespace="t",
            name=name,
            created="2026-01-01T00:00:00Z",
            request=request(*containers, uid=name),
            priority=priority,
            nominated="n",
        )
        self.waiting.put(made)
        return made

    def spent(self) -> int:
        """The looks of one call."""
        effort = Effort()
        self.nominations.claims("n", LAST, effort)
        return effort.spent


def many(count: int, seed: int) -> list[ContainerRequest]:
    return [by_memory(1 + (seed * 7 + j * 13) % 19, f"c{j}") for j in range(count)]


def hard(seed: int) -> list[ContainerRequest]:
    """Forty parts that fill eight cards to the last MiB, or do not."""
    rng = random.Random(seed)
    shares = [rng.randint(100, 600) for _ in range(40)]
    return [by_memory(max(1, share * 639_900 // sum(shares)), f"c{j}") for j, share in enumerate(shares)]


@pytest.mark.parametrize(
    ("pods", "calls"),
    [
        pytest.param([many(30, i) for i in range(100)], 2, id="100 pods of 30 containers"),
        pytest.param([many(250, i) for i in range(100)], 10, id="100 pods of 250 containers"),
        pytest.param([hard(i) for i in range(60)], 60, id="60 pods that are hard to place"),
    ],
)
def test_each_call_takes_a_bounded_time_and_some_calls_find_out_all(
    pods: list[list[ContainerRequest]], calls: int
) -> None:
    w = World()
    for i, containers in enumerate(pods):
        w.nominate(f"p{i:03}", *containers)
    took: list[float] = []
    for _ in range(calls):
        began = time.process_time()
        w.nominations.claims("n", LAST)
        took.append(time.process_time() - began)
    assert median(took) < BAR  # one of many may have a collection of garbage in it
    assert w.spent() == 0, "all of it is known"


def test_where_the_effort_of_a_call_is_over_the_next_one_goes_on() -> None:
    w = World()
    for name in "abc":
        w.nominate(name, *many(20, ord(name)))
    found = [len(w.nominations.claims("n", LAST, Effort(300))) for _ in range(4)]
    assert found == [1, 2, 3, 3]
    effort = Effort(1)
    effort.spend(1)
    w.ledger.drop_card(card("n", 7).uuid)
    assert w.nominations.claims("n", LAST, effort) == []


def test_what_is_known_is_kept_until_the_node_changes() -> None:
    w = World()
    w.nominate("p", by_memory(5))
    w.nominate("q", by_memory(6))
    assert w.spent() > 0
    assert w.spent() == 0
    w.ledger.observe(PodUID("elsewhere"), on_card(0, 10, node="other"))
    assert w.spent() == 0
    w.ledger.observe(PodUID("here"), on_card(0, 10, node="n"))
    assert w.spent() > 0
    w.ledger.drop_card(card("n", 7).uuid)
    assert w.spent() > 0
    assert w.spent() == 0


def test_a_pod_that_comes_between_has_only_those_after_it_placed_again() -> None:
    w = World()
    w.nominate("a", *many(20, 1), priority=30)
    w.nominate("c", by_memory(5), priority=10)
    both = w.spent()
    w.nominate("b", by_memory(5), priority=20)
    assert 0 < w.spent() < both // 2


def test_a_pod_of_the_middle_sees_those_before_it_only() -> None:
    w = World()
    names = ["a", "b", "c"]
    found = {name: w.nominate(name, by_memory(10 + i), priority=30 - i) for i, name in enumerate(names)}
    for order in (names, reversed(names)):
        for name in order:
            one = found[name]
            claims = w.nominations.claims("n", rank(one.priority, one.created, one.uid))
            assert [c[0].memory for c in claims] == [10, 11, 12][: names.index(name)]


def test_whatever_changes_the_claims_are_those_of_one_that_was_never_asked() -> None:
    """Pods come and go, are nominated, leave, are promised to leave, and classes change."""
    w = World(cards=2, memory=100)
    promised: dict[str, tuple[float, frozenset[PodUID]]] = {}
    rng = random.Random(3)
    for _ in range(1500):
        uid, held = f"p{rng.randrange(6)}", PodUID(f"h{rng.randrange(4)}")
        match rng.randrange(8):
            case 0 | 1:
                asked = by_class("small") if rng.random() < 0.3 else by_memory(rng.choice((20, 50, 90)))
                w.nominate(uid, asked, priority=rng.randrange(3))
            case 2:
                w.waiting.discard(PodUID(uid))
            case 3:
                w.ledger.observe(held, on_card(rng.randrange(2), rng.choice((30, 60)), node="n"))
                w.assigned_pods.changed(running(held, leaving=rng.random() < 0.5))
            case 4:
                w.ledger.release(held)
                w.assigned_pods.gone(held)
            case 5:
                promised[uid] = w.clock.now + 60, frozenset({held})
                w.nominations.remember(PodUID(uid), {"n": frozenset({held})})
            case 6:
                w.classes.put(DeviceClass("small", memory=MiB(rng.choice((10, 40)))))
            case _:
                w.clock.now += rng.choice((1, 100))
        asking = rank(rng.randrange(3), "2026-01-01T00:00:00Z", PodUID(f"p{rng.randrange(6)}"))
        assert w.nominations.claims("n", asking) == expected(w, promised, asking)


def running(uid: PodUID, *, leaving: bool) -> Pod:
    made = pod(uid, uid=uid, node="n", phase="Running")
    at = "2026-01-01T00:01:00Z" if leaving else None
    return replace(made, metadata=replace(made.metadata, deletion_timestamp=at))


def expected(w: World, promised: dict[str, tuple[float, frozenset[PodUID]]], asking: Rank) -> list[Claim]:
    """Each pod placed again, one after the other."""
    found: list[Placement] = []
    order = sorted(w.waiting.nominated_to("n"), key=lambda one: rank(one.priority, one.created, one.uid))
    for one in order:
        if rank(one.priority, one.created, one.uid) >= asking or isinstance(one.request, Refusal):
            continue
        gone = {r.uid for r in w.assigned_pods.on("n") if r.leaving and r.priority < one.priority}
        until, victims = promised.get(one.uid, (-1.0, frozenset[PodUID]()))
        asked = resolve(one.request, w.classes)
        state = w.ledger.imagine("n", gone=gone | (victims if until >= w.clock.now else set()), come=found)
        assert state is not None
        placed = asked if isinstance(asked, Refusal) else plan(asked, state)
        found += [placed] if isinstance(placed, Placement) else []
    return [charges(one) for one in found]
