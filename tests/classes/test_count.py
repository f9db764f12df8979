"""What a class has, counted over columns, against the plain rules one device at a time."""

from collections.abc import Sequence
from fractions import Fraction

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.classes.count import CountedDevices, count, count_by_node, most_units, remark
from fractile.classes.table import Table
from fractile.ledger.ledger import Ledger
from fractile.model.card import GPU, Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.placement import Placement
from fractile.model.sharing import FREE, SharingRule
from fractile.model.units import MiB, NodeName, Percent, PodUID
from fractile.policy.cards.state import CardState
from fractile.policy.classes import matches, units_of
from tests.builders import Clock, piece
from tests.builders import given as slices_of
from tests.classes.class_world import device, gpu, put

V100 = PropertyRequirement("model", Operator.IN, ("Tesla V100",))
LARGE = PropertyRequirement("memory", Operator.GT, ("20GiB",))


def world(cards: Sequence[Card], *, sick: Sequence[Card] = ()) -> tuple[Ledger, Table]:
    ledger = Ledger(Clock())
    table = Table(ledger)
    for card in [*cards, *sick]:
        show(ledger, table, card, healthy=card not in sick)
    return ledger, table


def show(ledger: Ledger, table: Table, card: Card, *, healthy: bool = True) -> None:
    put(ledger, card, healthy=healthy)
    table.put(card.uuid.lower(), card, "Available" if healthy else "Unhealthy")


def take(ledger: Ledger, card: Card, memory: int, cores: int = 0, *, name: str = "") -> None:
    """A pod with so much of the card; of a non-GPU device, ``memory`` shares."""
    held = piece(card.uuid, memory, cores)
    if card.type != GPU:
        held = type(held)(card.uuid, MiB(0), shares=memory)
    uid = PodUID(name or f"pod-{card.uuid}-{memory}-{cores}")
    refusal = ledger.observe(uid, Placement(card.node, (slices_of("main", held),)))
    assert refusal is None, refusal


def test_devices_and_units_are_counted_in_all_free_and_unhealthy() -> None:
    cards = [gpu("n1", 0), gpu("n1", 1), gpu("n2", 0), gpu("n2", 1, model="Tesla T4")]
    ledger, table = world(cards, sick=[gpu("n3", 0)])
    take(ledger, cards[0], 4096)
    table.refresh()
    assert count(DeviceClass("v100", requirements=(V100,)), table) == CountedDevices(4, 2, 1, 3, 2)
    slices = DeviceClass("part", requirements=(V100,), memory=MiB(4096))
    assert count(slices, table) == CountedDevices(4, 2, 1, 12, 11)


def test_a_unit_of_several_devices_is_on_one_node() -> None:
    cards = [gpu("n1", 0), gpu("n1", 1), gpu("n1", 2), gpu("n2", 0)]
    ledger, table = world(cards)
    table.refresh()
    pair = DeviceClass("pair", requirements=(V100,), count=2)
    assert count(pair, table).units == 1
    take(ledger, cards[0], 1, 0)
    take(ledger, cards[1], 1, 0)
    table.refresh()
    assert count(pair, table).free_units == 0


def test_the_slices_of_one_unit_are_of_different_devices() -> None:
    assert most_units((10, 1), 2) == 1
    assert most_units((3, 3, 3), 2) == 4
    assert most_units((5,), 2) == 0
    assert most_units((), 1) == 0


def test_shares_of_other_devices_are_units() -> None:
    cards = [device("n1", 0), device("n1", 1)]
    ledger, table = world(cards)
    take(ledger, cards[0], 3)
    table.refresh()
    assert count(DeviceClass("hca", device_type="hca"), table) == CountedDevices(2, 1, 0, 8, 5)
    assert count(DeviceClass("gpus"), table) == CountedDevices()


