"""Rules about how cards may be cut hold whatever comes and goes."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fractile.extender.filter import filter_nodes
from fractile.ledger import scan
from fractile.ledger.ledger import Ledger
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.sharing import SharingRule
from fractile.model.units import ContainerName, NodeName, PodUID
from fractile.policy.cards.plan import plan
from fractile.policy.cards.state import NodeState
from tests.builders import by_card, by_memory, by_share, card, cluster, request

NODE = NodeName("n1")
MEMORY = 8192  # MiB of a card
FRACTIONS = (Fraction(1, 4), Fraction(1, 2), Fraction(1))

rules = st.builds(
    SharingRule,
    st.integers(0, 4),
    st.lists(st.sampled_from(FRACTIONS), unique=True, max_size=3).map(lambda f: tuple(sorted(f))),
)
roles = st.sampled_from([Role.APP, Role.APP, Role.APP, Role.SIDECAR, Role.INIT])
containers = st.one_of(
    st.builds(by_memory, st.sampled_from([500, 1024, 2048, 2049, 4096, 8192]), role=roles),
    st.builds(by_share, st.sampled_from([2048, 4096]), st.sampled_from([10, 25, 26, 50, 60]), role=roles),
    st.builds(by_card, st.integers(1, 2), role=roles),
)


def pod_of(uid: str, asked: list[ContainerRequest]) -> PodRequest:
    named = [structs.replace(c, container=ContainerName(f"c{n}")) for n, c in enumerate(asked)]
    return request(*sorted(named, key=lambda c: c.role is Role.APP), uid=uid)


def slices_at_once(placement: Placement) -> dict[str, int]:
    """The most containers of the pod that hold a part of each card at the same time, phase by phase."""
    found: dict[str, int] = {}
    beside: list[str] = []
    for c in placement.containers:
        mine = [s.card for s in c.slices]
        for uuid in {*mine, *beside}:
            found[uuid] = max(found.get(uuid, 0), [*mine, *beside].count(uuid))
        if c.role is not Role.INIT:
            beside += mine
    return found


@settings(max_examples=300, deadline=None)
@given(rules, st.lists(st.lists(containers, min_size=1, max_size=3), min_size=1, max_size=8), st.data())
def test_no_card_is_cut_more_often_or_otherwise_than_its_rule_says(
    rule: SharingRule, pods: list[list[ContainerRequest]], data: st.DataObject
) -> None:
    ledger = ruled(rule)
    running: dict[PodUID, Placement] = {}
    for n, asked in enumerate(pods):
        pod = pod_of(f"uid-{n}", asked)
        chosen = plan(pod, state_of(ledger))
        if isinstance(chosen, Refusal):
            continue
        assert scan.now(ledger.arrays, scan.need_of(pod))[ledger.arrays.find(NODE)], "the filter would have missed it"
        assert ledger.assume(pod.uid, chosen) is None
        running[pod.uid] = chosen
        for container in chosen.containers:
            for part in container.slices:
                assert not rule.fractions or any(
                    MEMORY * f - 1024 < part.memory <= MEMORY * f and part.cores <= 100 * f for f in rule.fractions
                )
        if data.draw(st.booleans()):
            gone = data.draw(st.sampled_from(sorted(running)))
            ledger.release(gone)
            del running[gone]
        assert ledger.audit() == []
    sums: dict[str, int] = {}
    for placement in running.values():
        for uuid, count in slices_at_once(placement).items():
            sums[uuid] = sums.get(uuid, 0) + count
    assert not rule.max_slices or all(count <= rule.max_slices for count in sums.values())
    node = state_of(ledger)
    assert {c.uuid: c.slices for c in node.cards if c.slices} == sums


@settings(max_examples=200, deadline=None)
@given(
    rules, st.lists(st.sampled_from([1024, 2048, 4096]), max_size=8), st.sampled_from([1024, 2048, 3000, 4096, 8192])
)
def test_a_pod_is_refused_only_if_no_card_may_be_cut_for_it(rule: SharingRule, held: list[int], memory: int) -> None:
    ledger = ruled(rule)
    for n, amount in enumerate(held):
        other = request(by_memory(amount), uid=f"uid-{n}")
        chosen = plan(other, state_of(ledger))
        if not isinstance(chosen, Refusal):
            ledger.assume(other.uid, chosen)
    node = state_of(ledger)
    possible = any(
        c.free_memory >= memory
        and (not rule.max_slices or c.slices < rule.max_slices)
        and (not rule.fractions or any(MEMORY * f - 1024 < memory <= MEMORY * f for f in rule.fractions))
        for c in node.cards
    )
    asked = request(by_memory(memory), uid="uid-asked")
    verdict = plan(asked, node)
    assert bool(filter_nodes(asked, ["n1"], ledger).node_names) is possible
    assert isinstance(verdict, Placement) is possible
    if isinstance(verdict, Refusal):
        right_size = not rule.fractions or rule.admits(node.cards[0].memory, memory=memory, cores=0)
        assert verdict.resolvable is right_size


def ruled(rule: SharingRule) -> Ledger:
    ledger = cluster({"n1": [card("n1", n, memory=MEMORY) for n in range(2)]})
    ledger.share_by(lambda node, model: rule, sized=bool(rule.fractions))
    return ledger


def state_of(ledger: Ledger) -> NodeState:
    state = ledger.node(NODE)
    assert state is not None
    return state
