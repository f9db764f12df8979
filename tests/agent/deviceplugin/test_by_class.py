"""Containers that ask by class on their node: the amounts are those of the placement, whatever the classes say now;
non-GPU devices beside cards of one container."""

import pytest

from fractile.agent.deviceplugin.allocate import answer_for_others
from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.deviceplugin.prestart import too_much
from fractile.agent.node.catalog import Catalog
from fractile.model.offer import Mount, Offer
from fractile.model.placement import Charge
from fractile.model.request import Role
from fractile.model.units import MemoryUnit, MiB, Percent
from fractile.region import directory
from fractile.wire.fractile import placement
from fractile.wire.fractile.device_ids import count_by_card
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, resource_name
from tests.agent.deviceplugin.test_families import recorded
from tests.agent.test_path import control_plane, until
from tests.agent.world import CARDS, GIB, Asks, adapter, card, of_class, world

A, B = CARDS
MIB = 2**20
IB = [adapter(0), adapter(1, shares=2)]
FIRST, SECOND = (o.device for o in IB)


async def test_a_part_of_a_card_by_class_gets_what_its_placement_says() -> None:
    async with world() as w:
        pod = w.admit(of_class("main", "timed"), on={"main": [B]})
        await w.kubelet.running(pod)
        w.check(pod)
        (limits,) = w.limits(pod, "main").cards
        assert (limits.memory, limits.cores, limits.cores_limit) == (GIB * MIB, 20, 20), "the share is a hard limit"
        assert {r: count_by_card(ids) for r, ids in recorded(w).items()} == {GPU_SLOT: {B.uuid: 1}}


async def test_whole_cards_by_class_and_without_one() -> None:
    async with world(cards=[card(n) for n in range(3)]) as w:
        by_class = w.admit(of_class("main", "whole", 2), on={"main": [w.cards[2], w.cards[0]]})
        alone = w.admit(Asks("main", 1, GPU_SLOT), on={"main": [w.cards[1]]})
        await w.kubelet.running(by_class)
        await w.kubelet.running(alone)
        w.check(by_class, alone)


@pytest.mark.parametrize("seed", range(3))
async def test_pods_of_one_class_that_come_together_get_their_own_cards(seed: int) -> None:
    async with world(seed=seed) as w:
        pods = [w.bind(of_class("main", "small"), on={"main": [CARDS[n % 2]]}) for n in range(6)]
        for pod in reversed(pods):
            w.kubelet.add(pod)
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)


async def test_what_a_container_holds_by_class_is_its_successors_after_it() -> None:
    async with world() as w:
        asks = (of_class("warm", "small", 2, role=Role.INIT), of_class("main", "small"))
        pod = w.admit(*asks, on={"warm": [A, B], "main": [A]})
        async with control_plane(w, pod):
            await w.kubelet.running(pod)
        w.check(pod)


async def test_another_card_that_kubelet_took_is_reported_with_the_amounts_of_the_placement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def silent(*_: object, available: list[str], size: int, **__: object) -> list[str]:
        return sorted(available, reverse=True)[:size]  # of the last card

    monkeypatch.setattr(PreferredAllocation, "prefer", silent)
    async with world() as w:
        pod = w.admit(of_class("main", "timed"), on={"main": [A]})
        async with control_plane(w, pod):
            await w.kubelet.running(pod)
        w.check(pod)
        (given,) = w.placement(pod).containers[0].slices
        assert (given.card, given.memory, given.cores) == (B.uuid, GIB, 20)


# ── other devices ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_device_beside_a_gpu_in_one_container() -> None:
    async with world(others=tuple(IB)) as w:
        assert w.kubelet.capacity()[DEVICE_SLOT] == (3, 3)
        pod = w.admit(of_class("main", "small", devices=2), on={"main": [B, FIRST, SECOND]})
        await w.kubelet.running(pod)
        w.check(pod)
        env = w.env(pod, "main")
        assert env["NVIDIA_VISIBLE_DEVICES"] == B.uuid
        assert env["FRACTILE_DEVICES"] == f"{FIRST.uuid},{SECOND.uuid}"
        held = {r: count_by_card(sorted(ids)) for r, ids in recorded(w).items()}
        assert held == {GPU_SLOT: {B.uuid: 1}, DEVICE_SLOT: {FIRST.uuid: 1, SECOND.uuid: 1}}
        assert len(w.tokens()) == 1, "nothing of the devices is limited"


