"""Quotas: the filter against the decision about each node alone, and no order of filters and binds passes a quota."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fractile.extender import filter as step
from fractile.extender.filter import filter_nodes
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.model.placement import Placement
from fractile.model.quota import NamespaceQuota, NodePlace, Quota, QuotaLimit, QuotaOwner, owner_of
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MiB, NodeName, PodUID
from fractile.policy.cards.plan import plan
from fractile.policy.cards.reasons import no_cards
from fractile.policy.quota import cost, plan_within
from tests.builders import Clock, by_card, by_memory, piece, placement, request
from tests.builders import given as holds
from tests.property.strategies import pod_requests

checked = settings(max_examples=300, deadline=None)

NAMES = [f"n{i}" for i in range(5)]
PLACES = [NodePlace(), NodePlace("x"), NodePlace("y"), NodePlace("", "A"), NodePlace("x", "B")]

# A card: its size, how much of it is in use and by whom, and its model; a node: its labels and up to four cards.
_cards = st.tuples(
    st.sampled_from([8, 12]),
    st.sampled_from([0, 0, 0, 3, 8]),
    st.sampled_from(["default", "other"]),
    st.sampled_from("AB"),
)
_nodes = st.lists(st.tuples(st.sampled_from(PLACES), st.lists(_cards, max_size=4)), min_size=1, max_size=5)
_percents = st.sampled_from([0, 30, 50, 100, 150, 200, 300])
_quotas = st.builds(
    NamespaceQuota,
    pools=st.none() | st.sampled_from([("x",), ("x", "y"), ("nowhere",)]),
    limits=st.none()
    | st.dictionaries(st.sampled_from(["A", "B", "*"]), _percents).map(
        lambda limits: tuple(QuotaLimit(name, percent) for name, percent in limits.items())
    ),
)


def _ledger(nodes: Sequence[tuple[NodePlace, Sequence[tuple[int, int, str, str]]]], quota: NamespaceQuota) -> Ledger:
    ledger = Ledger(Clock())
    for n, (place, cards) in enumerate(nodes):
        ledger.usage.put_place(NodeName(f"n{n}"), place)
        for i, (memory, used, namespace, model) in enumerate(cards):
            name, uuid = NodeName(f"n{n}"), CardUUID(f"GPU-{n}-{i}")
            ledger.put_card(name, Card(uuid=uuid, index=i, model=model, memory=MiB(memory)))
            if used:
                held = placement(holds("main", piece(uuid, used)), node=name)
                assert ledger.observe(PodUID(f"filler-{n}-{i}"), held, QuotaOwner(namespace)) is None
    ledger.usage.limit(Quota({"default": quota}))
    return ledger


ledgers = st.builds(_ledger, _nodes, _quotas)


@checked
@given(pod_requests(), ledgers)
def test_the_filter_within_a_quota_agrees_with_the_plan_of_each_node(asked: PodRequest, ledger: Ledger) -> None:
    found = filter_nodes(asked, NAMES, ledger)
    assert len([*(found.node_names or ()), *found.failed, *found.unresolvable]) == 5
    left = ledger.usage.allowance(asked)
    for name in NAMES:
        chosen = left if isinstance(left, Refusal) else _alone(asked, name, ledger)
        if isinstance(chosen, Placement):
            assert name in (found.node_names or ()), name
            continue
        assert name not in (found.node_names or ()), name
        said = (found.failed if chosen.resolvable else found.unresolvable).get(name)
        if chosen.code is Code.QUOTA:
            assert said is not None
            assert "namespace default may" in said
        else:
            assert said == chosen.message


def _alone(asked: PodRequest, name: str, ledger: Ledger) -> Placement | Refusal:
    state, left = ledger.node(name), ledger.usage.allowance(asked)
    assert not isinstance(left, Refusal)
    return no_cards() if state is None else plan_within(asked, state, ledger.usage.place(name), left)


@checked
@given(pod_requests(), ledgers)
def test_the_best_of_many_nodes_are_those_that_fit_within_the_quota(asked: PodRequest, ledger: Ledger) -> None:
    """The path for clusters of many nodes, with a limit of one node instead of a hundred."""
    usual, step.BEST = step.BEST, 1
    try:
        few = filter_nodes(asked, NAMES, ledger).node_names or []
    finally:
        step.BEST = usual
    every = filter_nodes(asked, NAMES, ledger).node_names or []
    assert bool(few) == bool(every)
    assert set(few) <= set(every)


@checked
@given(pod_requests(), ledgers)
def test_what_the_plan_gives_the_ledger_does_not_refuse(asked: PodRequest, ledger: Ledger) -> None:
    left = ledger.usage.allowance(asked)
    for name in NAMES:
        state = ledger.node(name)
        if isinstance(left, Refusal) or state is None:
            continue
        chosen = plan_within(asked, state, ledger.usage.place(name), left)
        if isinstance(chosen, Placement):
            assert ledger.assume(asked.uid, chosen, owner_of(asked)) is None
            ledger.forget(asked.uid)


_STEPS = ("filter", "bind", "bind", "confirm", "forget", "move", "moved", "moved", "observe", "release")
_pods = st.lists(
    st.tuples(
        st.sampled_from(_STEPS),
        st.integers(0, 9),
        st.sampled_from(NAMES[:3]),
    ),
    max_size=60,
)
_kinds = [by_memory(3), by_memory(8), by_card(1), by_card(2)]


@checked
@given(_pods, st.integers(0, 400), st.integers(0, 500))
def test_no_order_of_filters_binds_and_ends_passes_a_quota(
    steps: Sequence[tuple[str, int, str]], of_a: int, in_all: int
) -> None:
    """Ten pods of one namespace at once; binds act on filters of any age, as kube-scheduler's do."""
    limits = (QuotaLimit("A", of_a), QuotaLimit("*", in_all))
    nodes = [(NodePlace(), [(8, 0, "", "A"), (12, 0, "", "B"), (8, 0, "", "A")])] * 3
    ledger = _ledger(nodes, NamespaceQuota(limits=limits))
    for what, n, name in steps:
        asked = structs.replace(request(_kinds[n % 4], name=f"p{n}"), namespace="default")
        if what == "filter":
            filter_nodes(asked, NAMES, ledger)
        elif what == "bind":
            _bind(asked, name, ledger)
        else:
            _happen(what, asked, name, ledger)
        held = _recount(ledger)
        if not any(entry.moving for _, entry in ledger.entries()):  # until a move is seen it counts at both places
            assert held.get("A", 0) <= of_a
            assert sum(held.values()) <= in_all
        assert {model: percent for (_, model), percent in ledger.usage.held("default").items()} == held


