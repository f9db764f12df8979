"""Classes and their members, and what a request comes to when its classes are known."""

import pytest
from msgspec import structs

from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.classes import resolved as resolve_any
from fractile.ledger.ledger import Ledger
from fractile.model.card import DeviceKind
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.properties import shared
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request, Role
from fractile.model.units import WHOLE, CardUUID, MiB, NodeName, Percent
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from tests.builders import by_card, by_class, card, card_uuid, cluster, device, on_card, request

N1 = NodeName("n1")
V100 = PropertyRequirement("model", Operator.IN, ("Tesla-V100",))
LARGE = PropertyRequirement("memory", Operator.GT, ("20GiB",))


def node() -> Ledger:
    """A V100 of 16 GiB, one of 32 GiB, a T4, and an InfiniBand adapter for two."""
    large = card("n1", 1, memory=32510)
    return cluster({"n1": [card("n1", 0), large, card("n1", 2, model="Tesla T4"), device("n1", shares=2)]})


def index(ledger: Ledger, *classes: DeviceClass, layers: int = 256) -> ClassIndex:
    made = ClassIndex(ledger, layers=layers)
    for cls in classes:
        assert made.put(cls)
    return made


def members(found: ClassIndex, name: str) -> list[int]:
    """The indexes of the cards of n1 that are of the class."""
    cls = found.find(name)
    assert cls is not None
    layer = found.members(cls)
    return [i for i in range(4) if card_uuid("n1", i) in layer]


# ── members ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_classes_overlap() -> None:
    found = index(node(), DeviceClass("v100", requirements=(V100,)), DeviceClass("large", requirements=(LARGE,)))
    assert members(found, "v100") == [0, 1]
    assert members(found, "large") == [1]


def test_cards_that_come_change_and_go_are_members_as_they_are_then() -> None:
    ledger = node()
    found = index(ledger, DeviceClass("large", requirements=(LARGE,)))
    assert members(found, "large") == [1]
    ledger.put_card(N1, card("n1", 3, memory=40960))
    ledger.put_card(N1, card("n1", 1))  # the driver says something else of it now
    assert members(found, "large") == [3]
    ledger.put_card(N1, card("n1", 3, memory=40960, healthy=False))
    assert members(found, "large") == []
    ledger.put_card(N1, card("n1", 3, memory=40960))
    assert members(found, "large") == [3]
    ledger.drop_card(card_uuid("n1", 3))
    assert members(found, "large") == []


def test_a_place_that_another_card_takes_is_no_member_for_it() -> None:
    ledger = node()
    found = index(ledger, DeviceClass("large", requirements=(LARGE,)))
    assert members(found, "large") == [1]
    ledger.drop_card(card_uuid("n1", 1))
    ledger.put_card(N1, card("n1", 3))  # in the slot that is free now
    assert members(found, "large") == []


def test_members_are_found_however_the_arrays_grow() -> None:
    ledger = Ledger(lambda: 0.0)
    found = index(ledger, DeviceClass("large", requirements=(LARGE,)))
    assert members(found, "large") == []
    for n in range(100):
        for i in range(10):
            ledger.put_card(NodeName(f"n{n}"), card(f"n{n}", i, memory=40960 if i % 2 else 8192))
    layer = found.members(next(iter(found)))
    assert layer.mask.sum() == 500
    assert all((card_uuid(f"n{n}", i) in layer) is bool(i % 2) for n in range(100) for i in range(10))


def test_a_class_may_name_what_every_card_says_differently() -> None:
    first = DeviceClass("first", requirements=(PropertyRequirement("index", Operator.IN, ("0",)),))
    assert members(index(node(), first), "first") == [0]
    alike = cluster({"n1": [card("n1", i) for i in range(3)]})
    assert members(index(alike, first), "first") == [0]
    both = DeviceClass("both", requirements=(*first.requirements, V100))
    assert members(index(alike, both), "both") == [0]


def test_cards_that_say_the_same_are_told_apart_by_what_they_say_differently() -> None:
    ledger = Ledger(lambda: 0.0)
    for i in range(2):
        said = shared({"clock": f"{1000 + 500 * i}MHz"})
        ledger.put_card(N1, structs.replace(card("n1", i), properties=said))
    fast = DeviceClass("fast", requirements=(PropertyRequirement("clock", Operator.GE, ("1.5GHz",)),))
    assert members(index(ledger, fast), "fast") == [1]


