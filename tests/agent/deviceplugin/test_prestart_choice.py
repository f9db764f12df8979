"""Kubelet chose other cards than the placement names: that is reported, and waited for."""

from collections.abc import AsyncGenerator

import pytest

from fractile.agent.kubelet.owner import Denied
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import Role
from fractile.model.units import ContainerName, MiB
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from fractile.wire.kubernetes.objects import Pod
from tests.agent.deviceplugin.start import Start, ids, start
from tests.agent.world import CARDS, NODE, Asks, adapter, card, of_class

A, B = CARDS
FOUR = ids(A, 4)


@pytest.fixture
async def s() -> AsyncGenerator[Start]:
    async with start() as made:
        yield made


def patches(s: Start) -> int:
    return sum(r.method == "PATCH" for r in s.world.server.requests)


def choice(s: Start, pod: Pod) -> dict[str, tuple[Role, list[tuple[str, int]]]]:
    """What is reported of each container: its role, and the card and MiB of each of its slices."""
    found = placement.decode(s.world.annotations(pod)[placement.CHOICE_ANNOTATION])
    assert found.node == NODE
    return {c.container: (c.role, [(x.card, x.memory) for x in c.slices]) for c in found.containers}


async def test_what_kubelet_chose_is_reported_and_granted_when_the_placement_says_so(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    token = s.holds(pod, "main", FOUR)
    s.moves(pod, after=3)
    assert await s.check(FOUR) is None
    assert choice(s, pod) == {"main": (Role.APP, [(A.uuid, 4096)])}
    assert s.slept == [0.25] * 3
    assert s.allowed(token) == {A.uuid: 4096}


async def test_a_choice_that_is_not_confirmed_within_twenty_seconds_is_denied(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    token = s.holds(pod, "main", FOUR)
    said = Denied(
        f"kubelet gave pod default/{pod.metadata.name} {A.uuid}, but its placement names other cards, and the control "
        "plane has not confirmed the change within 20 s: the cards may have no room for the pod, or the control plane "
        "does not run"
    )
    assert await s.check(FOUR) == said
    assert s.slept == [0.25] * 80
    assert s.limits(token) is None
    assert patches(s) == 1
    assert await s.check(FOUR) == said  # kubelet asks again
    assert patches(s) == 1  # and what it chose is there already


async def test_several_cards_that_kubelet_chose_are_all_named(s: Start) -> None:
    third = card(2)
    async with start(cards=[A, B, third]) as s:
        pod = s.bind(Asks("a", 4), Asks("b", 4), on={"a": [third], "b": [third]})
        s.holds(pod, "a", FOUR)
        s.holds(pod, "b", ids(B, 4))
        denied = await s.check(FOUR)
        assert denied is not None
        assert f"{A.uuid}, {B.uuid}, but its placement" in denied.reason


async def test_one_container_on_another_card_is_enough_to_wait(s: Start) -> None:
    asks = Asks("warm", 4, role=Role.INIT), Asks("side", 2, role=Role.SIDECAR), Asks("main", 4)
    pod = s.bind(*asks, on={"warm": [A], "side": [A], "main": [A]})
    s.holds(pod, "warm", FOUR)
    s.holds(pod, "side", ids(A, 2, 4))
    s.holds(pod, "main", ids(B, 4))
    assert await s.check(FOUR) is not None
    assert choice(s, pod) == {
        "warm": (Role.INIT, [(A.uuid, 4096)]),
        "side": (Role.SIDECAR, [(A.uuid, 2048)]),
        "main": (Role.APP, [(B.uuid, 4096)]),
    }


@pytest.mark.parametrize("again", [False, True], ids=["deleted", "deleted and made again"])
async def test_a_pod_that_goes_while_its_move_is_waited_for_does_not_start(s: Start, again: bool) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]}, name="web-0")
    s.holds(pod, "main", FOUR)

    def go(count: int) -> None:
        if count == 2:
            s.world.server.delete(s.path(pod))
            if again:
                s.world.bind(Asks("main", 4), on={"main": [A]}, name="web-0")

    s.asleep = go
    assert await s.check(FOUR) == Denied("pod default/web-0 is gone")
    assert len(s.slept) == 2


async def test_a_placement_that_goes_wrong_while_it_is_waited_for_is_a_reason(s: Start) -> None:
    pod = s.bind(Asks("main", 4), on={"main": [B]})
    s.holds(pod, "main", FOUR)

    def wrong(count: int) -> None:
        if count == 2:
            s.world.annotate(pod, {placement.ANNOTATION: None})

    s.asleep = wrong
    denied = await s.check(FOUR)
    assert denied is not None
    assert "has no placement" in denied.reason
    assert len(s.slept) == 2


async def test_an_init_container_of_which_nothing_is_known_is_taken_as_placed(s: Start) -> None:
    """Only the record knows init containers, and it cannot be read."""
    pod = s.bind(Asks("warm", 2, role=Role.INIT), Asks("main", 4), on={"warm": [B], "main": [A]})
    token = s.holds(pod, "main", FOUR)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) is None
    assert s.allowed(token) == {A.uuid: 4096}


async def test_a_container_to_which_nobody_gives_anything_is_not_reported(s: Start) -> None:
    pod = s.bind(Asks("warm", 2, role=Role.INIT), Asks("main", 4), on=None)
    main = ContainerPlacement(ContainerName("main"), Role.APP, (Slice(B.uuid, MiB(4096)),))
    s.world.write_placement(pod, Placement(NODE, (main,)))
    s.holds(pod, "main", FOUR)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) is not None
    assert choice(s, pod) == {"main": (Role.APP, [(A.uuid, 4096)])}


async def test_devices_of_a_container_beside_its_gpu_are_held_to_its_placement_too(s: Start) -> None:
    here, there = adapter(0), adapter(1)
    async with start(others=(here, there)) as s:
        both = of_class("main", devices=1)
        pod = s.bind(both, on={"main": [A, here.device]})
        s.holds(pod, "main", ids(A, 1), GPU_SLOT)
        s.holds(pod, "main", ids(here.device, 1), DEVICE_SLOT)
        assert await s.check(ids(A, 1), GPU_SLOT) is None
        assert await s.check(ids(here.device, 1), DEVICE_SLOT) is None
        other = s.bind(both, on={"main": [A, here.device]})
        s.holds(other, "main", ids(A, 1, 1), GPU_SLOT)
        s.holds(other, "main", ids(there.device, 1), DEVICE_SLOT)
        assert await s.check(ids(there.device, 1), DEVICE_SLOT) is not None
        assert choice(s, other) == {"main": (Role.APP, [(A.uuid, 2048), (there.uuid, 0)])}
