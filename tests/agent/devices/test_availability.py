"""Cards are offered while kubelet listens to the agent, and withdrawn before it stops."""

import asyncio

import pytest

from fractile.agent.devices.availability import Availability
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.units import MemoryUnit
from fractile.wire.fractile.extended_resource import AVAILABLE, ExtendedResource, from_card, object_name, to_card
from tests.agent.world import CARDS, NODE
from tests.fakes.apiserver import FakeApiServer, Fault


async def usable(client: KubeClient) -> list[bool]:
    found, _ = await client.list(paths.extended_resources(), ExtendedResource)
    return [to_card(resource)[1].healthy for resource in found]


async def until_usable(client: KubeClient) -> None:
    async with asyncio.timeout(10):
        while await usable(client) != [True, True]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def publish(client: KubeClient) -> None:
    for card in CARDS:
        await client.apply(paths.extended_resource(object_name(card.uuid)), from_card(card, NODE), field_manager="test")


async def test_cards_are_withdrawn_before_a_stop_and_offered_when_kubelet_listens() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        await publish(client)
        registered = asyncio.Event()
        current_catalog = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.MiB))
        availability = Availability(client, current_catalog, registered=registered, sleep=sleep)
        assert await usable(client) == [True, True]
        await availability.withdraw()
        assert await usable(client) == [False, False]
        assert slept == [1.0], "Bindings on their way are waited for"
        offering = asyncio.create_task(availability.run())
        await asyncio.sleep(0.05)
        assert await usable(client) == [False, False], "not before kubelet listens"
        registered.set()
        await until_usable(client)
        offering.cancel()


@pytest.mark.parametrize(("asked", "waits"), [(3, 3), (1000, 80)])
async def test_a_stop_waits_until_kubelet_has_admitted_who_is_bound_but_not_forever(asked: int, waits: int) -> None:
    now = 100.0
    left = asked

    async def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    async def arriving() -> list[str]:
        nonlocal left
        left -= 1
        return ["default/late"] if left >= 0 else []

    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        await publish(client)
        current_catalog = CurrentCatalog(Catalog.of(CARDS, MemoryUnit.MiB))
        availability = Availability(
            client, current_catalog, registered=asyncio.Event(), arriving=arriving, sleep=sleep, clock=lambda: now
        )
        await availability.withdraw()
        assert round((now - 101.0) / 0.1) in (waits, waits + 1)


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=403, method="PATCH"), id="refused"),
        pytest.param(
            Fault(status=200, method="PATCH", body=b"no gzip", headers={"Content-Encoding": "gzip"}), id="damaged"
        ),
    ],
)
async def test_an_api_server_that_fails_delays_the_offer_but_does_not_end_it(fault: Fault) -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        await publish(client)
        registered = asyncio.Event()
        registered.set()

        async def soon(_: float) -> None:
            server.heal()
            await asyncio.sleep(0)

        availability = Availability(
            client, CurrentCatalog(Catalog.of(CARDS, MemoryUnit.MiB)), registered=registered, sleep=soon
        )
        server.inject(fault)
        offering = asyncio.create_task(availability.run())
        async with asyncio.timeout(10):
            while [r.get("status", {}).get("phase") for r in server.all(paths.extended_resources())] != [AVAILABLE] * 2:
                assert not offering.done(), offering.exception()
                await asyncio.sleep(0.01)
        offering.cancel()
