"""Who holds which device of the node, as its object says."""

import asyncio
from collections.abc import Mapping

import msgspec

from fractile.agent.devices.availability import Availability
from fractile.agent.devices.publish_holders import NOBODY, DeviceHold, NodeHolders, holders
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.classes import lost
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone
from fractile.model.card import Card
from fractile.model.health import HEALTHY, HealthVerdict
from fractile.model.request import Role
from fractile.model.units import CardUUID, MemoryUnit, MiB
from fractile.wire.fractile import placement as placement_wire
from fractile.wire.fractile.extended_resource import BoundTo, ExtendedResource, Used, from_card, object_name
from tests.agent.world import CARDS, NODE
from tests.builders import Clock, given, piece, placement, pod
from tests.fakes.apiserver import FakeApiServer

A, B = (c.uuid for c in CARDS)
CARD = CARDS[0]
HCA = Card(CardUUID("mlx5_0.n1"), 0, "ConnectX-7", MiB(0), type="infiniband", shares=4)


def test_what_pods_hold_is_summed_up_and_named() -> None:
    found = holders(
        [
            ("team", "b", placement(given("main", piece(A, 1024, 10)))),
            ("team", "a", placement(given("main", piece(A, 2048, 20)), given("side", piece(B, 512)))),
        ]
    )
    assert found[A] == DeviceHold(
        3072,
        30,
        2,
        (
            BoundTo(namespace="team", pod="a", container="main", memory="2048Mi", cores=20),
            BoundTo(namespace="team", pod="b", container="main", memory="1024Mi", cores=10),
        ),
    )
    assert found[B].by == (BoundTo(namespace="team", pod="a", container="side", memory="512Mi"),)


def test_init_containers_run_one_after_another() -> None:
    pods = [given("load", piece(A, 4096), role=Role.INIT), given("main", piece(A, 1024))]
    assert holders([("n", "p", placement(*pods))])[A].memory == 4096


def test_a_status_names_64_containers_and_counts_all() -> None:
    found = holders([("n", f"p{i:03}", placement(given("main", piece(A, 10)))) for i in range(100)])[A]
    assert len(found.by) == 64
    assert found.used(CARD) == Used(memory="1000Mi", cores=0, slices=100)


def test_a_phase_says_whether_anything_is_left() -> None:
    assert NOBODY.phase(CARD) == "Available"
    assert DeviceHold(1024, 0, 1).phase(CARD) == "PartlyBound"
    assert DeviceHold(CARD.memory, 0, 1).phase(CARD) == DeviceHold(1, 100, 1).phase(CARD) == "Bound"
    assert DeviceHold(slices=3).phase(HCA) == "PartlyBound"
    assert DeviceHold(slices=4).phase(HCA) == "Bound"


def test_only_running_pods_with_a_placement_here_count() -> None:
    def bound(name: str, text: str, phase: str = "Running") -> None:
        annotations = {placement_wire.ANNOTATION: text} if text else None
        pods.changed(pod(name, node=NODE, phase=phase, annotations=annotations))

    async def look() -> dict[CardUUID, DeviceHold]:
        async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
            nonlocal pods
            pods = NodePods(client, node=NODE, unit=MemoryUnit.MiB)
            here = placement_wire.encode(placement(given("main", piece(A, 1024)), node=NODE))
            bound("runs", here)
            bound("over", here, phase="Succeeded")
            bound("elsewhere", placement_wire.encode(placement(given("main", piece(B, 1)), node="n9")))
            bound("forged", "{")
            bound("plain", "")
            holding = NodeHolders(pods)
            found = holding()
            assert holding() is found, "nothing has moved"
            pods.gone(Gone("n", "nobody", "no-uid"))
            assert holding() == found
            assert holding() is not found
            pods.follow()
            assert holding() is None, "the view is not complete"
            assert found is not None
            return dict(found)

    pods: NodePods
    found = asyncio.run(look())
    assert {card: held.by for card, held in found.items()} == {
        A: (BoundTo(namespace="default", pod="runs", container="main", memory="1024Mi"),)
    }


class Scene:
    """An agent's status of two cards, on a fake API server."""

    def __init__(self, server: FakeApiServer, client: KubeClient) -> None:
        self.server = server
        self.held: Mapping[CardUUID, DeviceHold] | None = {}
        self.sick: HealthVerdict = HEALTHY
        self.clock = Clock()
        registered = asyncio.Event()
        registered.set()
        self.availability = Availability(
            client,
            CurrentCatalog(Catalog.of(CARDS, MemoryUnit.MiB)),
            registered=registered,
            verdict=lambda _: self.sick,
            holders=lambda: self.held,
            clock=self.clock,
            sleep=self._soon,
        )

    async def _soon(self, _: float) -> None:
        await asyncio.sleep(0)

    async def turn(self) -> None:
        """One comparison of what is with what was written."""
        running = asyncio.create_task(self.availability.run())
        await asyncio.sleep(0.1)
        running.cancel()

    def status(self) -> dict[str, object]:
        (found,) = [o for o in self.server.all(paths.extended_resources()) if o["metadata"]["name"] == object_name(A)]
        return found.get("status", {})

    @property
    def writes(self) -> int:
        return sum(r.method == "PATCH" and r.path.endswith("/status") for r in self.server.requests)


