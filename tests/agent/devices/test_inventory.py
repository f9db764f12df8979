"""The ExtendedResource objects of a node."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from fractile.agent.devices.health import HealthMonitor
from fractile.agent.devices.inventory import Inventory
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.errors import SetupError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.model.card import Card
from fractile.model.health import CardEvent, HealthReading, HealthVerdict, Silence
from fractile.model.units import CardUUID, MemoryUnit, NodeName
from fractile.policy.health import HealthRules
from fractile.wire.files import device_file
from tests.agent.world import card
from tests.fakes.apiserver import FakeApiServer, Fault

A, B = card(0), card(1, 80 * 1024)
NODE = NodeName("n1")


class Cards:
    """A driver that reads what the test says, or fails."""

    def __init__(self, *cards: Card) -> None:
        self.present: list[Card] | None = list(cards)

    def cards(self) -> list[Card]:
        return [r.card for r in self.readings() if r.card is not None]

    def readings(self) -> list[HealthReading]:
        if self.present is None:
            raise SetupError("NVML has gone")
        return [HealthReading(index=card.index, card=card) for card in self.present]

    def events(self, timeout: float) -> list[CardEvent]:
        time.sleep(min(timeout, 0.01))
        return []

    def renew(self) -> None: ...

    def asking(self) -> CardUUID | None: ...

    def close(self) -> None:
        self.present = None


class Nobody:
    """Nobody is told."""

    def turned(self, card: Card, verdict: HealthVerdict) -> None: ...

    def failed(self, card: Card, event: CardEvent, text: str) -> None: ...


async def no_wait(_: float) -> None:
    await asyncio.sleep(0.002)


@asynccontextmanager
async def running(
    driver: Cards,
    server: FakeApiServer,
    *,
    served: frozenset[str] | None = None,
    sleep: Callable[[float], Awaitable[None]] = no_wait,
) -> AsyncGenerator[CurrentCatalog, None]:
    current_catalog = CurrentCatalog(Catalog.of(driver.cards(), MemoryUnit.GiB))
    health = HealthMonitor(driver, current_catalog, Nobody(), rules=HealthRules(forgotten=0.0), interval=0.01)
    async with KubeClient(server.credentials()) as client:
        events = EventRecorder(client, "fractile-agent")
        inventory = Inventory(client, current_catalog, health, events, node=NODE, served=served, sleep=sleep)
        tasks = [asyncio.create_task(work.run()) for work in (health, inventory, events)]
        try:
            yield current_catalog
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def objects(server: FakeApiServer) -> dict[str, dict[str, object]]:
    return {o["metadata"]["name"]: o for o in server.all(paths.extended_resources())}


async def until(server: FakeApiServer, *names: str) -> None:
    async with asyncio.timeout(10):
        while set(objects(server)) != set(names):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_each_card_has_an_object_owned_by_the_node() -> None:
    async with FakeApiServer() as server:
        node = server.create(paths.nodes(), {"metadata": {"name": NODE}})
        async with running(Cards(A, B), server):
            await until(server, A.uuid.lower(), B.uuid.lower())
        made = objects(server)[B.uuid.lower()]
        assert made["spec"] == {
            "nodeName": "n1",
            "deviceID": B.uuid,
            "index": 1,
            "model": "Tesla-V100",
            "memory": "81920Mi",
            "pciBusID": B.pci_bus_id,
            "properties": {
                "type": "gpu",
                "model": "Tesla-V100",
                "index": 1,
                "nodeName": "n1",
                "memory": "81920Mi",
                "cores": 100,
            },
        }
        metadata = json.loads(json.dumps(made["metadata"]))
        assert metadata["labels"] == {"fractile.dev/node": "n1"}
        assert metadata["ownerReferences"] == [
            {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"]}
        ]


async def test_the_objects_say_which_families_of_names_are_served() -> None:
    async def said(served: frozenset[str], text: str) -> None:
        async with running(Cards(A), server, served=served), asyncio.timeout(10):
            while text not in json.dumps(objects(server)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        await said(frozenset({"tencent", "aliyun"}), '{"fractile.dev/dialects": "aliyun,tencent"}')
        await said(frozenset({"aliyun"}), '{"fractile.dev/dialects": "aliyun"}')


async def test_stale_objects_of_this_node_go_and_those_of_others_stay() -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        for name, node in (("gpu-old", "n1"), ("gpu-theirs", "n2")):
            spec = {"nodeName": node, "deviceID": name.upper(), "index": 0, "model": "m", "memory": "1Gi"}
            meta = {"name": name, "labels": {"fractile.dev/node": node}}
            server.create(paths.extended_resources(), {"metadata": meta, "spec": spec})
        async with running(Cards(A), server):
            await until(server, A.uuid.lower(), "gpu-theirs")


async def test_a_card_that_is_taken_out_leaves_and_comes_back_by_itself() -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        driver = Cards(A, B)
        async with running(driver, server) as current_catalog:
            await until(server, A.uuid.lower(), B.uuid.lower())
            before = current_catalog.catalog
            driver.present = [A]
            changed = await asyncio.wait_for(current_catalog.changed(before), 10)
            assert [c.uuid for c in changed.cards] == [A.uuid]
            await until(server, A.uuid.lower())
            driver.present = [A, B]
            await until(server, A.uuid.lower(), B.uuid.lower())


async def test_a_driver_that_fails_for_long_makes_its_cards_unhealthy_until_it_answers_and_removes_nothing() -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        driver = Cards(A, B)
        async with running(driver, server) as current_catalog:
            await until(server, A.uuid.lower(), B.uuid.lower())
            before = current_catalog.catalog
            driver.present = None
            failing = await asyncio.wait_for(current_catalog.changed(before), 10)
            assert [(c.uuid, c.healthy) for c in failing.cards] == [(A.uuid, False), (B.uuid, False)]
            driver.present = [A, B]
            again = await asyncio.wait_for(current_catalog.changed(failing), 10)
            assert again.cards == before.cards
            assert len(objects(server)) == 2


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(path="/nodes/", times=3, status=404), id="the node is not registered yet"),
        pytest.param(Fault(method="PATCH", times=2, status=403), id="no right to apply"),
        pytest.param(Fault(path="extendedresources", times=3, status=404), id="the CRD is not installed yet"),
        pytest.param(Fault(times=4, drop="before"), id="connections break"),
    ],
)
async def test_it_goes_on_until_the_api_server_takes_it(fault: Fault) -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        server.inject(fault)
        async with running(Cards(A), server):
            await until(server, A.uuid.lower())


async def test_what_is_right_already_is_not_written_again() -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        for _ in range(2):
            async with running(Cards(A), server):
                await until(server, A.uuid.lower())
                await asyncio.sleep(0.2)  # many rounds, with audits among them
        assert len(server.writes()) == 1


async def test_an_object_that_somebody_deletes_is_made_again() -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        async with running(Cards(A), server):
            await until(server, A.uuid.lower())
            server.delete(paths.extended_resource(A.uuid.lower()))
            await until(server, A.uuid.lower())


async def test_a_deleted_object_is_missed_within_a_minute_by_looks_into_the_servers_memory(
    caplog: pytest.LogCaptureFixture,
) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 4:
            server.delete(paths.extended_resource(A.uuid.lower()))
        if len(slept) == 6:
            await asyncio.Event().wait()

    def asked() -> list[tuple[str, str]]:
        reads = [r.query for r in server.requests if r.method == "GET" and r.path == paths.extended_resources()]
        return [(q.get("fieldSelector") or q.get("labelSelector", ""), q.get("resourceVersion", "")) for q in reads]

    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        async with running(Cards(A, B), server, sleep=sleep), asyncio.timeout(10):
            while len(slept) < 6:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            assert len(objects(server)) == 2
    assert slept == [60.0] * 6
    whole, look = ("fractile.dev/node=n1", ""), [(f"metadata.name={c.uuid.lower()}", "0") for c in (A, B)]
    assert asked() == [whole, *look * 4, whole, *look]
    assert f"objects of cards missing, created again node=n1 cards={A.uuid}" in caplog.text


class OneIsSilent(Cards):
    """A driver whose first card does not answer."""

    def readings(self) -> list[HealthReading]:
        return [HealthReading(index=A.index, card=None, silence=Silence.LOST), *super().readings()]


async def test_a_device_that_is_no_gpu_is_not_taken_for_a_card_that_does_not_answer() -> None:
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        spec = {"nodeName": NODE, "deviceID": "hca.n1", "index": A.index, "model": "m", "type": "infiniband"}
        meta = {"name": "hca.n1", "labels": {"fractile.dev/node": NODE}}
        server.create(paths.extended_resources(), {"metadata": meta, "spec": spec})
        async with running(OneIsSilent(B), server) as current_catalog:
            await until(server, B.uuid.lower())
            assert [c.uuid for c in current_catalog.catalog.cards] == [B.uuid]


def pretender(server: FakeApiServer, name: str, device: str, *, label: str) -> None:
    """An object that the agent of n2 has written."""
    spec = {"nodeName": "n2", "deviceID": device, "index": A.index, "model": "m", "memory": "1Gi"}
    meta = {"name": name, "labels": {"fractile.dev/node": label}}
    server.create(paths.extended_resources(), {"metadata": meta, "spec": spec})


async def test_an_object_of_another_node_that_bears_our_label_is_no_card_of_ours() -> None:
    """It is not deleted, which the API server would refuse, nor believed about a card that does not answer."""
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        pretender(server, "gpu-theirs", "GPU-THEIRS", label=NODE)
        async with running(OneIsSilent(B), server) as current_catalog:
            await until(server, B.uuid.lower(), "gpu-theirs")
            await asyncio.sleep(0.1)  # several rounds
            assert [c.uuid for c in current_catalog.catalog.cards] == [B.uuid]
        assert not any("gpu-theirs" in write for write in server.writes())


async def test_a_card_that_another_node_claims_keeps_no_other_card_back_and_returns_when_that_object_goes() -> None:
    claimed = Fault(method="PATCH", path=A.uuid.lower(), times=1_000_000, status=403)
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        server.create("/api/v1/namespaces", {"metadata": {"name": "default"}})
        pretender(server, A.uuid.lower(), A.uuid, label="n2")
        server.inject(claimed)
        async with running(Cards(A, B), server):
            await until(server, A.uuid.lower(), B.uuid.lower())
            async with asyncio.timeout(10):
                while not (told := server.all(paths.events("default"))):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert told[0]["reason"] == "CardNotPublished"
            assert json.loads(json.dumps(told[0]))["involvedObject"]["name"] == NODE
            assert f"kubectl delete extendedresource {A.uuid.lower()}" in str(told[0]["message"])
            server.delete(paths.extended_resource(A.uuid.lower()))
            server.heal()
            await until(server, A.uuid.lower(), B.uuid.lower())
            assert json.loads(json.dumps(objects(server)))[A.uuid.lower()]["spec"]["nodeName"] == NODE
            await asyncio.sleep(0.1)
        assert len(server.all(paths.events("default"))) == 1
        assert server.all(paths.events("default"))[0]["count"] == 1


async def test_a_device_of_the_file_has_an_object_beside_those_of_the_cards() -> None:
    told = device_file.decode('{"version": 1, "devices": [{"id": "A_b", "type": "fpga"}]}', "f", node=NODE)
    async with FakeApiServer() as server:
        server.create(paths.nodes(), {"metadata": {"name": NODE}})
        async with running(Cards(A), server) as current_catalog:
            await until(server, A.uuid.lower())
            current_catalog.update(current_catalog.catalog.with_others(told.offers))
            await until(server, A.uuid.lower(), "a-b.n1")
            made = json.loads(json.dumps(objects(server)["a-b.n1"]["spec"]))
            assert (made["type"], made["deviceID"], made["properties"]["nodeName"]) == ("fpga", "A_b.n1", "n1")
            current_catalog.update(current_catalog.catalog.with_others(()))
            await until(server, A.uuid.lower())