def _bind(asked: PodRequest, name: str, ledger: Ledger) -> None:
    left, state = ledger.usage.allowance(asked), ledger.node(name)
    if isinstance(left, Refusal) or state is None or ledger.entry(asked.uid):
        return
    chosen = plan_within(asked, state, ledger.usage.place(name), left)
    if isinstance(chosen, Placement):
        assert ledger.assume(asked.uid, chosen, owner_of(asked)) is None


def _happen(what: str, asked: PodRequest, name: str, ledger: Ledger) -> None:
    """What else befalls a pod that holds something, or none."""
    entry, state = ledger.entry(asked.uid), ledger.node(name)
    if what == "confirm":
        ledger.confirm(asked.uid)
    elif what == "forget":
        ledger.forget(asked.uid)
    elif what == "release":
        ledger.release(asked.uid)
    elif what == "moved":
        ledger.moved(asked.uid)
    elif what == "observe" and entry is not None:
        ledger.observe(asked.uid, entry.placement, owner_of(asked))
    elif what == "move" and entry is not None and state is not None:
        chosen = plan(asked, state)  # kubelet knows of no quota
        if isinstance(chosen, Placement):
            ledger.move(asked.uid, chosen)


def _recount(ledger: Ledger) -> dict[str, int]:
    """By model, from the entries alone."""
    cards = {c.uuid: c for name in NAMES for c in ledger.cards(name)}
    held: dict[str, int] = {}
    for _, entry in ledger.entries():
        for charge in entry.charges:
            card = cards[charge.card]
            held[card.model] = held.get(card.model, 0) + cost(charge.memory, charge.cores, card.memory)
    return held
