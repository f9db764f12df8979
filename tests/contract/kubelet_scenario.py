"""What kubelet does to a device plugin, as steps that run against the fake kubelet and against a real one.

Each scenario registers ``Recorder``, a plugin of its own resource, in a ``KubeletWorld`` and looks at its calls.
tests/contract/test_kubelet.py runs them on the fake; the end-to-end tests run the same functions on a real node.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager

import grpc
import grpc.aio

from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.model.units import PodUID
from fractile.wire.foreign import kubelet_checkpoint
from tests.contract.kubelet_recorder import (
    PATIENCE,
    Containers,
    KubeletWorld,
    Recorder,
    numbers,
    offers,
    recording,
    until,
)


async def options_are_asked_before_register_is_answered_and_devices_after(world: KubeletWorld) -> None:
    async with recording(world) as recorder:
        assert recorder.order[0] == "options"
        assert set(recorder.order) == {"options", "registered", "list"}


async def one_container_is_preferred_allocated_and_started_with_the_same_ids(world: KubeletWorld) -> None:
    async with recording(world) as recorder, _pod(world, recorder, containers=[("main", 3)]) as (name, uid):
        prefer, allocate, start = recorder.calls
        assert (prefer.kind, allocate.kind, start.kind) == ("prefer", "allocate", "start")
        assert prefer.ids == allocate.ids == start.ids == {*recorder.devices[-3:]}
        assert (prefer.must, prefer.size) == (frozenset(), 3)
        assert f"{name}/main" in prefer.waiting
        (entry,) = _recorded(world, uid)
        assert (entry.container, entry.resource, entry.ids) == ("main", recorder.resource, allocate.ids)
        answer = dp.ContainerAllocateResponse.FromString(entry.answer)
        assert answer.envs == {"RECORDED": "2"}
        assert f"{name}/main" not in await recorder.waiting()


async def containers_are_admitted_in_order_before_the_first_one_starts(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, containers=[("b", 1), ("none", 0), ("a", 2)]) as (name, _),
    ):
        assert recorder.kinds() == ["prefer", "allocate", "prefer", "allocate", "start", "start"]
        assert [c.size for c in recorder.calls[:4]] == [1, 1, 2, 2]
        assert {f"{name}/b", f"{name}/a"} <= recorder.calls[0].waiting
        assert f"{name}/b" not in recorder.calls[2].waiting
        assert f"{name}/a" in recorder.calls[2].waiting


async def an_init_containers_ids_are_reused_without_asking(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, init=[("first", 4)], containers=[("main", 2)]) as (name, uid),
    ):
        assert recorder.kinds() == ["prefer", "allocate", "allocate", "start", "start"]
        first, main = recorder.calls[1], recorder.calls[2]
        assert len(first.ids) == 4
        assert main.ids < first.ids
        assert f"{name}/first" not in recorder.calls[0].waiting, "init containers are not listed"
        assert f"{name}/main" in recorder.calls[0].waiting
        assert {e.container: e.ids for e in _recorded(world, uid)} == {"first": first.ids, "main": main.ids}


async def ids_that_must_be_included_are_those_of_the_init_container(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, init=[("first", 2)], containers=[("main", 5)]),
    ):
        assert recorder.kinds() == ["prefer", "allocate", "prefer", "allocate", "start", "start"]
        first, prefer, main = recorder.calls[1], recorder.calls[2], recorder.calls[3]
        assert prefer.must == first.ids
        assert prefer.size == 5
        assert first.ids < main.ids == prefer.ids


async def a_refused_start_is_tried_again_and_the_pod_stays(world: KubeletWorld) -> None:
    async with recording(world) as recorder:
        recorder.refuse_starts = 2
        async with _pod(world, recorder, containers=[("main", 1)]) as (name, _):
            assert recorder.kinds() == ["prefer", "allocate", "start", "start", "start"]
            assert "not yet, says the test" in await world.message(name)


async def a_refused_allocate_fails_the_pod_for_good(world: KubeletWorld) -> None:
    async with recording(world) as recorder:
        recorder.refuse_allocate = True
        async with _pod(world, recorder, containers=[("main", 1)], phase="Failed") as (name, _):
            assert "refused by the test" in await world.message(name)
        recorder.refuse_allocate = False
        async with _pod(world, recorder, containers=[("main", 8)]):  # nothing was kept
            assert recorder.kinds()[-1] == "start"


async def without_the_option_nothing_is_preferred(world: KubeletWorld) -> None:
    async with (
        recording(world, preferring=False) as recorder,
        _pod(world, recorder, containers=[("main", 2)]),
    ):
        assert recorder.kinds() == ["allocate", "start"]


async def a_deleted_pods_ids_are_free_again(world: KubeletWorld) -> None:
    async with recording(world) as recorder:
        for _ in range(2):
            async with _pod(world, recorder, containers=[("main", 8)]):
                pass
        assert recorder.kinds() == ["prefer", "allocate", "start"] * 2


async def a_plugin_that_leaves_takes_its_devices_along(world: KubeletWorld) -> None:
    async with recording(world) as recorder, _pod(world, recorder, containers=[("main", 2)]) as (name, _):
        assert recorder.server is not None
        await recorder.server.stop(0)
        await until(lambda: offers(recorder, 0))
        assert await world.phase(name) == "Running"
        await recorder.register()
        await until(lambda: offers(recorder, 8))
        assert await world.phase(name) == "Running"


async def the_end_of_an_old_stream_disconnects_its_successor(world: KubeletWorld) -> None:
    async with recording(world) as recorder:
        old = recorder.server
        assert old is not None
        await recorder.register()
        await asyncio.sleep(0.5)
        await old.stop(0)
        await until(lambda: offers(recorder, 0))


# Containers that have ended


async def what_a_finished_init_container_held_stays_taken_as_long_as_the_pod(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, init=[("first", 4)], containers=[("main", 2)]) as (name, uid),
    ):
        held = {str(e.container): e.ids for e in _recorded(world, uid)}
        assert (len(held["first"]), len(held["main"])) == (4, 2)
        assert (await recorder.held())[f"{name}/main"] == held["main"]
        async with _pod(world, recorder, containers=[("main", 5)], phase="Failed") as (late, _):
            assert "requested number of devices unavailable" in await world.message(late)
        async with _pod(world, recorder, containers=[("main", 4)]) as (other, _):
            assert (await recorder.held())[f"{other}/main"] == {*recorder.devices} - held["first"]


async def a_container_that_ends_is_started_again_with_the_ids_that_it_has(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, containers=[("main", 2)], restarts=True) as (name, _),
    ):
        await world.end(name, "main")
        await until(lambda: _true(recorder.kinds() == ["prefer", "allocate", "start", "start"]))
        assert recorder.calls[3].ids == recorder.calls[1].ids == (await recorder.held())[f"{name}/main"]


async def a_container_that_ended_for_good_keeps_its_ids_as_long_as_its_pod(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, containers=[("a", 2), ("b", 2)]) as (name, _),
    ):
        before = await recorder.held()
        await world.end(name, "a")
        assert await world.phase(name) == "Running"
        after = await recorder.held()
        assert (after[f"{name}/a"], after[f"{name}/b"]) == (before[f"{name}/a"], before[f"{name}/b"])
        assert recorder.kinds() == ["prefer", "allocate"] * 2 + ["start"] * 2
        async with _pod(world, recorder, containers=[("main", 5)], phase="Failed"):
            pass


async def a_pod_that_is_done_gives_its_ids_back_and_is_listed_no_more(world: KubeletWorld) -> None:
    async with recording(world) as recorder, _pod(world, recorder, containers=[("main", 8)]) as (name, _):
        await world.end(name, "main")
        await until(lambda: _in_phase(world, name, "Succeeded"))
        assert f"{name}/main" not in await recorder.held()
        async with _pod(world, recorder, containers=[("main", 8)]):
            assert recorder.kinds() == ["prefer", "allocate", "start"] * 2


# Kubelet restarts, with its record and without


async def a_restart_of_kubelet_asks_nothing_and_changes_nothing_for_what_runs(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, containers=[("a", 2), ("b", 1)]) as (name, _),
    ):
        before = await recorder.held()
        asked = recorder.kinds()
        await recorder.over_a_restart()
        await until(lambda: _lists(recorder, f"{name}/a"))
        assert await world.phase(name) == "Running"
        after = await recorder.held()
        assert [after[f"{name}/{c}"] for c in "ab"] == [before[f"{name}/{c}"] for c in "ab"]
        assert recorder.kinds() == asked
        async with _pod(world, recorder, containers=[("main", 5)]):
            pass


async def a_kubelet_without_its_record_gives_the_ids_of_running_containers_to_others(world: KubeletWorld) -> None:
    async with (
        recording(world) as recorder,
        _pod(world, recorder, containers=[("main", 2)], restarts=True) as (name, uid),
    ):
        held = (await recorder.held())[f"{name}/main"]
        asked = recorder.kinds()
        await recorder.over_a_restart(forgets=True)
        await until(lambda: _lists(recorder, f"{name}/main"))
        assert await world.phase(name) == "Running"
        assert (await recorder.held())[f"{name}/main"] == frozenset()
        assert _recorded(world, uid) == []
        assert recorder.kinds() == asked
        async with _pod(world, recorder, containers=[("main", 2)]) as (other, _):
            assert (await recorder.held())[f"{other}/main"] == held
            assert f"{name}/main" in recorder.calls[-2].waiting, "it looks as if it asked, too"
        started = recorder.kinds().count("start")
        await world.end(name, "main")
        await until(lambda: _says(world, name, "no devices found allocated in local cache"))
        assert recorder.kinds().count("start") == started, "and cannot be started again"


async def what_a_plugin_answered_stays_recorded_when_another_one_serves_the_resource(world: KubeletWorld) -> None:
    """As where Fractile takes nvidia.com/gpu over: by the answer the audit knows the pods of before."""
    async with (
        recording(world) as recorder,
        _pod(world, recorder, containers=[("main", 2)]) as (name, uid),
    ):
        before = _recorded(world, uid)
        assert [dp.ContainerAllocateResponse.FromString(e.answer).envs for e in before] == [{"RECORDED": "2"}]
        recorder.devices = [f"{device}-of-another" for device in recorder.devices[:3]]
        await recorder.register()
        await until(lambda: offers(recorder, 3))
        assert (await world.phase(name), _recorded(world, uid)) == ("Running", before)
        await recorder.over_a_restart()
        await until(lambda: offers(recorder, 3))
        assert (await world.phase(name), _recorded(world, uid)) == ("Running", before)


# Plugins that come after the admission: a node's start without the record, or a pod that nobody scheduled


async def a_container_whose_plugin_came_late_and_wants_to_be_asked_first_never_starts(world: KubeletWorld) -> None:
    async with recording(world, registered=False) as recorder, _early(world, recorder, pods=1) as (name,):
        await recorder.register()
        await until(lambda: offers(recorder, 8))
        assert f"{name}/main" in await recorder.waiting()
        await world.end(name, "wait")
        await until(lambda: _says(world, name, "no devices found allocated in local cache"))
        assert recorder.kinds() == []


async def a_container_whose_plugin_came_late_and_asks_for_nothing_is_allocated_when_it_starts(
    world: KubeletWorld,
) -> None:
    async with recording(world, registered=False) as recorder, _early(world, recorder, pods=1) as (name,):
        recorder.starting = False
        await recorder.register()
        await until(lambda: offers(recorder, 8))
        await world.end(name, "wait")
        await until(lambda: _in_phase(world, name, "Running"))
        assert recorder.kinds() == ["prefer", "allocate"]
        assert (await recorder.held())[f"{name}/main"] == recorder.calls[1].ids == {recorder.devices[-1]}


async def late_allocations_of_several_pods_run_side_by_side_and_kill_kubelet(world: KubeletWorld) -> None:
    async with recording(world, registered=False) as recorder, _early(world, recorder, pods=2) as names:
        recorder.starting, recorder.slow = False, 4.0
        await recorder.register()
        await until(lambda: offers(recorder, 8))
        await asyncio.gather(*(world.end(name, "wait") for name in names))
        await until(lambda: _true(len(recorder.calls) >= 2))
        assert recorder.at_once == 2
        assert {f"{n}/main" for n in names} <= recorder.calls[0].waiting, "nobody can say who asks"
        await until(lambda: _is_gone(recorder))
        recorder.slow = 0.0
        await recorder.over_a_restart()
        run = [name for name in names if await _runs_after_all(world, recorder, name)]
        held = await recorder.held()
        assert all(len(held[f"{n}/main"]) == 1 for n in run), "perhaps the same: the record may have both"


Scenario = Callable[[KubeletWorld], Coroutine[None, None, None]]

SCENARIOS: tuple[Scenario, ...] = (
    options_are_asked_before_register_is_answered_and_devices_after,
    one_container_is_preferred_allocated_and_started_with_the_same_ids,
    containers_are_admitted_in_order_before_the_first_one_starts,
    an_init_containers_ids_are_reused_without_asking,
    ids_that_must_be_included_are_those_of_the_init_container,
    a_refused_start_is_tried_again_and_the_pod_stays,
    a_refused_allocate_fails_the_pod_for_good,
    without_the_option_nothing_is_preferred,
    a_deleted_pods_ids_are_free_again,
    a_plugin_that_leaves_takes_its_devices_along,
    the_end_of_an_old_stream_disconnects_its_successor,
    what_a_finished_init_container_held_stays_taken_as_long_as_the_pod,
    a_container_that_ends_is_started_again_with_the_ids_that_it_has,
    a_container_that_ended_for_good_keeps_its_ids_as_long_as_its_pod,
    a_pod_that_is_done_gives_its_ids_back_and_is_listed_no_more,
    a_restart_of_kubelet_asks_nothing_and_changes_nothing_for_what_runs,
    a_kubelet_without_its_record_gives_the_ids_of_running_containers_to_others,
    what_a_plugin_answered_stays_recorded_when_another_one_serves_the_resource,
    a_container_whose_plugin_came_late_and_wants_to_be_asked_first_never_starts,
    a_container_whose_plugin_came_late_and_asks_for_nothing_is_allocated_when_it_starts,
    late_allocations_of_several_pods_run_side_by_side_and_kill_kubelet,
)


@asynccontextmanager
async def _pod(
    world: KubeletWorld,
    recorder: Recorder,
    *,
    containers: Containers,
    init: Containers = (),
    phase: str = "Running",
    restarts: bool = False,
) -> AsyncGenerator[tuple[str, PodUID], None]:
    name = f"scenario-{next(numbers)}"
    uid = await world.create(name, resource=recorder.resource, init=init, containers=containers, restarts=restarts)
    try:
        await until(lambda: _in_phase(world, name, phase))
        yield name, uid
    finally:
        await world.delete(name)


@asynccontextmanager
async def _early(world: KubeletWorld, recorder: Recorder, *, pods: int) -> AsyncGenerator[list[str], None]:
    """Pods that kubelet has admitted without knowing their resource; each waits in an init container."""
    names = [f"scenario-{next(numbers)}" for _ in range(pods)]
    try:
        for name in names:
            main = [("main", 1)]
            await world.create(name, resource=recorder.resource, init=[("wait", 0)], containers=main, busy=["wait"])
        for name in names:
            await until(lambda n=name: _lists(recorder, f"{n}/main"))
        yield names
    finally:
        for name in names:
            await world.delete(name)


async def _runs_after_all(world: KubeletWorld, recorder: Recorder, name: str) -> bool:
    """Whether it runs once kubelet is there again. On a busy machine two allocations may meet and kill it once more, or
    it fails the pod for good, since it admits the pod again before it has heard the devices."""
    async with asyncio.timeout(2 * PATIENCE):
        while (phase := await world.phase(name)) != "Running":
            if phase == "Failed":
                said = await world.message(name)
                assert "Allocate failed" in said, f"{name} failed for another reason: {said}"
                return False
            if await _is_gone(recorder):
                await recorder.over_a_restart()
            await asyncio.sleep(0.1)
    return True


async def _lists(recorder: Recorder, container: str) -> bool:
    return container in await recorder.held()


async def _says(world: KubeletWorld, name: str, text: str) -> bool:
    return text in await world.message(name)


async def _is_gone(recorder: Recorder) -> bool:
    try:
        await recorder.held()
    except grpc.aio.AioRpcError as e:
        return e.code() is not grpc.StatusCode.DEADLINE_EXCEEDED
    return False


async def _true(value: bool) -> bool:
    return value


async def _in_phase(world: KubeletWorld, name: str, phase: str) -> bool:
    return await world.phase(name) == phase


def _recorded(world: KubeletWorld, uid: PodUID) -> list[kubelet_checkpoint.Recorded]:
    file = world.plugin_directory / kubelet_checkpoint.FILE_NAME
    return [e for e in kubelet_checkpoint.decode(file.read_bytes()) if e.uid == uid]