async def test_a_device_without_a_gpu_needs_no_directory() -> None:
    async with world(others=tuple(IB)) as w:
        asks = Asks("main", 1, DEVICE_SLOT, more=((resource_name("ib"), 1),))
        pod = w.admit(asks, on={"main": [SECOND]})
        await w.kubelet.running(pod)
        w.check(pod)
        started = w.kubelet.started(pod, "main")
        assert started is not None
        assert directory.MOUNT not in started.mounts
        assert w.tokens() == []


async def test_a_device_beside_a_gpu_of_another_family() -> None:
    async with world(others=tuple(IB)) as w:
        asks = Asks("main", 4, more=((DEVICE_SLOT, 1), (resource_name("ib"), 1)))
        pod = w.admit(asks, on={"main": [A, SECOND]})
        await w.kubelet.running(pod)
        w.check(pod)


@pytest.mark.parametrize("seed", range(3))
async def test_pods_that_share_a_device_and_pods_that_do_not_come_together(seed: int) -> None:
    async with world(seed=seed, others=tuple(IB)) as w:
        on = [[A, SECOND], [B, SECOND], [B, FIRST]]
        pods = [w.bind(of_class("main", "small", devices=1), on={"main": cards}) for cards in on]
        for pod in reversed(pods):
            w.kubelet.add(pod)
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)


async def test_a_device_that_somebody_else_holds_is_not_given_twice() -> None:
    """A control plane that is wrong: kubelet has another device left, and nobody confirms that."""
    async with world(others=tuple(IB)) as w:
        asks = Asks("main", 1, DEVICE_SLOT, more=((resource_name("ib"), 1),))
        first = w.admit(asks, on={"main": [FIRST]})
        await w.kubelet.running(first)
        second = w.admit(asks, on={"main": [FIRST]})
        await until(lambda: placement.CHOICE_ANNOTATION in w.annotations(second))
        (chosen,) = placement.decode(w.annotations(second)[placement.CHOICE_ANNOTATION]).containers
        assert [(s.card, s.memory, s.shares) for s in chosen.slices] == [(SECOND.uuid, 0, 1)]
        assert w.kubelet.started(second, "main") is None


@pytest.mark.parametrize(("shares", "refused"), [(2, False), (3, True)])
def test_more_shares_than_a_device_has_hold_the_container_back(shares: int, refused: bool) -> None:
    used = [Charge(SECOND.uuid, MiB(0), Percent(0), shares=1)] * shares
    denied = too_much(SECOND, used, used[0], "default/p")
    assert (denied is not None) is refused
    assert denied is None or "has 2 share(s) and the pods placed on it need 3" in denied.reason


def test_what_devices_need_is_given_once() -> None:
    """Device files, mounts and variables of several devices in one answer."""
    common = Mount("/opt/mlx", "/opt/mlx")
    offers = [Offer(o.device, o.nodes, (common,), o.environment) for o in IB]
    catalog = Catalog.of(CARDS, MemoryUnit.MiB, others=offers)
    answer = answer_for_others({FIRST.uuid: 1, SECOND.uuid: 1}, catalog)
    both = f"{FIRST.uuid},{SECOND.uuid}"
    assert dict(answer.envs) == {"HCA": both, "FRACTILE_DEVICES": both}
    assert [d.host_path for d in answer.devices] == ["/dev/infiniband/uverbs0", "/dev/infiniband/uverbs1"]
    assert [(m.host_path, m.read_only) for m in answer.mounts] == [("/opt/mlx", True)]