def test_a_class_that_means_something_else_has_other_members() -> None:
    found = index(node(), DeviceClass("c", requirements=(LARGE,)))
    before = found.members(DeviceClass("c", requirements=(LARGE,)))
    assert not found.put(DeviceClass("c", requirements=(LARGE,))), "the same again is no change"
    assert found.put(DeviceClass("c", requirements=(V100,)))
    assert members(found, "c") == [0, 1]
    assert card_uuid("n1", 1) not in before, "nothing rests on what it was"


def test_a_class_that_was_asked_for_may_go_and_come_back() -> None:
    found = index(node(), DeviceClass("c", requirements=(LARGE,)))
    assert members(found, "c") == [1]
    found.drop("c")
    assert found.find("c") is None
    found.put(DeviceClass("c", device_type="infiniband"))
    assert device("n1").uuid in found.members(DeviceClass("c", device_type="infiniband"))
    found.spoil("c", "no sense")
    assert (found.find("c"), found.spoiled("c")) == (None, "no sense")
    found.put(DeviceClass("c"))
    assert found.spoiled("c") is None
    found.spoil("c", "no sense")
    found.drop("c")
    assert found.spoiled("c") is None


def test_each_change_of_a_class_is_counted() -> None:
    found = ClassIndex(node())
    counts = [found.changes]
    for change in (
        lambda: found.put(DeviceClass("a", requirements=(V100,))),
        lambda: found.put(DeviceClass("b", requirements=(V100,))),
        lambda: found.drop("a"),
        lambda: found.drop("b"),
    ):
        change()
        counts.append(found.changes)
    assert counts == [0, 1, 2, 3, 4]


def test_a_class_that_is_gone_has_no_members_and_takes_none() -> None:
    ledger = node()
    large = DeviceClass("large", requirements=(LARGE,))
    found = index(ledger, large)
    layer = found.members(large)
    assert card_uuid("n1", 1) in layer
    found.drop("large")
    assert card_uuid("n1", 1) not in layer
    ledger.put_card(N1, card("n1", 3, memory=40960))
    assert not layer.mask.any()
    assert (list(found), len(found)) == ([], 0)


def test_the_classes_last_asked_for_keep_their_members() -> None:
    a, b, c = (DeviceClass(name, requirements=(V100,)) for name in "abc")
    found = index(node(), a, b, c, layers=2)
    of_a, of_b = found.members(a), found.members(b)
    assert found.members(a) is of_a
    found.members(c)
    assert found.members(a) is of_a
    assert not of_b.mask.any(), "nothing keeps it up to date any more"
    assert found.members(b) is not of_b


def test_of_many_classes_those_last_asked_for_are_kept_and_the_others_found_anew() -> None:
    classes = [DeviceClass(f"c{i}", requirements=(LARGE if i % 2 else V100,)) for i in range(10_000)]
    found = index(node(), *classes, layers=3)
    assert len(found) == 10_000
    for _ in range(2):
        assert [members(found, f"c{i}") for i in range(8)] == [[0, 1], [1]] * 4
    ledger_layers = found._ledger.arrays._layers  # pyright: ignore[reportPrivateUsage]
    assert len(ledger_layers) == 3


# ── what a request comes to ──────────────────────────────────────────────────────────────────────────────────────────

CLASSES = (
    DeviceClass("v100", requirements=(V100,)),
    DeviceClass("pair", count=2),
    DeviceClass("small", memory=MiB(4096)),
    DeviceClass("slice", memory=MiB(4096), cores=Percent(25)),
    DeviceClass("quarter", cores=Percent(25)),
    DeviceClass("none", requirements=(PropertyRequirement("model", Operator.IN, ("H100",)),)),
    DeviceClass("ib", device_type="infiniband"),
)


