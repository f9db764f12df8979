"""Asking by class: what pods ask for before anybody knows what a class is, and what containers hold of their cards."""

import pytest

from fractile.dialects import table
from fractile.dialects.dialect import Facts
from fractile.errors import SetupError
from fractile.model.card import Card
from fractile.model.placement import Slice
from fractile.model.refusal import Code, Refusal
from fractile.model.request import ContainerRequest, PodRequest, Request
from fractile.model.units import WHOLE, CardUUID, MemoryUnit, MiB, Percent
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from fractile.wire.kubernetes.objects import Container, Pod
from tests.builders import by_class, card_uuid, cards, container, device, piece, pod

A, B = card_uuid("n1", 0), card_uuid("n1", 1)


def asks(name: str = "main", **amounts: int) -> Container:
    """``gpu`` and ``device`` are slots, everything else a class."""
    slots = {"gpu": GPU_SLOT, "device": DEVICE_SLOT}
    return container(name, limits={slots.get(k, f"class.fractile.dev/{k}"): n for k, n in amounts.items()})


def parsed(made: Pod) -> tuple[ContainerRequest, ...]:
    found = table.parse_pod(made, MemoryUnit.MiB)
    assert isinstance(found, PodRequest), found
    return found.containers


def refused(made: Pod) -> str:
    found = table.parse_pod(made, MemoryUnit.MiB)
    assert isinstance(found, Refusal), found
    assert found.code is Code.MALFORMED
    return found.message


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        pytest.param(asks(gpu=2), Request(count=2, cores=WHOLE, exclusive=True), id="slots alone are whole cards"),
        pytest.param(asks(gpu=2, v100=1), Request(count=2, device_class="v100"), id="a class of GPUs"),
        pytest.param(asks(device=1, ib=1), Request(device_class="ib", shares=1), id="a class of other devices"),
    ],
)
def test_one_kind_of_slots_is_one_request(made: Container, wanted: Request) -> None:
    (found,) = parsed(pod("p", made))
    assert found.request == wanted
    assert found.amount == wanted.count


def test_gpus_and_other_devices_of_one_container_are_two_requests_that_name_both_classes() -> None:
    gpu, other = parsed(pod("p", asks(gpu=1, device=2, v100=1, ib=2)))
    assert (gpu.container, other.container) == ("main", "main")
    assert (gpu.resource, gpu.amount, gpu.request.shares) == (GPU_SLOT, 1, 0)
    assert (other.resource, other.amount, other.request.shares) == (DEVICE_SLOT, 2, 1)
    assert gpu.request.device_class == other.request.device_class == "ib,v100"
    assert gpu.amount_of(DEVICE_SLOT) == other.amount_of(GPU_SLOT) == 0, "each has its own device ids"


def test_a_device_beside_a_gpu_of_another_family_is_a_request_of_its_own() -> None:
    gpu, other = parsed(pod("p", container("main", limits={"aliyun.com/gpu-mem": 8138, DEVICE_SLOT: 1} | ib(1))))
    assert gpu.request == Request(memory=MiB(8138))
    assert gpu.amount_of("class.fractile.dev/ib") == 0
    assert other.request == Request(device_class="ib", shares=1)


def ib(count: int) -> dict[str, int]:
    return {"class.fractile.dev/ib": count}


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param(asks(v100=1), "without fractile.dev/gpu or fractile.dev/device", id="the webhook was away"),
        pytest.param(asks(device=1), "fractile.dev/device without a class", id="any device whatever"),
        pytest.param(
            container("main", limits={GPU_SLOT: 1, "nvidia.com/gpu": 1}), "names of one family only", id="two families"
        ),
        pytest.param(
            container("main", limits={"nvidia.com/gpu": 1} | ib(1)), "names of one family only", id="class, no slot"
        ),
        pytest.param(container("main", limits={GPU_SLOT: "0.5"}), "not a whole number", id="half a slot"),
    ],
)
def test_what_makes_no_sense_is_refused_with_a_sentence(made: Container, said: str) -> None:
    assert said in refused(pod("p", made))


