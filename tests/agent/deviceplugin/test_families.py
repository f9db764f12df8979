"""Containers that ask through two resources of one family, and families side by side."""

from collections.abc import Iterable

import pytest

from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.deviceplugin.prestart import PreStart
from fractile.agent.kubelet.owner import Denied
from fractile.model.request import Role
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.fractile.device_ids import count_by_card
from tests.agent.test_path import control_plane, until
from tests.agent.world import BLOCKS, CARDS, CORE, COUNT, GIB, GPU, SLOTS, Asks, World, card, share, world

GPUMEM, GPUCORES, PRIORITY = "nvidia.com/gpumem", "nvidia.com/gpucores", "nvidia.com/priority"
A, B = CARDS
MIB = 2**20


async def test_a_share_gets_its_card_its_limits_and_the_annotations_of_gpu_manager() -> None:
    async with world() as w:
        pod = w.admit(share("main", 50, 30), on={"main": [B]})
        await w.kubelet.running(pod)
        w.check(pod)
        (limits,) = w.limits(pod, "main").cards
        assert (limits.memory, limits.cores, limits.cores_limit) == (7680 * MIB, 50, 50)
        assert w.env(pod, "main") == {"NVIDIA_VISIBLE_DEVICES": B.uuid}
        started = w.kubelet.started(pod, "main")
        assert started is not None
        assert started.annotations == {
            CORE: "50",
            BLOCKS: str(7680 * MIB),
            "tencent.com/vcuda-device": "/dev/nvidia1",
        }
        assert {r: count_by_card(ids) for r, ids in recorded(w).items()} == {CORE: {B.uuid: 50}, BLOCKS: {B.uuid: 30}}
        assert len(w.tokens()) == 1  # the memory's Allocate grants nothing
        await until(lambda: w.annotations(pod).get("tencent.com/gpu-assigned") == "true")


async def test_the_soft_limit_of_the_pod_reaches_the_limits_page() -> None:
    async with world() as w:
        pod = w.bind(share("main", 50, 30), on={"main": [A]})
        w.annotate(pod, {"tencent.com/vcuda-core-limit": "80"})
        w.kubelet.add(w.pod(pod))
        await w.kubelet.running(pod)
        (limits,) = w.limits(pod, "main").cards
        assert (limits.cores, limits.cores_limit) == (50, 80)


async def test_whole_cards_by_cores_are_named_by_a_hundred_ids_each() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 200, CORE), on={"main": [A, B]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert [c.memory for c in w.limits(pod, "main").cards] == [16 * GIB * MIB] * 2


@pytest.mark.parametrize("seed", range(4))
async def test_ids_that_are_only_counted_may_be_of_any_card(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    prefer = PreferredAllocation.prefer

    async def not_for_memory(
        self: PreferredAllocation,
        resource: str,
        *,
        available: list[str],
        must_include: list[str],
        size: int,
        distinct: bool = False,
    ) -> list[str]:
        if resource == BLOCKS:
            return []
        return await prefer(
            self, resource, available=available, must_include=must_include, size=size, distinct=distinct
        )

    monkeypatch.setattr(PreferredAllocation, "prefer", not_for_memory)
    async with world(seed=seed) as w:
        pods = [w.admit(share("main", 30, 20), on={"main": [card]}) for card in (A, B, A)]
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)
        assert not w.kubelet.refusals


async def test_when_the_ids_that_name_the_card_are_of_another_one_the_ledger_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def of_card_a(
        self: PreferredAllocation,
        resource: str,
        *,
        available: list[str],
        must_include: list[str],
        size: int,
        distinct: bool = False,
    ) -> list[str]:
        return sorted(i for i in available if i.startswith(A.uuid))[:size]

    monkeypatch.setattr(PreferredAllocation, "prefer", of_card_a)
    async with world() as w:
        pod = w.bind(share("main", 30, 20), on={"main": [B]})
        async with control_plane(w, pod):
            w.kubelet.add(pod)
            await w.kubelet.running(pod)
        assert [s.card for s in w.placement(pod).slices_of(w.request(pod).containers[0].container)] == [A.uuid]
        w.check(pod)


@pytest.mark.parametrize("seed", range(3))
async def test_an_init_container_hands_both_resources_on(seed: int) -> None:
    async with world(seed=seed) as w:
        asks = (
            share("warm", 60, 8, role=Role.INIT),
            share("log", 10, 4, role=Role.SIDECAR),
            share("main", 40, 30),
        )
        pods = [w.admit(*asks, on={name: [card] for name in ("warm", "log", "main")}) for card in (A, B)]
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)
        assert not w.kubelet.refusals
        for pod in pods:
            found = {name: w.kubelet.started(pod, name) for name in ("warm", "log", "main")}
            assert {
                name: s and (s.annotations[CORE], int(s.annotations[BLOCKS]) // MIB // 256) for name, s in found.items()
            } == {
                "warm": ("60", 8),
                "log": ("10", 4),
                "main": ("40", 30),
            }


async def test_the_same_ids_stand_for_other_amounts_in_the_next_container() -> None:
    async with world() as w:
        asks = (share("warm", 40, 8, role=Role.INIT), share("main", 40, 30))
        pod = w.admit(*asks, on={name: [A] for name in ("warm", "main")})
        await w.kubelet.running(pod)
        w.check(pod)
        started = w.kubelet.started(pod, "main")
        assert started is not None
        assert started.annotations[BLOCKS] == str(7680 * MIB)


async def test_three_ways_to_ask_share_one_card_and_its_neighbour() -> None:
    async with world() as w:
        pods = [
            w.admit(Asks("main", 4), on={"main": [A]}),
            w.admit(share("main", 50, 16), on={"main": [A]}),
            w.admit(share("one", 20, 8), Asks("two", 3), on={"one": [A], "two": [A]}),
            w.admit(Asks("main", 1, COUNT), on={"main": [B]}),
        ]
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)
        assert not w.kubelet.refusals