def test_containers_without_cores_leave_one_percent_free() -> None:
    cards = [gpu("n1", 0)]
    ledger, table = world(cards)
    take(ledger, cards[0], 1024)
    table.refresh()
    half = DeviceClass("half", memory=MiB(1024), cores=Percent(50))
    assert count(half, table).free_units == 1
    assert count(DeviceClass("memory", memory=MiB(1024)), table).free_units == 15


def test_a_class_by_cores_alone_needs_that_part_of_the_memory_too() -> None:
    cards = [gpu("n1", 0, memory=10_000)]
    ledger, table = world(cards)
    take(ledger, cards[0], 6_000, 10)
    table.refresh()
    assert count(DeviceClass("cores", cores=Percent(20)), table).free_units == 2


def test_conditions_on_places_hold_for_the_device_and_not_for_its_kind() -> None:
    _, table = world([gpu("n1", 0), gpu("n1", 1), gpu("n2", 0)])
    table.refresh()
    first = DeviceClass("first", requirements=(PropertyRequirement("index", Operator.IN, ("0",)),))
    there = DeviceClass("there", requirements=(PropertyRequirement("nodeName", Operator.NOT_IN, ("n1",)),))
    assert count(first, table).total == 2
    assert count(there, table).total == 1
    table.put("gpu-n3-0", gpu("n3", 0), "Available")
    assert count(there, table).total == 2


def test_a_removed_device_counts_no_more_and_its_row_is_used_again() -> None:
    ledger, table = world([gpu("n1", i) for i in range(100)])
    table.refresh()
    assert table.remove("gpu-n1-7") == "n1"
    assert table.remove("gpu-n1-7") is None
    assert count(DeviceClass("all"), table).total == 99 == len(table)
    show(ledger, table, gpu("n2", 0, model="Tesla T4"))
    table.refresh()
    assert count(DeviceClass("all"), table) == CountedDevices(100, 100, 0, 100, 100)
    assert count(DeviceClass("v100", requirements=(V100,)), table).total == 99


def test_only_kinds_of_devices_that_changed_are_told() -> None:
    cards = [gpu("n1", 0), gpu("n1", 1, model="Tesla T4")]
    ledger, table = world(cards)
    table.refresh()
    table.take_changed()
    assert not table.refresh()
    assert table.take_changed() == set()
    take(ledger, cards[1], 4096)
    assert table.refresh()
    assert [c.model for k in table.take_changed() if (c := table.kinds[k])] == ["Tesla T4"]
    assert not table.put("gpu-n1-0", cards[0], "Available")
    assert table.take_changed() == set()


@pytest.mark.parametrize(
    ("cls", "reason", "words"),
    [
        pytest.param(DeviceClass("a", device_type="fpga"), "NoDeviceMatches", "of type fpga", id="type"),
        pytest.param(
            DeviceClass("a", requirements=(PropertyRequirement("model", Operator.IN, ("K80",)),)),
            "NoDeviceMatches",
            "of 3 devices of type gpu, none has model In [K80] (there are Tesla T4, Tesla V100)",
            id="value",
        ),
        pytest.param(
            DeviceClass("a", requirements=(PropertyRequirement("clock", Operator.GT, ("1GHz",)),)),
            "NoDeviceMatches",
            "(none has this property)",
            id="property",
        ),
        pytest.param(
            DeviceClass("a", requirements=(V100, LARGE)), "NoDeviceMatches", "memory Gt [20GiB]", id="one of two"
        ),
        pytest.param(
            DeviceClass("a", requirements=(V100, PropertyRequirement("index", Operator.IN, ("2",)))),
            "NoDeviceMatches",
            "no device meets all 2 conditions at once",
            id="together",
        ),
        pytest.param(DeviceClass("a", requirements=(V100,), memory=MiB(20_000)), "TooLarge", "16384 MiB", id="large"),
        pytest.param(DeviceClass("a", requirements=(V100,), count=4), "TooFew", "on any node: 2", id="count"),
        pytest.param(DeviceClass("a"), "", "every device of type gpu", id="empty"),
        pytest.param(DeviceClass("a", requirements=(V100,)), "", "", id="well"),
    ],
)
def test_a_class_says_why_nobody_can_have_it(cls: DeviceClass, reason: str, words: str) -> None:
    _, table = world([gpu("n1", 0), gpu("n1", 1), gpu("n1", 2, model="Tesla T4")])
    table.refresh()
    said = remark(cls, table, count(cls, table))
    assert said.reason == reason
    assert words in said.message