def test_a_successor_of_several_cards_by_another_class_is_refused() -> None:
    made = pod("p", asks("main", gpu=1, b=1), init=[asks("warm", gpu=2, a=2)])
    assert "kubelet would choose which" in refused(made)
    assert len(parsed(pod("p", asks("main", gpu=1, a=1), init=[asks("warm", gpu=2, a=2)]))) == 2


def test_who_leaves_the_family_to_others_leaves_class_names_too() -> None:
    off = frozenset({"aliyun", "tencent", "nvidia"})
    assert table.parse_pod(pod("p", asks(gpu=1, v100=1)), MemoryUnit.MiB, off) is None
    assert table.parse_pod(pod("p", asks(v100=1)), MemoryUnit.MiB, off) is None


# ── what a node reports, and what ids stand for ──────────────────────────────────────────────────────────────────────


def test_a_node_reports_slots_of_its_cards_and_shares_of_its_other_devices() -> None:
    found = {a.resource: a.ids for a in table.advertised([*cards(), device(shares=4)], MemoryUnit.MiB)}
    assert found[GPU_SLOT] == {A: 256, B: 256}
    assert found[DEVICE_SLOT] == {device().uuid: 4}
    others = {r: ids for r, ids in found.items() if r != DEVICE_SLOT}
    assert all(set(ids) == {A, B} for ids in others.values()), "no other family has anything to do with it"


def test_more_shares_than_kubelet_takes_are_refused_with_what_to_do() -> None:
    with pytest.raises(SetupError, match=r"61000 device ids on this node, .* let fewer pods share each device"):
        table.advertised([device(index=i, shares=1000) for i in range(61)], MemoryUnit.MiB)


def held(asked: ContainerRequest, *ids: CardUUID, given: tuple[Slice, ...], node: list[Card]) -> tuple[Slice, ...]:
    return table.slices_held(asked, dict.fromkeys(ids, 1), node, given=given)


def test_the_amounts_are_those_of_the_placement_on_whatever_card() -> None:
    small = piece(A, 4096, 25)
    assert held(by_class("c"), A, given=(small,), node=cards()) == (small,)
    assert held(by_class("c"), B, given=(small,), node=cards()) == (piece(B, 4096, 25),)


def test_a_whole_card_is_whole_on_a_larger_one_too() -> None:
    large = Card(B, 1, "Tesla-V100", MiB(32768))
    given = (piece(A, cards()[0].memory, 100),)
    assert held(by_class("c"), B, given=given, node=[cards()[0], large]) == (piece(B, 32768, 100),)


def test_of_two_cards_the_one_that_kubelet_took_otherwise_gets_what_the_other_had() -> None:
    c = CardUUID("GPU-n1-2")
    given = (piece(A, 4096, 25), piece(B, 4096, 25))
    found = held(by_class("c", 2), B, c, given=given, node=cards(count=3))
    assert found == (piece(B, 4096, 25), Slice(c, MiB(4096), Percent(25)))


def test_shares_of_other_devices_need_no_placement() -> None:
    asked = by_class("ib", slot=DEVICE_SLOT)
    assert held(asked, device().uuid, given=(), node=[device()]) == (Slice(device().uuid, MiB(0), shares=1),)


def test_containers_are_told_which_cards_and_devices_they_have() -> None:
    node = [*cards(), device()]
    gpu = table.container_answer(GPU_SLOT, {A: 1}, cards=node, unit=MemoryUnit.MiB, facts=Facts(1))
    other = table.container_answer(DEVICE_SLOT, {device().uuid: 1}, cards=node, unit=MemoryUnit.MiB, facts=Facts(1))
    assert gpu.environment == {"NVIDIA_VISIBLE_DEVICES": A}
    assert other.environment == {"FRACTILE_DEVICES": device().uuid}
