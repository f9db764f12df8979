"""Filter, score and bind for pods that ask by class: Caicloud's cluster, overlapping classes, devices beside GPUs."""

from collections.abc import AsyncGenerator

import msgspec
import pytest

from fractile.extender.filter import BEST, filter_nodes
from fractile.extender.score import rank
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.device_class import DeviceClass, Operator, PropertyRequirement
from fractile.model.placement import Placement
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest
from fractile.model.units import MemoryUnit, MiB, Percent
from fractile.policy.cards.plan import plan
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from fractile.wire.kubernetes import extender as wire
from fractile.wire.kubernetes.extender import BindingArgs, FilterResult
from fractile.wire.kubernetes.objects import Container
from tests.builders import (
    by_class,
    by_memory,
    card,
    card_uuid,
    cards,
    cluster,
    container,
    device,
    in_use,
    request,
)
from tests.main.plane import Plane, plane

K80 = DeviceClass("nvidia.tesla.k80", requirements=(PropertyRequirement("model", Operator.IN, ("NVIDIA Tesla K80",)),))
HIGH = DeviceClass("nvidia.high.mem", requirements=(PropertyRequirement("memory", Operator.GT, ("10GiB",)),))
SMALL = DeviceClass("small", memory=MiB(4096), cores=Percent(25))
IB = DeviceClass("ib", device_type="infiniband")
FAST = DeviceClass(
    "fast.ib", device_type="infiniband", requirements=(PropertyRequirement("model", Operator.IN, ("CX-7",)),)
)
CLASSES = (K80, HIGH, SMALL, IB, FAST)


def example() -> Ledger:
    """n1 has two models, n2 one model in two sizes, n3 neither class; n1 and n3 have InfiniBand."""
    return cluster(
        {
            "n1": [
                card("n1", 0, model="NVIDIA Tesla K80", memory=11441),
                card("n1", 1, memory=16276),
                device("n1", shares=2),
            ],
            "n2": [card("n2", 0, memory=8192), card("n2", 1, memory=16276)],
            "n3": [card("n3", 0, memory=8192), device("n3"), device("n3", 1)],
        }
    )


def index(ledger: Ledger) -> ClassIndex:
    made = ClassIndex(ledger)
    for cls in CLASSES:
        made.put(cls)
    return made


def asked(ledger: Ledger, *containers: ContainerRequest) -> PodRequest:
    found = resolve(request(*containers), index(ledger))
    assert isinstance(found, PodRequest), found
    return found


def filtered(ledger: Ledger, *containers: ContainerRequest) -> FilterResult:
    return filter_nodes(asked(ledger, *containers), ["n1", "n2", "n3", "n4"], ledger)


def placed(ledger: Ledger, node: str, *containers: ContainerRequest) -> Placement:
    state = ledger.node(node)
    assert state is not None
    found = plan(asked(ledger, *containers), state)
    assert isinstance(found, Placement), found
    return found


def ib(units: int = 1, name: str = "ib") -> ContainerRequest:
    return by_class(name, units, slot=DEVICE_SLOT)


# ── GPUs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_class_finds_its_cards_on_nodes_of_several_models_and_sizes() -> None:
    ledger = example()
    assert filtered(ledger, by_class("nvidia.tesla.k80")).node_names == ["n1"]
    assert filtered(ledger, by_class("nvidia.high.mem")).node_names == ["n1", "n2"]
    assert placed(ledger, "n2", by_class("nvidia.high.mem")).containers[0].slices[0].card == card_uuid("n2", 1)


def test_a_node_without_a_card_of_the_class_says_so_and_is_no_use_to_wait_for() -> None:
    refused = filtered(example(), by_class("nvidia.tesla.k80")).unresolvable
    assert refused == dict.fromkeys(["n2", "n3"], "no card of the node is of class nvidia.tesla.k80")


