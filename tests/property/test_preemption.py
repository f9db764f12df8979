"""Who must leave: after the victims have left the pod fits, and no set is cheaper; everything is tried to find one."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from fractile.extender.preempt import Preemption
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.model.placement import Placement
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.policy.cards.choice import fits
from fractile.policy.cards.parts import card_numbers, parts_of
from fractile.policy.cards.plan import plan
from fractile.policy.preemption import Candidate, Cost, cost_of, fewest
from fractile.reconcile.nominations import Nominations
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes.extender import MetaPod, MetaVictims
from fractile.wire.kubernetes.objects import Pod
from tests.builders import Clock, card, cluster, pod
from tests.property.strategies import pod_requests

NODE = "n"
WANTED = 10  # priority of the pod that shall fit

crowd = st.lists(
    st.tuples(
        pod_requests(most=2),
        st.sampled_from([1, 1, 1, 1, 2, 3, WANTED]),  # priority
        st.sampled_from([False, False, True]),  # a budget protects it
        st.sampled_from([False, False, False, True]),  # it is leaving
        st.integers(0, 3),  # created
    ),
    max_size=7,
)


def world(sizes: list[int], pods: list[tuple[PodRequest, int, bool, bool, int]]) -> tuple[Ledger, list[Candidate]]:
    """A node with cards of these sizes and the pods that found room, one after another."""
    ledger = cluster({NODE: [card(NODE, i, memory=size, model="AB"[i % 2]) for i, size in enumerate(sizes)]})
    candidates: list[Candidate] = []
    for i, (request, priority, violates, leaving, created) in enumerate(pods):
        state = ledger.node(NODE)
        placed = plan(request, state) if state else None
        uid = PodUID(f"u{i}")
        if isinstance(placed, Placement) and ledger.assume(uid, placed) is None:
            entry = ledger.entry(uid)
            assert entry is not None
            ledger.confirm(uid)
            candidates.append(
                Candidate(uid, priority, f"2026-01-0{created + 1}", violates, leaving, charges=entry.charges)
            )
    return ledger, [c for c in candidates if c.priority < WANTED]


def fitting(ledger: Ledger, request: PodRequest, gone: frozenset[PodUID]) -> bool:
    state = ledger.imagine(NODE, gone=gone)
    return state is not None and fits(request, state)


def best_of_all(ledger: Ledger, request: PodRequest, candidates: list[Candidate]) -> Cost | None:
    """The least cost of all sets that suffice."""
    sets = (s for size in range(len(candidates) + 1) for s in combinations(candidates, size))
    costs = [cost_of(s) for s in sets if fitting(ledger, request, frozenset(c.uid for c in s))]
    return min(costs, default=None)


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from([8, 12]), min_size=1, max_size=3), crowd, pod_requests(most=2))
def test_the_victims_make_room_and_no_set_is_cheaper(
    sizes: list[int], pods: list[tuple[PodRequest, int, bool, bool, int]], asking: PodRequest
) -> None:
    ledger, candidates = world(sizes, pods)
    needed = len(parts_of(asking.containers, card_numbers(asking.containers)))
    found = fewest(candidates, lambda gone: fitting(ledger, asking, gone), cards=needed)
    wanted = best_of_all(ledger, asking, candidates)
    if found is None:
        assert wanted is None
        return
    assert wanted is not None
    assert cost_of(found) == wanted
    assert [c.level for c in found] == sorted((c.level for c in found), reverse=True)
    # It is so by the ledger itself: they leave, and the pod is placed.
    for victim in found:
        ledger.release(victim.uid)
    state = ledger.node(NODE)
    assert state is not None
    placed = plan(asking, state)
    assert isinstance(placed, Placement)
    assert ledger.assume(asking.uid, placed) is None
    assert ledger.audit() == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([8, 12]), min_size=1, max_size=3), crowd)
def test_what_is_imagined_is_what_the_ledger_becomes(
    sizes: list[int], pods: list[tuple[PodRequest, int, bool, bool, int]]
) -> None:
    ledger, candidates = world(sizes, pods)
    before = ledger.node(NODE)
    gone = [c.uid for c in candidates[::2]]
    entries = [e for uid in gone if (e := ledger.entry(uid)) is not None]
    imagined = ledger.imagine(NODE, gone=gone)
    assert ledger.node(NODE) == before, "it was imagined only"
    for uid in gone:
        ledger.release(uid)
    assert ledger.node(NODE) == imagined
    assert ledger.imagine(NODE, come=[e.placement for e in entries]) == before


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.sampled_from([8, 12]), min_size=1, max_size=3),
    crowd,
    pod_requests(most=2),
    st.lists(st.integers(0, 9), max_size=4),
)
def test_an_answer_names_pods_of_lower_priority_and_those_that_kube_scheduler_must_evict_anyway(
    sizes: list[int],
    pods: list[tuple[PodRequest, int, bool, bool, int]],
    asking: PodRequest,
    named: list[int],
) -> None:
    ledger, candidates = world(sizes, pods)
    assigned_pods = AssignedPods(ledger)
    for c in candidates:
        assigned_pods.changed(_bound(c))
    proposed = [f"u{i}" if i < 7 else f"foreign-{i}" for i in dict.fromkeys(named)]
    proposed = [uid for uid in proposed if uid.startswith("foreign") or assigned_pods.find(PodUID(uid))]
    waiting = WaitingPods()
    index = ClassIndex(ledger)
    nominations = Nominations(ledger=ledger, waiting=waiting, assigned_pods=assigned_pods, classes=index, clock=Clock())
    preemption = Preemption(ledger, assigned_pods, nominations)
    wanted = _prioritised(pod("asking"), WANTED)
    answer = preemption.victims(wanted, asking, {NODE: MetaVictims([MetaPod(uid) for uid in proposed])})
    if NODE not in answer:
        assert best_of_all(ledger, asking, candidates) is None
        return
    uids = [p.uid for p in answer[NODE].pods or ()]
    assert len(uids) == len(set(uids))
    assert {uid for uid in proposed if uid.startswith("foreign")} <= set(uids)
    assert set(uids) <= {c.uid for c in candidates} | set(proposed)
    assert fitting(ledger, asking, frozenset(map(PodUID, uids)))


def _prioritised(found: Pod, priority: int) -> Pod:
    return replace(found, spec=replace(found.spec, priority=priority))


def _bound(c: Candidate) -> Pod:
    made = pod(c.uid, uid=c.uid, node=NODE, created=c.started)
    return _prioritised(made, c.priority)