async def test_an_object_says_who_holds_its_card_and_no_longer_when_nobody_does() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        for card in CARDS:
            await client.apply(
                paths.extended_resource(object_name(card.uuid)), from_card(card, NODE), field_manager="t"
            )
        scene = Scene(server, client)
        scene.held = None
        await scene.turn()
        assert scene.status() == {}, "nothing is offered before it is known who holds it"
        scene.held = holders([("n", "p", placement(given("main", piece(A, 1024, 10))))])
        await scene.turn()
        kept = msgspec.convert(scene.server.all(paths.extended_resources())[0], ExtendedResource).status
        assert (kept.phase, kept.used) == ("PartlyBound", Used(memory="1024Mi", cores=10, slices=1))
        assert kept.bound_to == [BoundTo(namespace="n", pod="p", container="main", memory="1024Mi", cores=10)]
        scene.held = {}
        scene.clock.now += 2.0
        await scene.turn()
        assert scene.status()["phase"] == "Available"
        assert "boundTo" not in scene.status()


async def test_a_card_is_written_once_in_two_seconds_unless_it_becomes_sick() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        for card in CARDS:
            await client.apply(
                paths.extended_resource(object_name(card.uuid)), from_card(card, NODE), field_manager="t"
            )
        scene = Scene(server, client)
        await scene.turn()
        before = scene.writes
        for size in range(1, 9):
            scene.held = holders([("n", "p", placement(given("main", piece(A, size))))])
            scene.clock.now += 0.25 if size < 8 else 0.0
            await scene.turn()
        assert scene.writes - before == 0
        scene.clock.now += 0.25
        await scene.turn()
        assert scene.writes - before == 1
        assert scene.status()["used"] == {"memory": "8Mi", "cores": 0, "slices": 1}
        scene.sick = HealthVerdict(healthy=False, reason="Xid79", message="gone")
        await scene.turn()
        assert scene.status()["phase"] == "Unhealthy"
        assert scene.status()["used"] == {"memory": "8Mi", "cores": 0, "slices": 1}


async def test_on_a_node_that_is_lost_a_well_card_stays_lost_and_says_who_holds_it() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        for card in CARDS:
            await client.apply(
                paths.extended_resource(object_name(card.uuid)), from_card(card, NODE), field_manager="t"
            )
        scene = Scene(server, client)
        await scene.turn()
        name = object_name(A)
        await lost.say_lost(client, name, node=NODE, stamp="2026-11-18T00:00:00Z")
        scene.availability.forget(A)  # as the inventory does when it finds the phase changed
        scene.held = holders([("n", "p", placement(given("main", piece(A, 1024, 10))))])
        scene.clock.now += 2.0
        await scene.turn()
        status = scene.status()
        assert (status["phase"], status["reason"], status["used"]) == (
            "Lost",
            "NodeLost",
            {"memory": "1024Mi", "cores": 10, "slices": 1},
        )
        # The node returns, and the card is its agent's again.
        await lost.say_back(client, name, stamp="2026-11-18T00:01:00Z")
        assert scene.status()["phase"] == "PartlyBound"
        scene.held = {}
        scene.clock.now += 2.0
        await scene.turn()
        assert (scene.status()["phase"], scene.status()["reason"]) == ("Available", "")
        # A sick card says so whatever its node is, and leaves nothing of what was said before.
        await lost.say_lost(client, name, node=NODE, stamp="2026-11-18T00:02:00Z")
        scene.sick = HealthVerdict(False, "CardLost", "it does not answer")
        await scene.turn()
        assert (scene.status()["phase"], scene.status()["reason"]) == ("Unhealthy", "CardLost")
        scene.sick = HEALTHY
        await scene.turn()
        assert (scene.status()["phase"], scene.status().get("reason", "")) == ("Available", "")


async def test_what_somebody_forged_is_taken_back_whole() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        for card in CARDS:
            await client.apply(
                paths.extended_resource(object_name(card.uuid)), from_card(card, NODE), field_manager="t"
            )
        scene = Scene(server, client)
        await scene.turn()
        forged = {"phase": "Unhealthy", "reason": "Forged", "message": "by hand"}
        server.merge(f"{paths.extended_resource(object_name(A))}/status", {"status": forged})
        scene.availability.forget(A)
        await scene.turn()
        assert [scene.status()[key] for key in forged] == ["Available", "", ""]


async def test_who_holds_a_card_stays_said_while_a_new_agent_does_not_know_it() -> None:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        for card in CARDS:
            await client.apply(
                paths.extended_resource(object_name(card.uuid)), from_card(card, NODE), field_manager="t"
            )
        scene = Scene(server, client)
        scene.held = holders([("n", "p", placement(given("main", piece(A, 1024, 10))))])
        await scene.turn()
        before = scene.status()
        again = Scene(server, client)
        again.held = None
        again.sick = HealthVerdict(False, "CardLost", "it does not answer")
        await again.turn()
        after = scene.status()
        assert (after["phase"], after["used"], after["boundTo"]) == ("Unhealthy", before["used"], before["boundTo"])
