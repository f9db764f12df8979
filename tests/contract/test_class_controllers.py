"""The class controllers on the real API server: what they make, what they take back, and what they delete.

The clock is the test's; watches, server-side applies, conditions of deletions and the schema are real. The server is
these tests' own: the controllers write to all devices and classes that there are.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack
from typing import Any

import msgspec
import pytest

from fractile.classes.controllers import ClassControllers
from fractile.classes.nodes import NodeWithTaints
from fractile.errors import ApiError
from fractile.kube import credentials, paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger
from fractile.model.card import Card
from fractile.watch.event_handlers import CardHandlers
from fractile.wire.fractile.extended_resource import API_VERSION, KIND, ExtendedResource
from fractile.wire.fractile.resource_class import ResourceClass
from tests.builders import Clock
from tests.classes.class_world import gpu, resource
from tests.contract import real_apiserver
from tests.contract.kubectl import Kubectl, with_manifests

WAIT = 30.0  # seconds; a machine with other work


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Generator[Kubectl]:
    why = real_apiserver.missing()
    if why:
        pytest.skip(why)
    with real_apiserver.running(tmp_path_factory.mktemp("controllers")) as server:
        found = with_manifests(server)
        if found is None:
            pytest.skip("kubectl is not built; `fractile up` builds it")
        yield found


class Rig:
    """The controllers with their watches."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self.clock = Clock()
        ledger = Ledger(self.clock)
        self.control = control = ClassControllers(
            ledger, client, template="{vendor}.{model}", clock=self.clock, sleep=_at_once
        )
        handlers = CardHandlers(ledger, freed=lambda node: None, shown=control.card_shown)
        self.watches = (
            Reflector(client, paths.nodes(), NodeWithTaints, changed=control.node_changed, gone=control.node_gone),
            Reflector(
                client, paths.extended_resources(), ExtendedResource, changed=handlers.changed, gone=control.card_gone
            ),
            Reflector(
                client,
                paths.resource_classes(),
                ResourceClass,
                changed=control.class_changed,
                gone=control.class_gone,
            ),
        )

    async def until(self, what: str, condition: Callable[[Any], bool], path: str) -> None:
        """The controllers work until the object at the path is so; None where there is none."""
        deadline = asyncio.get_running_loop().time() + WAIT
        found: Any = None
        while asyncio.get_running_loop().time() < deadline:
            self.control.look()
            for rounds in (self.control.lost, self.control.capacities, self.control.statuses, self.control.defaults):
                await rounds.once()
            found = await self.get(path)
            if condition(found):
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"not within {WAIT:.0f} s: {what}; it is {found}")

    async def get(self, path: str) -> Any:
        try:
            return await self.client.get(path, dict[str, Any])
        except ApiError as e:
            if e.code != 404:
                raise
            return None

    async def make(self, card: Card) -> str:
        """The object of a device as its agent writes it; its path."""
        name = card.uuid.lower()
        named = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": name}}
        spec = msgspec.to_builtins(resource(card).spec)
        path = paths.extended_resource(name)
        await self.client.apply(path, {**named, "spec": spec}, field_manager="fractile-agent")
        status = {"phase": "Available", "used": {"slices": 0}}
        await self.client.apply(f"{path}/status", {**named, "status": status}, field_manager="fractile-agent")
        return path

    async def make_node(self, name: str) -> None:
        await self.client.create(paths.nodes(), {"metadata": {"name": name}})
        await self.say_ready(name, "True")

    async def say_ready(self, name: str, ready: str) -> None:
        condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-11-21T10:00:00Z"}
        await self.client.merge_patch(f"{paths.node(name)}/status", {"status": {"conditions": [condition]}})


async def _at_once(_: float) -> None:
    await asyncio.sleep(0)


@pytest.fixture
async def rig(told: Kubectl) -> AsyncGenerator[Rig]:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(credentials.load(told.server.kubeconfig)))
        made = Rig(client)
        watching = [asyncio.create_task(watch.run()) for watch in made.watches]
        async with asyncio.timeout(WAIT):
            for watch in made.watches:
                await watch.synced.wait()
        yield made
        for each in watching:
            each.cancel()


def phase(found: Any) -> tuple[str, str]:
    status = found["status"]
    return status["phase"], status.get("reason", "")


async def test_a_default_class_comes_with_a_model_and_goes_with_its_last_device(rig: Rig) -> None:
    path = paths.resource_class("nvidia.rare.model")
    await rig.make_node("n-default")
    cards = [await rig.make(gpu("n-default", index, model="Rare Model")) for index in (0, 1)]

    def counts(devices: int) -> Callable[[Any], bool]:
        return lambda o: o is not None and o.get("status", {}).get("devices", {}).get("total") == devices

    await rig.until("two devices", counts(2), path)
    await rig.client.delete(path)
    await rig.until("the class again", counts(2), path)
    await rig.client.delete(cards[0])
    await rig.until("one device", counts(1), path)
    await rig.client.delete(cards[1])
    await rig.until("no device", counts(0), path)
    rig.clock.now += 29
    rig.control.look()
    await rig.control.defaults.once()
    assert await rig.get(path) is not None
    rig.clock.now += 2
    await rig.until("the class to go", lambda o: o is None, path)


async def test_a_default_class_that_somebody_changed_stays(rig: Rig) -> None:
    path = paths.resource_class("nvidia.other.model")
    await rig.make_node("n-theirs")
    card = await rig.make(gpu("n-theirs", 0, model="Other Model"))
    await rig.until("the class", lambda o: o is not None and "status" in o, path)
    await rig.client.merge_patch(path, {"spec": {"memory": "1Gi"}})
    await rig.until("it to be read", lambda o: o["status"]["observedGeneration"] == 2, path)
    await rig.client.delete(card)
    await rig.until("no device", lambda o: o["status"]["devices"]["total"] == 0, path)
    rig.clock.now += 60
    for _ in range(3):
        rig.control.look()
        await rig.control.defaults.once()
    assert (await rig.get(path))["spec"]["memory"] == "1Gi"


@pytest.mark.parametrize("how", ["deleted", "not ready"])
async def test_devices_are_lost_with_their_node_and_return_with_it(rig: Rig, how: str) -> None:
    node = f"n-{how.replace(' ', '-')}"
    await rig.make_node(node)
    path = await rig.make(gpu(node, 0, model="Lost Model"))
    await rig.until("the device", lambda o: phase(o) == ("Available", ""), path)
    if how == "deleted":
        await rig.client.delete(paths.node(node))
    else:
        await rig.say_ready(node, "Unknown")
    async with asyncio.timeout(WAIT):
        while node not in rig.control.nodes.away():
            await rig.control.lost.once()
            await asyncio.sleep(0.02)
    rig.clock.now += 14  # within every grace
    await rig.until("nothing", lambda o: phase(o) == ("Available", ""), path)
    rig.clock.now += 61
    await rig.until("the device to be lost", lambda o: phase(o) == ("Lost", "NodeLost"), path)
    if how == "deleted":
        await rig.make_node(node)
    else:
        await rig.say_ready(node, "True")
    await rig.until("the device to return", lambda o: phase(o) == ("Available", ""), path)