def test_overlapping_classes_draw_on_the_same_cards_without_counting_them_twice() -> None:
    ledger = example()
    given = [placed(ledger, "n1", by_class(name)) for name in ("nvidia.tesla.k80", "nvidia.high.mem")]
    assert ledger.assume(request(uid="a").uid, given[0]) is None
    both = filtered(ledger, by_class("nvidia.high.mem", 2))
    assert both.failed == {
        "n1": "class nvidia.high.mem: 1 of 2 matching cards is free, 2 requested",
        "n4": "no usable cards reported by the node's fractile agent",
    }
    assert both.unresolvable["n2"] == "class nvidia.high.mem: the node has 1 matching card, 2 requested"
    assert placed(ledger, "n1", by_class("nvidia.high.mem")).containers[0].slices[0].card == card_uuid("n1", 1)


def test_a_shared_class_takes_its_amounts_beside_pods_of_other_families() -> None:
    ledger = example()
    in_use(ledger, "n2", 0, 8000)
    given = placed(ledger, "n2", by_class("small"))
    (part,) = given.containers[0].slices
    assert (part.card, part.memory, part.cores) == (card_uuid("n2", 0), 4096, 25)
    assert ledger.assume(request(uid="a").uid, given) is None
    assert filtered(ledger, by_class("nvidia.high.mem")).failed["n2"].startswith("class nvidia.high.mem: 0 of 1")
    assert filtered(ledger, by_memory(8000)).node_names == ["n1", "n2", "n3"], "what is left is anybody's"


def test_who_shares_a_card_keeps_whole_card_classes_off_it_and_the_other_way_round() -> None:
    ledger = example()
    assert ledger.assume(request(uid="a").uid, placed(ledger, "n1", by_class("nvidia.tesla.k80"))) is None
    (part,) = placed(ledger, "n1", by_class("small")).containers[0].slices
    assert part.card == card_uuid("n1", 1)


def test_units_of_a_shared_class_are_of_different_cards() -> None:
    parts = placed(example(), "n1", by_class("small", 2)).containers[0].slices
    assert len({p.card for p in parts}) == 2
    refused = filtered(example(), by_class("small", 3)).unresolvable["n1"]
    assert refused == "3 cards requested, the node has 2 (class small: 2 of the node's 2 cards)"


def test_a_shared_class_says_how_many_cards_it_may_use() -> None:
    ledger = example()
    in_use(ledger, "n3", 8000)
    message = filtered(ledger, by_class("small")).failed["n3"]
    assert "192 MiB and 100 percent" in message or "4096 MiB" in message
    assert message.endswith("(class small: 1 of the node's 1 card)")


# ── other devices ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_device_beside_a_gpu_is_found_where_both_are_free() -> None:
    ledger = example()
    assert filtered(ledger, by_memory(4000), ib()).node_names == ["n1", "n3"]
    given = placed(ledger, "n1", by_memory(4000), ib())
    assert [(s.memory, s.shares) for s in given.containers[0].slices] == [(4000, 0), (0, 1)]
    assert len(given.containers) == 1


def test_devices_alone_need_no_gpu() -> None:
    ledger = example()
    assert filtered(ledger, ib(2)).node_names == ["n3"]
    result = filtered(ledger, ib(2))
    assert result.unresolvable["n1"] == "class ib: 2 requested, the node has 1"
    assert result.failed["n2"] == "no devices other than GPUs reported by the node's fractile agent"


def test_a_node_whose_devices_are_taken_says_how_many_are_free() -> None:
    ledger = example()
    assert ledger.assume(request(uid="a").uid, placed(ledger, "n3", ib())) is None
    assert filtered(ledger, ib(2)).failed["n3"] == "class ib: 1 of 2 matching devices is free, 2 requested"
    assert filtered(ledger, by_memory(4000), ib(2)).failed["n3"] == (
        "class ib: 1 of 2 matching devices is free, 2 requested"
    ), "the GPU is free"


def test_a_class_of_devices_that_no_node_has_is_refused_for_the_whole_cluster() -> None:
    found = resolve(request(ib(name="fast.ib")), index(example()))
    assert isinstance(found, Refusal)
    assert found.code is Code.NO_CLASS


