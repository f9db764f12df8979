"""The whole way of a pod on its node: kubelet's calls, the agent, the API server."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest

from fractile.agent.kubelet import rpc
from fractile.kube import paths
from fractile.model.placement import Placement
from fractile.model.request import Role
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.fractile import placement
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT
from fractile.wire.kubernetes.objects import Pod
from tests.agent.world import BLOCKS, CARDS, CORE, COUNT, GPU, MEM, Asks, World, card, world
from tests.fakes.apiserver import Fault

A, B = CARDS


async def until(true: Callable[[], bool], *, seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def confirm(w: World, pod: Pod) -> Placement:
    """Play the control plane: take over what kubelet chose."""
    await until(lambda: placement.CHOICE_ANNOTATION in w.annotations(pod))
    choice = placement.decode(w.annotations(pod)[placement.CHOICE_ANNOTATION])
    w.write_placement(pod, choice)
    w.annotate(pod, {placement.CHOICE_ANNOTATION: None})
    return choice


@asynccontextmanager
async def control_plane(w: World, pod: Pod) -> AsyncGenerator[None]:
    """Confirm whatever kubelet chooses for the pod, should it choose other cards than placed."""
    task = asyncio.create_task(confirm(w, pod))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_a_pod_gets_the_card_of_its_placement_and_its_limits() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on={"main": [B]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert w.env(pod, "main") == {
            "NVIDIA_VISIBLE_DEVICES": B.uuid,
            "ALIYUN_COM_GPU_MEM_IDX": "1",
            "ALIYUN_COM_GPU_MEM_DEV": "16",
            "ALIYUN_COM_GPU_MEM_POD": "4",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
        }


async def test_pods_of_one_size_admitted_in_another_order_than_bound_keep_their_own_cards() -> None:
    async with world() as w:
        pods = [w.bind(Asks("main", 4), on={"main": [c]}) for c in (A, B, A, B, B, A)]
        for pod in reversed(pods):
            w.kubelet.add(pod)
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)


async def test_containers_of_one_pod_may_be_on_different_cards() -> None:
    async with world() as w:
        pod = w.admit(Asks("a", 4), Asks("b", 4), Asks("c", 0), on={"a": [B], "b": [A]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert w.env(pod, "a")["ALIYUN_COM_GPU_MEM_POD"] == "8"
        assert w.env(pod, "c") == {}


async def test_whole_cards_and_shared_cards_live_on_one_node() -> None:
    async with world() as w:
        whole = w.admit(Asks("main", 1, COUNT), on={"main": [B]})
        shared = w.admit(Asks("main", 5), on={"main": [A]})
        for pod in (whole, shared):
            await w.kubelet.running(pod)
        w.check(whole, shared)
        assert w.limits(whole, "main").cards[0].memory == B.memory * 2**20


async def test_a_container_may_hold_several_whole_cards() -> None:
    cards = [card(n) for n in range(4)]
    async with world(cards=cards) as w:
        pod = w.admit(Asks("main", 2, COUNT), on={"main": [cards[3], cards[1]]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert len(w.limits(pod, "main").cards) == 2


async def test_an_init_container_and_its_successor_share_ids_and_both_get_limits() -> None:
    async with world() as w:
        pod = w.admit(Asks("first", 4, role=Role.INIT), Asks("main", 4), on={"first": [B], "main": [B]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert w.env(pod, "main")["ALIYUN_COM_GPU_MEM_POD"] == "4"


async def test_a_smaller_successor_of_an_init_container_knows_the_pods_total() -> None:
    async with world() as w:
        pod = w.admit(Asks("first", 6, role=Role.INIT), Asks("main", 2), on={"first": [A], "main": [A]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert w.env(pod, "main")["ALIYUN_COM_GPU_MEM_POD"] == "6"
        assert w.env(pod, "main")["ALIYUN_COM_GPU_MEM_CONTAINER"] == "2"


async def test_only_the_init_container_uses_the_card() -> None:
    async with world() as w:
        pod = w.admit(Asks("first", 6, role=Role.INIT), Asks("main", 0), on={"first": [B]})
        await w.kubelet.running(pod)
        w.check(pod)


async def test_a_sidecar_keeps_its_own_slice() -> None:
    async with world() as w:
        asks = (Asks("first", 4, role=Role.INIT), Asks("side", 3, role=Role.SIDECAR), Asks("main", 4))
        pod = w.admit(*asks, on={"first": [B], "side": [B], "main": [B]})
        await w.kubelet.running(pod)
        w.check(pod)


async def test_the_pod_is_marked_assigned() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on={"main": [A]})
        assert w.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
        await until(lambda: w.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")


async def test_assigned_is_made_good_after_failures_and_after_a_restart_of_the_agent() -> None:
    async with world() as w:
        w.server.inject(Fault(method="PATCH", path="/pods/", times=100, status=403))
        pod = w.admit(Asks("main", 4), on={"main": [A]})
        await w.kubelet.running(pod)
        await w.stop_agent()
        w.server.heal()
        assert w.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "false"
        w.start_agent()
        await until(lambda: w.annotations(pod)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")


# What kubelet chose against the placement


async def test_another_card_than_placed_is_reported_and_accepted_when_the_ledger_moves() -> None:
    async with world() as w:
        w.server.inject(
            Fault(method="GET", path="/pods/p1", times=1, status=404)
        )  # GetPreferredAllocation finds no pod
        full = w.admit(Asks("main", 15), on={"main": [B]}, name="full")
        await w.kubelet.running(full)
        pod = w.bind(Asks("main", 8), on={"main": [B]}, name="p1")  # kubelet can only give A
        w.kubelet.add(pod)
        choice = await confirm(w, pod)
        assert {s.card for c in choice.containers for s in c.slices} == {A.uuid}
        await w.kubelet.running(pod)
        w.check(full, pod)


async def test_a_choice_that_nobody_confirms_keeps_the_container_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fractile.agent.deviceplugin.prestart._WAIT", 0.5)
    async with world() as w:
        full = w.admit(Asks("main", 16), on={"main": [B]})
        await w.kubelet.running(full)
        pod = w.admit(Asks("main", 8), on={"main": [B]})
        message = await w.kubelet.refused("has not confirmed the change")
        assert pod.metadata.name in message
        assert A.uuid in message
        assert w.kubelet.started(pod, "main") is None


async def test_a_namesake_created_meanwhile_confirms_nothing() -> None:
    """The pod was deleted while its move was waited for; another one of its name has the card that kubelet chose."""
    async with world() as w:
        full = w.admit(Asks("main", 16), on={"main": [B]})
        await w.kubelet.running(full)
        pod = w.admit(Asks("main", 8), on={"main": [B]}, name="twice")
        await until(lambda: placement.CHOICE_ANNOTATION in w.annotations(pod))
        choice = placement.decode(w.annotations(pod)[placement.CHOICE_ANNOTATION])
        w.server.delete(paths.pod("default", "twice"))
        w.write_placement(w.bind(Asks("main", 8), on=None, name="twice"), choice)
        message = await w.kubelet.refused("is gone")
        assert pod.metadata.name in message
        assert w.kubelet.started(pod, "main") is None


async def test_the_api_server_being_away_at_the_preferred_allocation_costs_no_pod() -> None:
    async with world() as w:
        w.server.inject(Fault(method="GET", path="/pods/p1", times=1, status=403))
        pod = w.admit(Asks("main", 4), on={"main": [B]}, name="p1")
        async with control_plane(w, pod):
            await w.kubelet.running(pod)
        w.check(pod)


async def test_an_api_server_that_comes_back_within_seconds_is_waited_for_at_the_preferred_allocation() -> None:
    async with world() as w:
        w.server.inject(Fault(method="GET", path="/pods/p1", times=7, status=503))
        pod = w.admit(Asks("main", 4), on={"main": [B]}, name="p1")
        await w.kubelet.running(pod)  # nobody is there who would move the placement
        w.check(pod)


async def test_where_nothing_is_known_the_card_with_the_most_room_is_preferred() -> None:
    """Kubelet counts resources apart: it would give ids of a card of which another resource holds all."""
    async with world() as w:
        whole = w.admit(Asks("main", 1, COUNT), on={"main": [A]})
        await w.kubelet.running(whole)
        w.server.inject(Fault(method="GET", path="/pods/late", times=1, status=403))
        pod = w.admit(Asks("main", 4), on={"main": [B]}, name="late")
        await w.kubelet.running(pod)
        w.check(whole, pod)


# What is refused


async def test_a_pod_without_placement_waits_and_starts_when_it_has_one() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on=None)
        message = await w.kubelet.refused("has no placement")
        assert pod.metadata.name in message
        assert w.kubelet.started(pod, "main") is None
        w.place(pod, {"main": [A]})
        async with control_plane(w, pod):  # without a placement, the preferred ids would be a guess
            await w.kubelet.running(pod)
        w.check(pod)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        pytest.param("{", "malformed", id="not json"),
        pytest.param('{"version":2}', "version 2", id="another version"),
        pytest.param(
            '{"version":1,"node":"n2","containers":{"main":{"role":"app","slices":[{"card":"c","memoryMiB":1}]}}}',
            "is for node n2",
            id="another node",
        ),
    ],
)
async def test_a_placement_that_makes_no_sense_is_refused_with_a_sentence(text: str, reason: str) -> None:
    async with world() as w:
        pod = w.bind(Asks("main", 4), on=None)
        w.annotate(pod, {placement.ANNOTATION: text})
        w.kubelet.add(pod)
        await w.kubelet.refused(reason)


async def test_a_card_is_never_given_to_more_than_it_has() -> None:
    async with world() as w:
        first = w.admit(Asks("main", 10), on={"main": [A]})
        await w.kubelet.running(first)
        # Two dialects' resources are counted apart by kubelet: only we see that the whole card is not free.
        greedy = w.admit(Asks("main", 1, COUNT), on={"main": [A]})
        message = await w.kubelet.refused("has 16384 MiB")
        assert "26624 MiB" in message
        w.delete(first)
        await w.kubelet.running(greedy)
        w.check(greedy)


async def test_two_pods_that_the_watch_has_not_shown_yet_are_counted_together() -> None:
    async with world() as w:
        w.server.inject(Fault(watch=True, path="/pods", times=100, silent=True))
        await w.server.cut_connections()
        first = w.admit(Asks("main", 10), on={"main": [A]})
        await w.kubelet.running(first)
        w.admit(Asks("main", 1, COUNT), on={"main": [A]})
        await w.kubelet.refused("has 16384 MiB")


async def test_a_pod_deleted_and_made_anew_under_its_name_is_not_confused_with_the_old_one() -> None:
    async with world() as w:
        old = w.admit(Asks("main", 4), on={"main": [A]}, name="web-0")
        await w.kubelet.running(old)
        w.delete(old)
        new = w.admit(Asks("main", 4), Asks("more", 2), on={"main": [B], "more": [B]}, name="web-0")
        await w.kubelet.running(new)
        w.check(new)
        assert w.limits(new, "main").pod_uid != old.metadata.uid


async def test_kubelet_starting_an_older_pod_of_the_name_is_refused() -> None:
    async with world() as w:
        old = w.bind(Asks("main", 4), on={"main": [A]}, name="web-0")
        w.server.delete(paths.pod("default", "web-0"))
        w.bind(Asks("main", 4), on={"main": [A]}, name="web-0")
        w.kubelet.add(old)
        await w.kubelet.refused("earlier pod of the name")


# Restarts


async def test_a_restarted_kubelet_loses_no_pod() -> None:
    async with world() as w:
        before = [w.admit(Asks("main", 2), on={"main": [c]}) for c in (A, B)]
        init = w.admit(Asks("first", 2, role=Role.INIT), Asks("main", 2), on={"first": [A], "main": [A]})
        for pod in (*before, init):
            await w.kubelet.running(pod)
        await w.kubelet.stop()
        waiting = [w.admit(Asks("main", 2), on={"main": [c]}) for c in (B, A, B)]
        w.kubelet.start()
        for pod in (*before, init, *waiting):
            await w.kubelet.running(pod)
        w.check(*before, init, *waiting)


async def test_a_restarted_agent_touches_nothing_and_goes_on() -> None:
    async with world() as w:
        old = w.admit(Asks("main", 4), on={"main": [B]})
        await w.kubelet.running(old)
        tokens = w.tokens()
        await w.restart_agent()
        await w.ready()
        assert w.tokens() == tokens
        new = w.admit(Asks("main", 4), on={"main": [B]})
        await w.kubelet.running(new)
        w.check(old, new)


async def test_an_agent_restarted_between_allocate_and_prestart_still_grants() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on=None)  # admitted, waits for its placement
        await w.kubelet.refused("has no placement")
        await w.stop_agent()
        w.place(pod, {"main": [A]})
        w.start_agent()
        async with control_plane(w, pod):
            await w.kubelet.running(pod)
        w.check(pod)


async def test_a_token_directory_that_was_lost_is_made_anew() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 4), on=None)
        await w.kubelet.refused("has no placement")
        for token in w.tokens():
            folder = w.root / "state" / "slices" / token
            shutil.rmtree(folder)
        w.place(pod, {"main": [A]})
        async with control_plane(w, pod):
            await w.kubelet.running(pod)
        w.check(pod)


async def test_with_a_checkpoint_of_an_unknown_form_apps_are_still_served(monkeypatch: pytest.MonkeyPatch) -> None:
    def another_form(*_: object) -> bytes:
        return b'{"Data":{"PodDeviceEntries":{"of":"kubelet 1.99"}}}'

    monkeypatch.setattr(kubelet_checkpoint, "encode", another_form)
    async with world() as w:
        pods = [w.admit(Asks("main", 4), on={"main": [B]}) for _ in range(2)]
        for pod in pods:
            await w.kubelet.running(pod)
        w.check(*pods)


async def test_the_start_of_a_container_asks_kubelet_for_no_list(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    real = rpc.KubeletChannel.call

    async def call(
        self: rpc.KubeletChannel, method: rpc.Method[rpc.Q, rpc.R], request: rpc.Q, *, timeout: float
    ) -> rpc.R:
        asked.append(method.name)
        return await real(self, method, request, timeout=timeout)

    monkeypatch.setattr(rpc.KubeletChannel, "call", call)
    async with world() as w:
        pod = w.admit(Asks("main", 2), on={"main": [B]})
        await w.kubelet.running(pod)
        w.check(pod)
        assert asked == ["List"]  # to know whom it admits
        w.kubelet.end_container(pod, "main")
        await w.kubelet.running(pod)
        assert asked == ["List"]


async def test_without_a_record_the_list_says_who_starts() -> None:
    async with world() as w:
        pod = w.admit(Asks("main", 2), on={"main": [B]})
        await w.kubelet.running(pod)
        w.kubelet.plugin_directory.joinpath(kubelet_checkpoint.FILE_NAME).write_text("{}")
        w.kubelet.end_container(pod, "main")
        await w.kubelet.running(pod)
        w.check(pod)


async def test_all_resources_are_registered_with_kubelet_in_the_unit_of_the_cluster() -> None:
    async with world() as w:
        assert w.kubelet.capacity() == {
            MEM: (32, 32),
            COUNT: (2, 2),
            CORE: (200, 200),
            BLOCKS: (128, 128),
            GPU: (20, 20),
            GPU_SLOT: (512, 512),
            DEVICE_SLOT: (0, 0),
        }