async def test_a_card_whose_cores_are_all_promised_starts_nobody_without_a_share() -> None:
    async with world() as w:
        pods = [w.admit(share("main", cores, 4), on={"main": [A]}) for cores in (60, 40)]
        for pod in pods:
            await w.kubelet.running(pod)
        w.admit(Asks("main", 1), on={"main": [A]})
        assert "only if every container has a share" in await w.kubelet.refused("cores")


async def test_kubelet_asks_for_permission_to_start_only_once_per_container(monkeypatch: pytest.MonkeyPatch) -> None:
    check, asked = PreStart.check, list[str]()

    async def spied(self: PreStart, resource: str, ids: frozenset[str]) -> Denied | None:
        asked.append(resource)
        return await check(self, resource, ids)

    monkeypatch.setattr(PreStart, "check", spied)
    async with world() as w:
        pod = w.admit(share("main", 50, 30), on={"main": [A]})
        await w.kubelet.running(pod)
    assert asked == [CORE]


async def test_a_node_of_unequal_cards_counts_each_ones_blocks() -> None:
    async with world(cards=[card(0, 1000), card(1, 16 * GIB)]) as w:
        assert w.kubelet.capacity()[BLOCKS] == (3 + 64, 3 + 64)


def recorded(w: World) -> dict[str, Iterable[str]]:
    """The ids that kubelet has handed out, by resource; for one container."""
    text = (w.kubelet.plugin_directory / kubelet_checkpoint.FILE_NAME).read_bytes()
    return {entry.resource: sorted(entry.ids) for entry in kubelet_checkpoint.decode(text)}


# ── the names of HAMi ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_parts_of_two_cards_by_slots_get_their_cards_their_limits_and_hamis_variables() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 2, GPU, more=((GPUMEM, 3000), (GPUCORES, 30), (PRIORITY, 0))), on={"main": [A, B]})
        await w.kubelet.running(pod)
        w.check(pod)
        limits = w.limits(pod, "main")
        assert limits.priority == 1
        assert [(c.memory, c.cores, c.cores_limit) for c in limits.cards] == [(3000 * MIB, 30, 30)] * 2
        env = w.env(pod, "main")
        assert (env["CUDA_DEVICE_MEMORY_LIMIT_1"], env["CUDA_DEVICE_SM_LIMIT"]) == ("3000m", "30")
        await until(lambda: w.annotations(pod).get("hami.io/bind-phase") == "success")


async def test_families_of_three_systems_share_one_card() -> None:
    async with world() as w:
        pods = [
            w.admit(Asks("main", 4), on={"main": [A]}),
            w.admit(share("main", 50, 16), on={"main": [A]}),
            w.admit(Asks("main", 1, GPU, more=((GPUMEM, 2000), (GPUCORES, 30))), on={"main": [A]}),
            w.admit(Asks("main", 1, GPU), on={"main": [B]}),
        ]
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)
        assert not w.kubelet.refusals


@pytest.mark.parametrize("seed", range(3))
async def test_all_slots_of_a_card_are_used_before_one_of_another_is_taken_for_it(seed: int) -> None:
    async with world(seed=seed) as w:
        on_b = [w.admit(Asks("main", 1, GPU, more=((GPUMEM, 100),)), on={"main": [B]}) for _ in range(SLOTS)]
        for pod in on_b:
            await w.kubelet.running(pod)
        both = w.admit(Asks("main", 1, GPU, more=((GPUMEM, 100),)), on={"main": [A]})
        await w.kubelet.running(both)
        w.check(*on_b, both)
