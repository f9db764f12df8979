"""To which pod a container id belongs."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import msgspec
import pytest

from fractile.agent.node import owners
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.owners import Owners, ProcessOwner
from fractile.agent.node.pods import NodePods
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.model.units import MemoryUnit, NodeName, PodUID
from fractile.wire.fractile import placement as placement_wire
from fractile.wire.kubernetes.objects import Pod
from tests.builders import Clock, card_uuid, given, piece, placement
from tests.fakes.apiserver import FakeApiServer, Fault

ID, OTHER = "ab" * 32, "cd" * 32
OUTER = PodUID("the pod in which the agent runs")


class World:
    def __init__(self, server: FakeApiServer, client: KubeClient) -> None:
        self.server = server
        self.clock = Clock()
        self.pods = NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB)
        self.owners = Owners(client, self.pods, around=[OUTER], clock=self.clock)

    def pod(self, name: str, *, node: str = "n1", **status: Any) -> Pod:
        """A pod of namespace ``ns``, which no watch has shown; ``status``: fields of its status."""
        made = self.server.create(paths.pods("ns"), {"metadata": {"name": name}, "spec": {"nodeName": node}})
        self.server.merge(f"{paths.pod('ns', name)}/status", {"status": status})
        return msgspec.convert(made, Pod, strict=False)

    async def of(self, *places: CgroupPlace) -> ProcessOwner | None:
        return await self.owners.of(places)

    def lists(self) -> int:
        return sum(r.path == paths.pods() for r in self.server.requests)


@pytest.fixture
async def w() -> AsyncGenerator[World]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client:
        server.create(paths.namespaces(), {"metadata": {"name": "ns"}})
        yield World(server, client)


def status(name: str, container_id: str) -> dict[str, str]:
    return {"name": name, "containerID": f"containerd://{container_id}"}


def container(container_id: str, uid: str = "") -> CgroupPlace:
    return CgroupPlace(PodUID(uid), container_id)


@pytest.mark.parametrize("kind", ["containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses"])
async def test_a_container_of_any_kind_is_known_by_its_id(w: World, kind: str) -> None:
    waiting = [{"name": "a"}, {"name": "b", "containerID": ""}, status("c", "")]
    held: dict[str, Any] = {kind: [*waiting, status("main", ID)]}
    pod = w.pod("p", **held)
    assert await w.of(container(ID)) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")
    assert await w.of(container("")) is None


async def test_an_id_without_the_name_of_its_runtime_is_one_too(w: World) -> None:
    pod = w.pod("p", containerStatuses=[{"name": "main", "containerID": ID}])
    assert await w.of(container(ID)) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")


async def test_each_container_of_each_pod_has_its_own_owner(w: World) -> None:
    first = w.pod("a", containerStatuses=[status("one", "1" * 64), status("two", "2" * 64)])
    second = w.pod("b", containerStatuses=[status("one", "3" * 64)])
    assert await w.of(container("2" * 64)) == ProcessOwner(first.metadata.uid, "ns", "a", "two")
    assert await w.of(container("3" * 64)) == ProcessOwner(second.metadata.uid, "ns", "b", "one")
    assert w.lists() == 1
    assert w.owners.containers(first.metadata.uid) == {"1" * 64, "2" * 64}
    assert w.owners.containers(second.metadata.uid) == {"3" * 64}


async def test_only_containers_of_this_node_are_known(w: World) -> None:
    w.pod("p", node="n2", containerStatuses=[status("main", ID)])
    assert await w.of(container(ID)) is None


async def test_a_process_in_a_pod_that_the_view_knows_is_that_pods_whatever_its_container(w: World) -> None:
    pod = w.pod("p")
    w.pods.changed(pod)
    assert await w.of(CgroupPlace(PodUID(pod.metadata.uid))) == ProcessOwner(pod.metadata.uid, "ns", "p")
    assert await w.of(container(OTHER, pod.metadata.uid)) == ProcessOwner(pod.metadata.uid, "ns", "p")


async def test_the_container_of_a_known_pod_is_looked_for_until_it_is_known(w: World) -> None:
    pod = w.pod("p")
    w.pods.changed(pod)
    place = container(ID, pod.metadata.uid)
    assert await w.of(place) == ProcessOwner(pod.metadata.uid, "ns", "p")
    w.server.merge(f"{paths.pod('ns', 'p')}/status", {"status": {"containerStatuses": [status("main", ID)]}})
    w.clock.now += 60
    assert await w.of(place) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")
    w.clock.now += 60
    assert await w.of(place) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")
    assert w.lists() == 2  # what is known is not asked for again


async def test_a_process_of_the_host_has_no_owner(w: World) -> None:
    assert await w.of() is None


# ── the outermost counts ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_of_two_known_containers_the_outer_one_is_the_owner(w: World) -> None:
    w.pod("p", containerStatuses=[status("outer", ID), status("inner", OTHER)])
    owner = await w.of(container(ID), container(OTHER))
    assert owner is not None
    assert owner.container == "outer"


async def test_what_runs_inside_a_pod_that_nobody_knows_has_no_owner(w: World) -> None:
    """A container may call its own cgroups after another pod."""
    innocent = w.pod("innocent", containerStatuses=[status("main", ID)])
    w.pods.changed(innocent)
    assert await w.of(container(OTHER, "deleted by force"), container(ID, innocent.metadata.uid)) is None


async def test_the_pods_around_the_agent_itself_do_not_count(w: World) -> None:
    pod = w.pod("p", containerStatuses=[status("main", ID)])
    w.pods.changed(pod)
    owner = await w.of(container(OTHER, OUTER), container(ID, pod.metadata.uid))
    assert owner == ProcessOwner(pod.metadata.uid, "ns", "p", "main")


async def test_a_container_that_is_not_in_a_pod_does_not_count(w: World) -> None:
    """Such as one of a container runtime beside Kubernetes, in which a node of a test cluster runs."""
    pod = w.pod("p", containerStatuses=[status("main", ID)])
    owner = await w.of(container(OTHER), container(ID))
    assert owner == ProcessOwner(pod.metadata.uid, "ns", "p", "main")


# ── the API server is spared ─────────────────────────────────────────────────────────────────────────────────────────


async def test_the_pods_are_listed_at_most_once_in_three_seconds(w: World) -> None:
    assert await w.of(container(ID)) is None
    pod = w.pod("p", containerStatuses=[status("main", ID)])
    w.clock.now += 2.9
    assert await w.of(container(ID)) is None
    assert w.lists() == 1
    w.clock.now += 0.1
    assert await w.of(container(ID)) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")
    assert w.lists() == 2
    w.clock.now += 2.9
    assert await w.of(container(OTHER)) is None
    assert w.lists() == 2


async def test_the_first_list_is_not_waited_for_however_young_the_machine_is(w: World) -> None:
    w.clock.now = 0.0
    pod = w.pod("p", containerStatuses=[status("main", ID)])
    assert await w.of(container(ID)) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")


async def test_a_container_that_is_gone_from_the_list_is_forgotten(w: World) -> None:
    w.pod("p", containerStatuses=[status("main", ID)])
    assert await w.of(container(ID)) is not None
    w.server.delete(paths.pod("ns", "p"))
    w.clock.now += 3
    assert await w.of(container(OTHER)) is None
    assert await w.of(container(ID)) is None


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="GET", status=403), id="refused"),
        pytest.param(Fault(method="GET", status=200, body=b"<html>"), id="not an API server"),
        pytest.param(Fault(method="GET", delay=30), id="no answer"),
    ],
)
async def test_while_the_api_server_does_not_answer_what_was_known_stays_known(
    w: World, fault: Fault, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owners, "_LIST", 0.2)
    pod = w.pod("p", containerStatuses=[status("main", ID)])
    assert await w.of(container(ID)) is not None
    w.server.inject(fault)
    w.clock.now += 3
    async with asyncio.timeout(5):
        assert await w.of(container(OTHER)) is None
    assert await w.of(container(ID)) == ProcessOwner(pod.metadata.uid, "ns", "p", "main")


# ── the pod, and whether it still exists ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("places", "uid"),
    [
        pytest.param([], "", id="a process of the host"),
        pytest.param([container(ID)], "", id="a container that is in no pod"),
        pytest.param([container(ID, "a")], "a", id="a pod"),
        pytest.param([container(ID, "a"), container(OTHER, "b")], "a", id="a pod below a pod"),
        pytest.param([container(ID), container(OTHER, "b")], "b", id="a pod below a container that is in none"),
        pytest.param([container(ID, OUTER), container(OTHER, "b")], "b", id="a pod below the agent's own"),
        pytest.param([container(ID, OUTER)], "", id="the agent's own pod"),
    ],
)
async def test_the_outermost_pod_is_that_of_the_nodes_kubelet(w: World, places: list[CgroupPlace], uid: str) -> None:
    assert w.owners.outermost(places) == uid


async def test_a_pod_that_the_api_server_no_longer_has_is_gone(w: World) -> None:
    there = w.pod("p")
    assert not await w.owners.gone(PodUID(there.metadata.uid))
    assert await w.owners.gone(PodUID("another"))
    assert w.lists() == 1


async def test_a_pod_that_the_view_knows_is_not_gone_and_nobody_is_asked(w: World) -> None:
    pod = w.pod("p")
    w.pods.changed(pod)
    assert not await w.owners.gone(PodUID(pod.metadata.uid))
    assert w.lists() == 0


async def test_before_the_view_is_complete_no_pod_is_gone(w: World) -> None:
    w.pods.follow()
    assert not await w.owners.gone(PodUID("any"))
    assert w.lists() == 0


async def test_where_the_api_server_has_never_answered_no_pod_is_gone(w: World) -> None:
    w.server.inject(Fault(method="GET", status=403, times=100))
    assert not await w.owners.gone(PodUID("any"))


async def test_whether_a_pod_is_gone_is_asked_at_most_once_in_three_seconds(w: World) -> None:
    there = w.pod("p")
    uid = PodUID(there.metadata.uid)
    assert not await w.owners.gone(uid)
    w.server.delete(paths.pod("ns", "p"))
    w.clock.now += 2.9
    assert not await w.owners.gone(uid)
    w.clock.now += 0.1
    assert await w.owners.gone(uid)
    assert w.lists() == 2
    w.clock.now += 2.9
    assert await w.owners.gone(uid)
    assert w.lists() == 2


# ── does the process's pod hold the card? ────────────────────────────────────────────────────────────────────────────

CARD, ANOTHER = card_uuid("n1", 0), card_uuid("n1", 1)


def given_a_part(w: World, text: str = "") -> Pod:
    """A pod that was given a part of CARD, or what the text says."""
    annotation = text or placement_wire.encode(placement(given("main", piece(CARD))))
    ask = {"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "8"}}}
    made = w.server.create(
        paths.pods("ns"),
        {
            "metadata": {"name": "p", "annotations": {placement_wire.ANNOTATION: annotation}},
            "spec": {"nodeName": "n1", "containers": [ask]},
        },
    )
    w.server.merge(f"{paths.pod('ns', 'p')}/status", {"status": {"containerStatuses": [status("main", ID)]}})
    pod = msgspec.convert(made, Pod, strict=False)
    w.pods.changed(pod)
    return pod


async def test_a_process_holds_the_cards_of_its_pods_placement_and_no_other(w: World) -> None:
    uid = given_a_part(w).metadata.uid
    assert w.owners.holds([container(OTHER, uid)], CARD)
    assert not w.owners.holds([container(OTHER, uid)], ANOTHER)


async def test_a_process_of_a_pod_without_a_placement_holds_no_card(w: World) -> None:
    plain = w.pod("plain")
    w.pods.changed(plain)
    assert not w.owners.holds([container(ID, plain.metadata.uid)], CARD)


async def test_a_process_of_no_pod_or_of_one_that_nobody_knows_holds_no_card(w: World) -> None:
    given_a_part(w)
    assert not w.owners.holds([], CARD)
    assert not w.owners.holds([container(OTHER, "another")], CARD)


async def test_where_kubelet_makes_no_cgroups_for_pods_the_container_id_says_whose_process_it_is(w: World) -> None:
    given_a_part(w)
    assert not w.owners.holds([container(ID)], CARD), "not listed yet"
    await w.of(container(ID))
    assert w.owners.holds([container(ID)], CARD)
    assert not w.owners.holds([container(ID)], ANOTHER)


async def test_the_pod_of_a_process_counts_before_the_id_of_an_inner_container(w: World) -> None:
    given_a_part(w)
    await w.of(container(ID))
    assert not w.owners.holds([container(OTHER, "another"), container(ID)], CARD)


@pytest.mark.parametrize(
    "text",
    [placement_wire.encode(placement(given("main", piece(CARD)), node="n2")), "nonsense"],
    ids=["of another node", "that cannot be read"],
)
async def test_a_placement_gives_no_card(w: World, text: str) -> None:
    uid = given_a_part(w, text).metadata.uid
    assert not w.owners.holds([container(ID, uid)], CARD)


async def test_before_the_view_is_complete_a_process_may_hold_any_card(w: World) -> None:
    w.pods.follow()
    assert w.owners.holds([container(ID, "another")], CARD)
