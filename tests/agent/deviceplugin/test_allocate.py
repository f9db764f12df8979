"""Allocate and the plugin's answers to messages that kubelet should never send."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
import grpc.aio
import pytest

from fractile.agent.deviceplugin.allocate import held_by_card
from fractile.agent.kubelet import rpc
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.limits.library import install
from fractile.agent.node.catalog import Catalog
from fractile.errors import SetupError, WireError
from fractile.kube import paths
from fractile.model.units import MemoryUnit
from fractile.region import directory
from fractile.wire.fractile.device_ids import device_ids
from tests.agent.limits.test_library import source
from tests.agent.world import BLOCKS, CARDS, CORE, COUNT, GPU, MEM, World, card, world

A, B = CARDS
CATALOG = Catalog.of(CARDS, MemoryUnit.GiB)


def plugin_socket(w: World, resource: str) -> Path:
    return next(w.kubelet.plugin_directory.glob(f"fractile-{resource.rpartition('/')[2]}-*.sock"))


async def allocate(w: World, *containers: Sequence[str], resource: str = MEM) -> dp.AllocateResponse:
    request = dp.AllocateRequest()
    for ids in containers:
        request.container_requests.add(devices_ids=ids)
    return await rpc.call_socket(plugin_socket(w, resource), rpc.ALLOCATE, request, timeout=20)


def test_ids_are_counted_by_card() -> None:
    assert held_by_card(MEM, [*device_ids(A.uuid, 3), *device_ids(B.uuid, 1)], CATALOG) == {A.uuid: 3, B.uuid: 1}


def test_an_id_twice_counts_once() -> None:
    assert held_by_card(MEM, [f"{A.uuid}::0"] * 2, CATALOG) == {A.uuid: 1}


@pytest.mark.parametrize(
    "ids",
    [
        pytest.param([], id="none"),
        pytest.param([f"{A.uuid}::16"], id="beyond the card"),
        pytest.param([f"{A.uuid}::00"], id="another spelling"),
        pytest.param(["GPU-of-another-node::0"], id="a card of another node"),
        pytest.param(["::0"], id="no card"),
        pytest.param([""], id="empty"),
        pytest.param([f"{A.uuid}::0", "\x00"], id="garbage beside a good one"),
        pytest.param(["../../etc::1"], id="a path"),
        pytest.param([f"{A.uuid}::-1"], id="negative"),
        pytest.param([f"{A.uuid}::" + "9" * 400], id="huge"),
    ],
)
async def test_ids_that_are_not_ours_are_an_error_with_a_sentence(ids: list[str]) -> None:
    with pytest.raises(WireError):
        held_by_card(MEM, ids, CATALOG)
    async with world() as w:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await allocate(w, ids)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert len(caught.value.details() or "") > 20
        assert w.tokens() == []


async def test_several_containers_in_one_request_get_an_answer_and_a_directory_each() -> None:
    async with world() as w:
        answer = await allocate(w, device_ids(A.uuid, 2), [f"{B.uuid}::5"])
        first, second = answer.container_responses
        assert (first.envs["NVIDIA_VISIBLE_DEVICES"], second.envs["NVIDIA_VISIBLE_DEVICES"]) == (A.uuid, B.uuid)
        assert first.mounts[0].host_path != second.mounts[0].host_path
        assert [(m.container_path, m.read_only) for m in first.mounts] == [
            ("/etc/fractile", True),
            ("/etc/fractile/shared/region", False),
        ]
        assert first.mounts[1].host_path == f"{first.mounts[0].host_path}/shared/region"
        text = (Path(first.mounts[0].host_path) / "ids").read_text()
        assert text == f"fractile-ids=1\nresource={MEM}\nids={A.uuid}::0-1\n"
        assert not (Path(first.mounts[0].host_path) / directory.LIMITS).exists()
        placeholder = Path(first.mounts[0].host_path) / directory.REGION
        assert placeholder.stat().st_size == 0, "a runtime would make a folder of it"


async def test_an_unknown_owner_is_told_its_own_amount_as_the_pods() -> None:
    async with world() as w:
        answer = await allocate(w, device_ids(A.uuid, 3))
        assert answer.container_responses[0].envs["ALIYUN_COM_GPU_MEM_POD"] == "3"


async def test_a_full_disk_does_not_cost_the_pod() -> None:
    async with world() as w:
        slices = w.root / "state" / "slices"
        slices.rename(w.root / "gone")
        answer = await allocate(w, device_ids(A.uuid, 1))
        assert answer.container_responses[0].mounts[0].host_path.startswith(str(slices))


async def test_ids_that_nobody_holds_are_not_started() -> None:
    async with world() as w:
        for ids in ([], [f"{A.uuid}::0"], ["garbage"]):
            request = dp.PreStartContainerRequest(devices_ids=ids)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.call_socket(plugin_socket(w, MEM), rpc.PRE_START, request, timeout=20)
            assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
            assert "kubelet" in (caught.value.details() or "")


@pytest.mark.parametrize("size", [-1, 0, 3, 2**31 - 1])
async def test_preferring_never_fails(size: int) -> None:
    async with world() as w:
        request = dp.PreferredAllocationRequest()
        request.container_requests.add(
            available_deviceIDs=["garbage", f"{A.uuid}::3", "::", f"{A.uuid}::3"], allocation_size=size
        )
        request.container_requests.add()
        answer = await rpc.call_socket(plugin_socket(w, MEM), rpc.PREFER, request, timeout=20)
        assert [len(r.deviceIDs) for r in answer.container_responses] == [1 if size > 0 else 0, 0]


@pytest.mark.parametrize("resource", [MEM, COUNT, CORE, BLOCKS, GPU])
async def test_options_ask_for_both_calls(resource: str) -> None:
    async with world() as w:
        got = await rpc.call_socket(plugin_socket(w, resource), rpc.OPTIONS, dp.Empty(), timeout=20)
        assert got.pre_start_required, "else late allocations, of which two at a time end kubelet"
        assert got.get_preferred_allocation_available


async def test_what_is_only_counted_may_always_start() -> None:
    async with world() as w:
        request = dp.PreStartContainerRequest(devices_ids=[f"{A.uuid}::1"])
        await rpc.call_socket(plugin_socket(w, BLOCKS), rpc.PRE_START, request, timeout=20)
        with pytest.raises(grpc.aio.AioRpcError):
            await rpc.call_socket(plugin_socket(w, CORE), rpc.PRE_START, request, timeout=20)


def test_a_unit_that_needs_too_many_ids_is_refused_with_the_unit_that_fits() -> None:
    cards = [card(n, 80 * 1024) for n in range(8)]
    with pytest.raises(SetupError, match="--memory-unit GiB"):
        Catalog.of(cards, MemoryUnit.MiB)
    assert Catalog.of(cards, MemoryUnit.GiB).counts(MEM) == {c.uuid: 80 for c in cards}


async def test_sixty_thousand_ids_are_registered_and_allocated() -> None:
    cards = [card(n, 30_000) for n in range(2)]
    async with world(cards=cards, unit=MemoryUnit.MiB) as w:
        answer = await allocate(w, device_ids(cards[1].uuid, 30_000))
        assert answer.container_responses[0].envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "30000"


async def test_a_node_with_the_library_mounts_it_beside_the_token_directory() -> None:
    async with world(agent=False) as w:
        installed = install(source(w.root / "native"), w.root / "state", simulated=w.root / "simgpu")
        w.start_agent(installed)
        await w.ready()
        (answer,) = (await allocate(w, device_ids(A.uuid, 2))).container_responses
        mounts = {m.container_path: m.host_path for m in answer.mounts}
        assert list(mounts)[:2] == ["/etc/fractile", "/etc/fractile/shared/region"]
        assert mounts["/usr/local/lib/fractile/libfractile.so"] == str(installed.folder / "libfractile.so")
        assert mounts["/run/simgpu"] == str(w.root / "simgpu")
        assert answer.envs["SIMGPU_DIR"] == "/run/simgpu"
        assert len({m.container_path for m in answer.mounts}) == len(answer.mounts)
        await offered(w)
        cards = [c["status"]["isolation"] for c in w.server.all(paths.extended_resources())]
        assert cards == ["Enforced", "Enforced"]


async def test_a_node_without_the_library_says_that_nothing_is_enforced() -> None:
    async with world() as w:
        await offered(w)
        cards = [c["status"]["isolation"] for c in w.server.all(paths.extended_resources())]
        assert cards == ["NotEnforced", "NotEnforced"]


async def offered(w: World) -> None:
    """Until the agent has written the status of all cards."""
    for _ in range(500):
        if all("isolation" in c.get("status", {}) for c in w.server.all(paths.extended_resources())):
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the status of the cards was not written within 10 s")


@pytest.mark.parametrize(
    ("resource", "ids"),
    [
        pytest.param(MEM, [*device_ids(A.uuid, 3), *device_ids(B.uuid, 1)], id="a part of a card"),
        pytest.param(CORE, [*device_ids(A.uuid, 30), *device_ids(B.uuid, 20)], id="a part of its time"),
        pytest.param(CORE, [*device_ids(A.uuid, 60), *device_ids(B.uuid, 40)], id="a whole card"),
    ],
)
async def test_ids_of_two_cards_for_one_are_refused_at_once_and_the_pod_can_be_made_again(
    resource: str, ids: list[str]
) -> None:
    """kubelet had no more ids of the card where the pod is placed: a pod that has ended still held them. It never
    allocates again for an admitted pod, which would wait in PreStart for ever."""
    async with world() as w:
        with pytest.raises(grpc.aio.AioRpcError, match="from 2 cards") as found:
            await allocate(w, ids, resource=resource)
        assert "delete the pod" in (found.value.details() or "")


async def test_whole_cards_may_be_two() -> None:
    async with world() as w:
        assert await allocate(w, [*device_ids(A.uuid, 100), *device_ids(B.uuid, 100)], resource=CORE)
        assert await allocate(w, [*device_ids(A.uuid, 1), *device_ids(B.uuid, 1)], resource=COUNT)