def resolved(*containers: ContainerRequest) -> PodRequest | Refusal:
    found = index(node(), *CLASSES)
    found.spoil("broken", "the operator 'About' of memory is unknown")
    return resolve(request(*containers), found)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("v100", Request(count=2, cores=WHOLE, exclusive=True, device_class="v100")),
        ("small", Request(count=2, memory=MiB(4096), device_class="small")),
        (
            "slice",
            Request(count=2, memory=MiB(4096), cores=Percent(25), cores_limit=Percent(25), device_class="slice"),
        ),
        (
            "quarter",
            Request(
                count=2, memory_percent=Percent(25), cores=Percent(25), cores_limit=Percent(25), device_class="quarter"
            ),
        ),
    ],
)
def test_units_of_a_class_are_whole_cards_or_parts_of_them(name: str, wanted: Request) -> None:
    found = resolved(by_class(name, 2))
    assert isinstance(found, PodRequest)
    got = found.containers[0].request
    assert structs.replace(got, selector=wanted.selector) == wanted
    assert got.selector.members is not None


def test_a_request_without_a_class_stays_the_same() -> None:
    asked = request(by_card(1))
    assert resolve(asked, index(node())) is asked


def test_what_a_dialect_refused_or_did_not_find_stays_the_same() -> None:
    found = index(node(), *CLASSES)
    refusal = Refusal(Code.MALFORMED, "why")
    assert resolve_any(None, found) is None
    assert resolve_any(refusal, found) is refusal
    asked = request(by_class("v100"))
    assert resolve_any(asked, found) == resolve(asked, found)
    assert resolve_any(asked, found) != asked


def test_a_container_that_names_no_class_stays_the_same_beside_one_that_does() -> None:
    plain = by_card(1, "plain")
    found = resolved(by_class("v100"), plain)
    assert isinstance(found, PodRequest)
    assert found.containers[1] is plain


def test_a_unit_of_several_devices_takes_so_many_slots() -> None:
    right = structs.replace(by_class("pair", 1), amount=2, request=Request(count=2, device_class="pair"))
    found = resolved(right)
    assert isinstance(found, PodRequest)
    assert found.containers[0].request.count == 2


@pytest.mark.parametrize(
    ("asked", "code", "said"),
    [
        pytest.param(by_class("k80"), Code.NO_CLASS, "class k80, which does not exist", id="unknown"),
        pytest.param(by_class("none"), Code.NO_CLASS, "no healthy device of the cluster matches", id="nothing matches"),
        pytest.param(by_class("broken"), Code.NO_CLASS, "is invalid: the operator 'About'", id="no sense"),
        pytest.param(
            by_class("pair"), Code.MALFORMED, "pair: 1 and fractile.dev/gpu: 1; write fractile.dev/gpu: 2", id="slots"
        ),
        pytest.param(
            by_class("ib"),
            Code.MALFORMED,
            "by class ib, which is of devices of type infiniband; use fractile.dev/device",
            id="the other slot",
        ),
        pytest.param(by_class("v100", slot=DEVICE_SLOT), Code.MALFORMED, "is of GPUs; use fractile.dev/gpu", id="gpus"),
        pytest.param(by_class("small,v100"), Code.MALFORMED, "small and v100; ask for one", id="two of one kind"),
    ],
)
def test_what_stands_for_nothing_is_refused_with_a_sentence(asked: ContainerRequest, code: Code, said: str) -> None:
    found = resolved(asked)
    assert isinstance(found, Refusal)
    assert found.code is code
    assert found.message.startswith("container main ")
    assert said in found.message


def both(gpu: str, other: str) -> tuple[ContainerRequest, ContainerRequest]:
    """What a container that asks for both kinds is parsed to: each request names all classes."""
    names = ",".join(sorted(filter(None, (gpu, other))))
    amounts = tuple((f"class.fractile.dev/{n}", 1) for n in names.split(","))
    return (
        structs.replace(by_class(names), amounts=(*amounts, (GPU_SLOT, 1))),
        structs.replace(by_class(names, slot=DEVICE_SLOT), amounts=(*amounts, (DEVICE_SLOT, 1))),
    )


def test_of_two_classes_each_request_gets_its_own() -> None:
    found = resolved(*both("v100", "ib"))
    assert isinstance(found, PodRequest)
    assert [c.request.device_class for c in found.containers] == ["v100", "ib"]
    assert [dict(c.amounts) for c in found.containers] == [
        {"class.fractile.dev/v100": 1, GPU_SLOT: 1},
        {"class.fractile.dev/ib": 1, DEVICE_SLOT: 1},
    ]