def test_free_units_know_how_cards_may_be_cut() -> None:
    cards = [gpu("n1", 0), gpu("n2", 0)]
    ledger, table = world(cards)
    part = DeviceClass("part", memory=MiB(4096))
    table.refresh()
    table.take_changed()
    assert count(part, table) == CountedDevices(2, 2, 0, 8, 8)
    ledger.share_by(lambda node, model: SharingRule(max_slices=3) if node == "n1" else FREE)
    assert table.refresh(), "the rules are news"
    assert len(table.take_changed()) == 1
    assert count(part, table) == CountedDevices(2, 2, 0, 7, 7)
    take(ledger, cards[0], 1024)
    take(ledger, cards[0], 2048)
    table.refresh()
    assert count(part, table) == CountedDevices(2, 1, 0, 7, 5)
    ledger.share_by(lambda node, model: SharingRule(fractions=(Fraction(1, 2),)))
    table.refresh()
    figures = count(part, table)
    assert figures == CountedDevices(2, 1, 0, 0, 0)
    assert remark(part, table, figures).reason == "NotCut"
    assert not table.refresh()


def test_a_class_whose_devices_are_all_sick_says_so() -> None:
    _, table = world([], sick=[gpu("n1", 0)])
    table.refresh()
    cls = DeviceClass("a", requirements=(V100,))
    assert remark(cls, table, count(cls, table)).reason == "NoneHealthy"


def test_a_long_explanation_fits_the_status() -> None:
    values = tuple(f"{'x' * 240}{i}" for i in range(64))
    requirements = tuple(PropertyRequirement(f"key{i}", Operator.IN, values) for i in range(32))
    _, table = world([gpu()])
    assert len(remark(DeviceClass("a", requirements=requirements), table, CountedDevices()).message) <= 1024


# ── against the plain rules ──────────────────────────────────────────────────────────────────────────────────────────

MODELS = st.sampled_from(["Tesla V100", "Tesla T4"])
SIZES = st.sampled_from([8192, 16384])


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Card], list[Card], list[tuple[int, int, int]]]:
    """Healthy cards, sick cards, and what pods try to take: card, memory, cores."""
    places = draw(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 4)), unique=True, max_size=8))
    cards = [gpu(n, i, model=draw(MODELS), memory=draw(SIZES), clock=draw(st.sampled_from("12"))) for n, i in places]
    sick = draw(st.lists(st.sampled_from(cards), unique=True)) if cards else []
    well = [c for c in cards if c not in sick]
    amounts = st.tuples(st.integers(0, max(0, len(well) - 1)), st.integers(1, 8000), st.sampled_from([0, 10, 50]))
    return well, sick, draw(st.lists(amounts, max_size=10)) if well else []


REQUIREMENTS = st.sampled_from(
    [
        V100,
        PropertyRequirement("memory", Operator.GE, ("10GiB",)),
        PropertyRequirement("clock", Operator.NOT_IN, ("1",)),
        PropertyRequirement("nodeName", Operator.IN, ("a",)),
        PropertyRequirement("index", Operator.LE, ("2",)),
        PropertyRequirement("ecc", Operator.DOES_NOT_EXIST),
    ]
)

RULES = st.sampled_from(
    [FREE, SharingRule(max_slices=2), SharingRule(fractions=(Fraction(1, 4), Fraction(1))), SharingRule(1)]
)


