"""Classes under random pods: the filter agrees with each node's own verdict, overlapping classes never count a card
twice, and non-GPU devices are never given to more pods than share them."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fractile.extender.filter import filter_nodes
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card, DeviceKind
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.placement import Placement, charges
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest, Role
from fractile.model.units import CardUUID, MiB, NodeName, Percent, PodUID
from fractile.policy.cards.plan import plan
from fractile.policy.cards.reasons import no_cards
from fractile.policy.cards.verify import mismatch
from fractile.wire.fractile import placement as wire
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from tests.builders import Clock, by_card, by_class, by_memory, by_share, device, request

checked = settings(max_examples=200, deadline=None)

LARGE = PropertyRequirement("memory", Operator.GE, ("12Mi",))
A = PropertyRequirement("model", Operator.IN, ("A",))
CLASSES = (
    DeviceClass("any"),
    DeviceClass("large", requirements=(LARGE,)),
    DeviceClass("a", requirements=(A,)),
    DeviceClass("part", memory=MiB(3)),
    DeviceClass("large.part", requirements=(LARGE,), memory=MiB(5), cores=Percent(40)),
    DeviceClass("time", requirements=(A,), cores=Percent(50)),
    DeviceClass("ib", device_type="infiniband"),
    DeviceClass(
        "ib.first", device_type="infiniband", requirements=(PropertyRequirement("index", Operator.IN, ("0",)),)
    ),
)
GPUS = [c.name for c in CLASSES if c.device_type == "gpu"]
OTHERS = [c.name for c in CLASSES if c.device_type != "gpu"]
NAMES = [f"n{i}" for i in range(4)]

_cards = st.tuples(st.sampled_from([8, 12]), st.sampled_from("AB"))
_nodes = st.tuples(st.lists(_cards, max_size=3), st.lists(st.integers(1, 2), max_size=2))
ledgers = st.lists(_nodes, min_size=1, max_size=4).map(lambda nodes: _ledger(nodes))

_role = st.sampled_from([Role.APP, Role.APP, Role.SIDECAR, Role.INIT])


def _of_class(name: str, units: int, role: Role) -> list[ContainerRequest]:
    return [by_class(name, units, slot=DEVICE_SLOT if name in OTHERS else GPU_SLOT, role=role)]


def _beside(gpu: list[ContainerRequest], other: list[ContainerRequest]) -> list[ContainerRequest]:
    return [*gpu, *(structs.replace(c, role=gpu[0].role) for c in other)]


_plain: list[list[ContainerRequest]] = [[by_memory(4)], [by_card(1)], [by_share(2, 60)]]
_gpu = st.one_of(st.builds(_of_class, st.sampled_from(GPUS), st.integers(1, 2), _role), st.sampled_from(_plain))
_other = st.builds(_of_class, st.sampled_from(OTHERS), st.integers(1, 2), _role)
_both = st.builds(_beside, _gpu, _other)
pods = st.lists(st.one_of(_gpu, _other, _both), min_size=1, max_size=3).map(lambda containers: _pod(containers))


def _ledger(nodes: Sequence[tuple[list[tuple[int, str]], list[int]]]) -> Ledger:
    ledger = Ledger(Clock())
    for n, (cards, devices) in enumerate(nodes):
        name = NodeName(f"n{n}")
        for i, (memory, model) in enumerate(cards):
            ledger.put_card(name, Card(CardUUID(f"GPU-{n}-{i}"), i, model, MiB(memory)))
        for i, shares in enumerate(devices):
            ledger.put_card(name, device(name, i, shares=shares))
    return ledger


def _pod(containers: list[list[ContainerRequest]]) -> PodRequest:
    named = [[structs.replace(c, container=f"c{i}") for c in one] for i, one in enumerate(containers)]
    first = [c for one in named if one[0].role is not Role.APP for c in one]
    return request(*first, *(c for one in named if one[0].role is Role.APP for c in one))


def _resolved(asked: PodRequest, ledger: Ledger) -> PodRequest | Refusal:
    index = ClassIndex(ledger)
    for cls in CLASSES:
        index.put(cls)
    return resolve(asked, index)


@checked
@given(pods, ledgers)
def test_the_filter_agrees_with_the_plan_of_each_node(pod: PodRequest, ledger: Ledger) -> None:
    asked = _resolved(pod, ledger)
    if isinstance(asked, Refusal):
        return
    found = filter_nodes(asked, NAMES, ledger)
    assert len([*(found.node_names or ()), *found.failed, *found.unresolvable]) == len(NAMES)
    for name in NAMES:
        state = ledger.node(name)
        verdict = plan(asked, state) if state else no_cards()
        if isinstance(verdict, Placement):
            assert name in (found.node_names or ())
            assert mismatch(pod, verdict) is None, "who is bound is believed, without knowing the classes"
            assert wire.decode(wire.encode(verdict)) == verdict
        elif state and (state.cards or not asked.gpus) and (state.others or asked.gpus):
            refused = found.failed if verdict.resolvable else found.unresolvable
            assert refused[name] == verdict.message
        else:
            assert found.failed[name] in (no_cards().message, no_cards(DeviceKind.OTHER).message, verdict.message)


@checked
@given(st.lists(pods, min_size=5, max_size=25), ledgers)
def test_no_card_and_no_device_is_ever_promised_twice(asked: list[PodRequest], ledger: Ledger) -> None:
    given: list[Placement] = []
    index = ClassIndex(ledger)
    for cls in CLASSES:
        index.put(cls)
    for i, pod in enumerate(asked):
        known = resolve(structs.replace(pod, uid=PodUID(f"u{i}")), index)
        if isinstance(known, Refusal):
            continue
        for name in filter_nodes(known, NAMES, ledger).node_names or ():
            state = ledger.node(name)
            chosen = plan(known, state) if state else None
            assert isinstance(chosen, Placement)
            assert ledger.assume(known.uid, chosen) is None
            given.append(chosen)
            break
    costs = [c for placement in given for c in charges(placement)]
    for card in ledger.all_cards():
        mine = [c for c in costs if c.card == card.uuid]
        if card.type == "gpu":
            assert sum(c.memory for c in mine) <= card.memory
            assert sum(c.cores for c in mine) + any(c.coreless for c in mine) <= 100
            assert not any(c.shares for c in mine)
        else:
            assert sum(c.shares for c in mine) <= card.shares
            assert not any(c.memory or c.cores for c in mine)
    assert ledger.audit() == []


@checked
@given(pods, ledgers)
def test_whoever_is_placed_by_class_is_on_cards_of_that_class(pod: PodRequest, ledger: Ledger) -> None:
    asked = _resolved(pod, ledger)
    if isinstance(asked, Refusal):
        return
    cards = {c.uuid: c for c in ledger.all_cards()}
    for name in NAMES:
        state = ledger.node(name)
        verdict = plan(asked, state) if state else None
        if not isinstance(verdict, Placement):
            continue
        for c in asked.containers:
            for s in verdict.slices_for(c):
                kind = c.request.device_class
                assert (cards[s.card].type == "gpu") is (c.request.shares == 0)
                assert not kind.startswith("large") or cards[s.card].memory == 12
                assert kind not in ("a", "time") or cards[s.card].model == "A"
                assert kind != "ib.first" or cards[s.card].index == 0