def test_of_many_nodes_with_devices_the_best_hundred_are_named() -> None:
    ledger = cluster({f"n{i}": [card(f"n{i}", 0), device(f"n{i}", shares=4)] for i in range(150)})
    for i in range(150):
        in_use(ledger, f"n{i}", 100 * i)
    names = [f"n{i}" for i in range(150)]
    found = filter_nodes(asked(ledger, by_memory(100), ib()), names, ledger).node_names
    assert found is not None
    assert (len(found), found[0]) == (BEST, "n149")
    alone = filter_nodes(asked(ledger, ib()), names, ledger).node_names
    assert alone is not None
    assert len(alone) == BEST


def test_nodes_are_scored_by_their_devices_when_no_gpu_is_asked_for() -> None:
    ledger = example()
    ranking = rank(asked(ledger, ib()), ["n1", "n2", "n3"], ledger, [("n3", 10_000)])
    assert ranking.scores.tolist() == [5, 0, 5]
    assert ranking.memory == 0, "no hint about GPU memory"


# ── from the manifest to the Binding ─────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        for cls in CLASSES:
            made.index.put(cls)
        made.node("n1", [device("n1", shares=2)])
        yield made


def main(**amounts: int) -> Container:
    slots = {"gpu": GPU_SLOT, "device": DEVICE_SLOT}
    named = {slots.get(k) or f"class.fractile.dev/{k.replace('_', '.')}": n for k, n in amounts.items()}
    return container("main", limits=named)


async def bind(p: Plane, name: str, asks: Container, node: str = "n1") -> Refusal | None:
    pod = p.submit(name, asks)
    return await p.binder.bind(BindingArgs(name, "default", pod.metadata.uid, node))


async def test_what_a_class_gives_stands_in_the_placement_of_the_bound_pod(p: Plane) -> None:
    assert await bind(p, "p", main(gpu=1, device=1, small=1, ib=1)) is None
    (found,) = placement.decode(p.annotations()[placement.ANNOTATION]).containers
    assert [(s.card, s.memory, s.cores, s.shares) for s in found.slices] == [
        (card_uuid("n1", 0), 4096, 25, 0),
        (device().uuid, 0, 0, 1),
    ]
    p.see()
    assert p.events == []
    assert p.ledger.audit() == []


async def test_whoever_runs_is_not_touched_when_its_class_changes_or_goes(p: Plane) -> None:
    assert await bind(p, "p", main(gpu=1, small=1)) is None
    p.index.put(DeviceClass("small", memory=MiB(9999)))
    p.see()
    p.classes.gone("small")
    p.see()
    assert p.events == []
    assert p.free() == [16276 - 4096, 16276]
    fresh = Plane(p.server, p.client, unit=MemoryUnit.MiB)  # and after a restart
    fresh.node("n1", cards("n1"))
    fresh.see("p")
    assert fresh.events == []
    assert fresh.free() == [16276 - 4096, 16276]


async def test_a_class_that_went_between_filter_and_bind_refuses_the_bind(p: Plane) -> None:
    p.classes.gone("small")
    refused = await bind(p, "p", main(gpu=1, small=1))
    assert refused is not None
    assert refused.message == "container main asks for class small, which does not exist"
    assert p.free() == [16276, 16276]


async def test_filter_and_score_resolve_the_class(p: Plane) -> None:
    pod = p.submit("p", main(gpu=1, nvidia_high_mem=1))
    body = msgspec.json.encode({"Pod": msgspec.to_builtins(pod), "NodeNames": ["n1", "n2"]})
    assert msgspec.json.decode(p.extender.filter(body), type=FilterResult).node_names == ["n1", "n2"]
    assert [s.score for s in msgspec.json.decode(p.extender.prioritize(body), type=list[wire.HostPriority])] == [5, 5]
    p.classes.gone("nvidia.high.mem")
    refused = msgspec.json.decode(p.extender.filter(body), type=FilterResult)
    assert set(refused.unresolvable.values()) == {"container main asks for class nvidia.high.mem, which does not exist"}
