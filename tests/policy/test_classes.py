"""Which devices belong to a class, and how many units a node has."""

from collections.abc import Sequence
from itertools import combinations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.model.card import Card
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.properties import Properties
from fractile.model.units import CardUUID, MiB, NodeName, Percent
from fractile.policy.classes import holds, matches, units_of, units_on
from tests.builders import card

SAID = Properties({"clock": "1530MHz", "computeCapability": "7.0", "driver": "535.104.05", "rate": "400Gb/s"})
V100 = Card(
    CardUUID("GPU-a"), 2, "Tesla V100", MiB(32768), properties=SAID, node=NodeName("n1")
)  # what is asked below is about this one


def needs(key: str, operator: Operator, *values: str) -> PropertyRequirement:
    return PropertyRequirement(key, operator, values)


@pytest.mark.parametrize(
    ("requirement", "expected"),
    [
        (needs("model", Operator.IN, "Tesla V100"), True),
        (needs("model", Operator.IN, "Tesla T4", "Tesla V100"), True),
        (needs("model", Operator.IN, "tesla v100"), False),
        (needs("model", Operator.NOT_IN, "Tesla V100"), False),
        (needs("memory", Operator.IN, "32GiB"), True),
        (needs("memory", Operator.IN, "34359738368"), True),
        (needs("memory", Operator.NOT_IN, "32Gi"), False),
        (needs("memory", Operator.GT, "10GiB"), True),
        (needs("memory", Operator.GT, "32GiB"), False),
        (needs("memory", Operator.GE, "32GiB"), True),
        (needs("memory", Operator.GE, "34359738369"), False),
        (needs("memory", Operator.LT, "40GB"), True),
        (needs("memory", Operator.LE, "34.4GB"), True),
        (needs("memory", Operator.LE, "34.3GB"), False),
        (needs("clock", Operator.GT, "1.5GHz"), True),
        (needs("clock", Operator.GT, "1.53 GHz"), False),
        (needs("clock", Operator.GT, "1GiB"), False),
        (needs("computeCapability", Operator.GE, "7"), True),
        (needs("computeCapability", Operator.LT, "8.0"), True),
        (needs("rate", Operator.GE, "50GB/s"), True),
        (needs("driver", Operator.GT, "1"), False),
        (needs("driver", Operator.LT, "1000"), False),
        (needs("driver", Operator.IN, "535.104.05"), True),
        (needs("index", Operator.EXISTS), True),
        (needs("index", Operator.IN, "2"), True),
        (needs("cores", Operator.GE, "100"), True),
        (needs("nodeName", Operator.IN, "n1"), True),
        (needs("type", Operator.IN, "gpu"), True),
        (needs("colour", Operator.EXISTS), False),
        (needs("colour", Operator.DOES_NOT_EXIST), True),
        (needs("colour", Operator.NOT_IN, "red"), True),
        (needs("colour", Operator.IN, "red"), False),
        (needs("colour", Operator.LT, "1"), False),
    ],
    ids=lambda value: (
        f"{value.key} {value.operator} {','.join(value.values)}" if isinstance(value, PropertyRequirement) else ""
    ),
)
def test_a_requirement_holds_or_not(requirement: PropertyRequirement, expected: bool) -> None:
    assert holds(requirement, V100.property(requirement.key)) is expected
    assert matches(DeviceClass("c", requirements=(requirement,)), V100) is expected


def test_all_requirements_must_hold() -> None:
    both = (needs("model", Operator.IN, "Tesla V100"), needs("memory", Operator.GT, "64Gi"))
    assert not matches(DeviceClass("c", requirements=both), V100)
    assert matches(DeviceClass("c", requirements=both[:1]), V100)
    assert matches(DeviceClass("c"), V100)


def test_a_class_of_one_type_has_no_devices_of_another() -> None:
    hca = msgspec.structs.replace(V100, type="infiniband", memory=MiB(0))
    assert not matches(DeviceClass("c"), hca)
    assert matches(DeviceClass("c", device_type="infiniband"), hca)
    assert not matches(DeviceClass("c", device_type="infiniband"), V100)


def test_a_sick_device_is_of_its_class_and_gives_no_unit() -> None:
    sick = card(healthy=False)
    assert matches(DeviceClass("c"), sick)
    assert units_on(DeviceClass("c"), [sick, card(index=1)]) == 1


@pytest.mark.parametrize(
    ("memory", "cores", "units"),
    [(4096, 0, 3), (0, 30, 3), (4096, 30, 3), (4096, 50, 2), (16276, 100, 1), (16277, 0, 0), (1, 1, 100)],
)
def test_a_part_of_a_card_has_as_many_units_as_both_amounts_allow(memory: int, cores: int, units: int) -> None:
    assert units_of(DeviceClass("c", memory=MiB(memory), cores=Percent(cores)), card(memory=16276)) == units


def test_a_device_that_is_no_gpu_has_a_unit_for_each_that_may_share_it() -> None:
    hca = Card(CardUUID("h"), 0, "ConnectX-7", MiB(0), type="infiniband", shares=4)
    assert units_on(DeviceClass("c", device_type="infiniband"), [hca, hca]) == 8


def test_the_devices_of_one_unit_are_different_ones() -> None:
    large, small = card(memory=50), card(index=1, memory=10)
    assert units_on(DeviceClass("c", memory=MiB(10), count=2), [large, small]) == 1
    assert units_on(DeviceClass("c", memory=MiB(10)), [large, small]) == 6
    assert units_on(DeviceClass("c", count=2), [card(index=i) for i in range(5)]) == 2


def most_units(parts: Sequence[int], count: int) -> int:
    """By trying everything."""
    return max(
        (
            1 + most_units([p - (i in chosen) for i, p in enumerate(parts)], count)
            for chosen in combinations([i for i, p in enumerate(parts) if p], count)
        ),
        default=0,
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=4), st.integers(1, 3))
def test_no_way_to_cut_a_node_gives_more_units(parts: list[int], count: int) -> None:
    cards = [card(index=i, memory=p * 10) for i, p in enumerate(parts)]
    assert units_on(DeviceClass("c", memory=MiB(10), count=count), cards) == most_units(parts, count)


_AMOUNTS = st.tuples(st.integers(0, 10**9), st.sampled_from(("", "k", "M", "Gi", "GiB", "MHz", " GHz")))


@given(_AMOUNTS, _AMOUNTS)
def test_two_quantities_are_in_exactly_one_order_or_cannot_be_compared(
    one: tuple[int, str], other: tuple[int, str]
) -> None:
    found, wanted = (f"{n}{suffix}" for n, suffix in (one, other))
    answers = {
        o: holds(PropertyRequirement("k", o, (wanted,)), found) for o in Operator if o.ordered or o is Operator.IN
    }
    if any(answers.values()):
        assert [answers[o] for o in (Operator.GT, Operator.IN, Operator.LT)].count(True) == 1
        assert answers[Operator.GE] is (answers[Operator.GT] or answers[Operator.IN])
        assert answers[Operator.LE] is (answers[Operator.LT] or answers[Operator.IN])


@given(st.text(max_size=20), st.lists(st.text(max_size=20), max_size=3))
def test_in_and_not_in_are_opposites(found: str, values: list[str]) -> None:
    inside, outside = (holds(PropertyRequirement("k", o, tuple(values)), found) for o in (Operator.IN, Operator.NOT_IN))
    assert inside is not outside