@settings(deadline=None)
@given(
    clusters(),
    st.lists(REQUIREMENTS, max_size=3),
    st.sampled_from([(0, 0), (3000, 0), (3000, 30), (0, 30), (2048, 20), (20, 0)]),
    st.integers(1, 3),
    RULES,
)
def test_columns_count_what_the_rules_say_of_each_device(
    cluster: tuple[list[Card], list[Card], list[tuple[int, int, int]]],
    requirements: list[PropertyRequirement],
    amounts: tuple[int, int],
    of: int,
    rule: SharingRule,
) -> None:
    well, sick, wishes = cluster
    cls = DeviceClass("c", "gpu", tuple(requirements), MiB(amounts[0]), Percent(amounts[1]), of)
    ledger, table = world(well, sick=sick)
    if rule != FREE:  # on one of the two nodes
        ledger.share_by(lambda node, model: rule if node == "a" else FREE)
    for number, (position, memory, cores) in enumerate(wishes):
        uid = PodUID(f"pod-{number}")
        card = well[position]
        ledger.observe(uid, Placement(card.node, (slices_of("main", piece(card.uuid, memory, cores)),)))
    table.refresh()
    figures = count(cls, table)

    mine = [c for c in well if matches(cls, c)]
    states = {s.uuid: s for name in "ab" if (n := ledger.node(NodeName(name))) for s in n.cards}
    assert figures.total == len(mine) + sum(matches(cls, c) for c in sick)
    assert figures.unhealthy == figures.total - len(mine)
    assert figures.free == sum(states[c.uuid].idle for c in mine)
    units = {n: [most_of(cls, c, states[c.uuid].rule) for c in mine if c.node == n] for n in "ab"}
    assert figures.units == sum(most_units(tuple(s), of) for s in units.values())
    free = {n: [slices(cls, states[c.uuid]) for c in mine if c.node == n] for n in "ab"}
    assert figures.free_units == sum(most_units(tuple(s), of) for s in free.values())
    by_node = count_by_node(cls, table)
    assert list(by_node) == sorted({c.node for c in [*well, *sick] if matches(cls, c)})
    for name, own in by_node.items():
        assert own.units == most_units(tuple(units[name]), of)
        assert own.free_units == most_units(tuple(free[name]), of)
    columns = zip(*map(msgspec.structs.astuple, by_node.values()), strict=True)
    assert tuple(map(sum, columns)) == (msgspec.structs.astuple(figures) if by_node else ())


def most_of(cls: DeviceClass, card: Card, rule: SharingRule) -> int:
    """How many slices of the class an empty card has."""
    cores = cls.cores if cls.shared else 100
    memory = cls.memory or card.memory * cores // 100
    allowed = rule.admits(card.memory, memory=memory, cores=cores)
    return min(units_of(cls, card), rule.max_slices or 256) if allowed else 0


def slices(cls: DeviceClass, state: CardState) -> int:
    """How many slices the card takes one after another."""
    cores = cls.cores if cls.shared else 100
    memory = cls.memory or state.memory * cores // 100
    if not state.rule.admits(state.memory, memory=memory, cores=cores):
        return 0
    if not cls.shared:
        return int(state.idle)
    taken = 0
    while state.rule.has_place(state.slices, taken + 1) and state.holds(
        memory * (taken + 1), cls.cores * (taken + 1), coreless=not cls.cores
    ):
        taken += 1
    return taken


@given(st.lists(st.integers(0, 6), max_size=5), st.integers(1, 3))
def test_no_larger_number_of_units_fits(slices: list[int], of: int) -> None:
    most = most_units(tuple(slices), of)
    left = sorted(slices, reverse=True)
    for _ in range(most):  # each unit of those with most left: that always succeeds
        left.sort(reverse=True)
        assert left[of - 1] > 0
        left[:of] = [n - 1 for n in left[:of]]
    left.sort(reverse=True)
    assert len(left) < of or left[of - 1] <= 0