@pytest.mark.parametrize(
    ("slot", "said"),
    [
        pytest.param(DEVICE_SLOT, "by class v100, which is of GPUs; use fractile.dev/gpu", id="no slot of GPUs"),
        pytest.param(GPU_SLOT, "by class ib, which is of devices of type infiniband", id="no slot of other devices"),
    ],
)
def test_a_class_whose_slot_is_missing_is_not_passed_over_because_another_has_its_own(slot: str, said: str) -> None:
    """Its container would start without the device, which kube-scheduler has counted."""
    amounts = (("class.fractile.dev/ib", 1), ("class.fractile.dev/v100", 1), (slot, 1))
    found = resolved(structs.replace(by_class("ib,v100", slot=slot), amounts=amounts))
    assert isinstance(found, Refusal)
    assert found.code is Code.MALFORMED
    assert said in found.message


def test_no_units_of_a_class_need_no_slot() -> None:
    amounts = (("class.fractile.dev/ib", 1), ("class.fractile.dev/v100", 0), (DEVICE_SLOT, 1))
    found = resolved(structs.replace(by_class("ib,v100", slot=DEVICE_SLOT), amounts=amounts))
    assert isinstance(found, PodRequest)


@pytest.mark.parametrize(
    ("names", "slot", "said"),
    [
        pytest.param("ib", GPU_SLOT, "by class ib, which is of devices of type infiniband; use fractile.dev/device"),
        pytest.param("small,v100", DEVICE_SLOT, "by class small, which is of GPUs; use fractile.dev/gpu"),
    ],
    ids=["GPUs", "devices"],
)
def test_a_slot_without_a_class_of_its_kind_is_refused_though_no_unit_is_asked_for(
    names: str, slot: str, said: str
) -> None:
    amounts = (*((f"class.fractile.dev/{name}", 0) for name in names.split(",")), (slot, 1))
    found = resolved(structs.replace(by_class(names, slot=slot), amounts=amounts))
    assert isinstance(found, Refusal)
    assert found.code is Code.MALFORMED
    assert said in found.message


def test_beside_a_class_of_devices_a_slot_alone_is_a_whole_card_of_any_kind() -> None:
    found = resolved(*both("", "ib"))
    assert isinstance(found, PodRequest)
    gpu, other = found.containers
    assert gpu.request == Request(cores=WHOLE, exclusive=True)
    assert gpu.amounts == ((GPU_SLOT, 1),)
    assert other.request.device_class == "ib"


def test_units_of_a_class_of_other_devices_are_a_share_of_each() -> None:
    found = resolved(by_class("ib", 2, slot=DEVICE_SLOT))
    assert isinstance(found, PodRequest)
    (asked,) = found.containers
    assert asked.request.selector.members is not None
    assert device("n1").uuid in asked.request.selector.members
    assert asked.request == Request(count=2, shares=1, device_class="ib", selector=asked.request.selector)


def test_an_init_container_may_ask_by_another_class() -> None:
    found = resolved(by_class("v100", container="warm", role=Role.INIT), by_class("small"))
    assert isinstance(found, PodRequest)
    assert [c.request.device_class for c in found.containers] == ["v100", "small"]


# ── the ledger ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_device_that_says_something_else_under_a_bound_pod_keeps_the_pod() -> None:
    ledger = node()
    uid = request().uid
    assert ledger.observe(uid, on_card(1, 8138)) is None
    found = index(ledger, DeviceClass("large", requirements=(LARGE,)))
    assert members(found, "large") == [1]
    ledger.put_card(N1, structs.replace(card("n1", 1), properties=shared({"clock": "900MHz"})))
    assert members(found, "large") == []
    state = ledger.node("n1")
    assert state is not None
    assert state.cards[1].free_memory == 16276 - 8138
    assert ledger.audit() == []


def test_uuids_of_devices_are_no_uuids_of_cards() -> None:
    ledger = cluster({"n1": [card(), device()]})
    assert ledger.arrays.cells.keys() == {card_uuid("n1", 0)}
    assert ledger.arrays_of(DeviceKind.OTHER).cells.keys() == {CardUUID("infiniband-0.n1")}
