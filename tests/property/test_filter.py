"""The scan over all nodes and the filter, held against the decision about each node alone."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.extender.filter import filter_nodes
from fractile.ledger import scan
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MiB, NodeName, PodUID
from fractile.policy.cards.choice import choose
from fractile.policy.cards.plan import plan
from fractile.policy.cards.reasons import no_cards
from fractile.policy.cards.state import emptied
from tests.builders import Clock, piece, placement
from tests.builders import given as holds
from tests.property.strategies import pod_requests

checked = settings(max_examples=300, deadline=None)

SLOTS = 2

# A card: its size, how much of it is in use, with how many of its cores and slots, and its model; a node: up to four.
_cards = st.tuples(
    st.sampled_from([8, 12]),
    st.sampled_from([0, 0, 0, 1, 3, 5, 8, 12]),
    st.sampled_from([0, 0, 30, 60, 100]),
    st.sampled_from("AB"),
    st.sampled_from([0, 0, 0, 1, SLOTS]),
)
_nodes = st.lists(st.lists(_cards, max_size=4), min_size=1, max_size=5)
ledgers = _nodes.map(lambda nodes: _ledger(nodes))


def _ledger(nodes: Sequence[Sequence[tuple[int, int, int, str, int]]]) -> Ledger:
    ledger = Ledger(Clock(), slots=SLOTS)
    for n, cards in enumerate(nodes):
        for i, (memory, used, cores, model, slots) in enumerate(cards):
            name, uuid = NodeName(f"n{n}"), CardUUID(f"GPU-{n}-{i}")
            ledger.put_card(name, Card(uuid=uuid, index=i, model=model, memory=MiB(memory)))
            if used:
                held = placement(holds("main", piece(uuid, min(used, memory), cores, slots)), node=name)
                assert ledger.observe(PodUID(f"filler-{n}-{i}"), held) is None
    return ledger


NAMES = [f"n{i}" for i in range(5)]


@checked
@given(pod_requests(), ledgers)
def test_the_filter_agrees_with_the_plan_of_each_node(request: PodRequest, ledger: Ledger) -> None:
    found = filter_nodes(request, NAMES, ledger)
    assert len([*(found.node_names or ()), *found.failed, *found.unresolvable]) == 5
    for name in NAMES:
        state = ledger.node(name)
        verdict = no_cards() if state is None else plan(request, state)
        if isinstance(verdict, Placement):
            assert name in (found.node_names or ())
        elif verdict.resolvable:
            assert found.failed[name] == verdict.message
        else:
            assert found.unresolvable[name] == verdict.message


@checked
@given(pod_requests(), ledgers)
def test_the_scan_is_necessary_and_where_it_says_so_sufficient(request: PodRequest, ledger: Ledger) -> None:
    need = scan.need_of(request)
    now, ever = scan.now(ledger.arrays, need), scan.ever(ledger.arrays, need)
    for name in NAMES:
        state = ledger.node(name)
        if state is None:
            continue
        column = ledger.arrays.find(name)
        fits, could = choose(request, state) is not None, choose(request, emptied(state)) is not None
        assert not fits or now[column]
        assert not could or ever[column]
        if need.exact:
            assert fits == now[column]
            assert could == ever[column]


@checked
@given(pod_requests(), ledgers)
def test_what_is_planned_can_be_assumed_and_what_is_refused_cannot_be_filtered(
    request: PodRequest, ledger: Ledger
) -> None:
    for name in NAMES:
        state = ledger.node(name)
        verdict = None if state is None else plan(request, state)
        if isinstance(verdict, Placement):
            assert ledger.assume(request.uid, verdict) is None
            assert filter_nodes(request, NAMES, ledger).node_names == [name]
            ledger.forget(request.uid)
        assert ledger.audit() == []


@checked
@given(pod_requests(), ledgers, st.sampled_from([1, 2, 3]))
def test_pods_bound_one_after_another_never_exceed_a_card(request: PodRequest, ledger: Ledger, most: int) -> None:
    """The same pod, again and again, until no node has room."""
    for i in range(40):
        asked = PodRequest(PodUID(f"u{i}"), request.namespace, f"p{i}", request.dialect, request.containers)
        fitting = filter_nodes(asked, NAMES, ledger).node_names or []
        if not fitting:
            break
        state = ledger.node(fitting[i % min(most, len(fitting))])
        assert state is not None
        verdict = plan(asked, state)
        assert not isinstance(verdict, Refusal)
        assert ledger.assume(asked.uid, verdict) is None
    states = [s for s in map(ledger.node, NAMES) if s is not None]
    assert all(c.free_memory >= 0 and c.free_cores >= 0 for s in states for c in s.cards)
    assert ledger.audit() == []
