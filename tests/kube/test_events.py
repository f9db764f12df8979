"""Events: counted, bounded, and never in the way of the program that emits them."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest

from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.wire.kubernetes.objects import Node, ObjectMeta, Pod
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.fakes.store import Json
from tests.kube.conftest import Sleeps

POD = Pod(metadata=ObjectMeta(namespace="default", name="p", uid="u1"))
EVENTS = paths.events("default")


@asynccontextmanager
async def recording(client: KubeClient, sleeps: Sleeps | None = None) -> AsyncGenerator[EventRecorder, None]:
    recorder = EventRecorder(
        client,
        "fractile",
        clock=lambda: 0.0,
        sleep=sleeps or Sleeps(),
        now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
    )
    task = asyncio.create_task(recorder.run())
    try:
        yield recorder
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def said(server: FakeApiServer) -> list[tuple[str, int]]:
    return [(e["message"], e["count"]) for e in server.all("/api/v1/events")]


async def test_an_event_names_its_object_as_kubectl_describe_looks_for_it(
    server: FakeApiServer, client: KubeClient
) -> None:
    async with recording(client) as recorder:
        recorder.emit(POD, "Refused", "no room", "Normal")
        await recorder.flush(5)
    event: Json = server.all(EVENTS)[0]
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "default", "name": "p", "uid": "u1",
    }  # fmt: skip
    assert (event["reason"], event["message"], event["type"]) == ("Refused", "no room", "Normal")
    assert event["source"] == {"component": "fractile"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2026-01-02T03:04:05Z"


async def test_pods_requests_nodes_and_references_may_have_events(server: FakeApiServer, client: KubeClient) -> None:
    async with recording(client) as recorder:
        recorder.emit(PodRequest(PodUID("u2"), "team", "q", "aliyun", ()), "R", "m")
        recorder.emit(Node(metadata=ObjectMeta(name="n", uid="u3")), "R", "m")
        recorder.emit(ObjectRef("ExtendedResource", "", "gpu-1", "u4", "fractile.dev/v1alpha1"), "R", "m")
        await recorder.flush(5)
    found = {(e["metadata"]["namespace"], e["involvedObject"]["kind"]) for e in server.all("/api/v1/events")}
    assert found == {("team", "Pod"), ("default", "Node"), ("default", "ExtendedResource")}


@pytest.mark.parametrize("fault", [None, Fault(path="/nodes/n", status=403, times=9)], ids=["read", "not readable"])
async def test_an_event_of_a_node_that_was_named_alone_has_its_uid_if_that_can_be_read(
    server: FakeApiServer, client: KubeClient, fault: Fault | None
) -> None:
    uid = server.create(paths.nodes(), {"metadata": {"name": "n"}})["metadata"]["uid"]
    if fault is not None:
        server.inject(fault)
    async with recording(client) as recorder:
        for _ in range(2):
            recorder.emit(ObjectRef("Node", "", "n", ""), "R", "m")
            await recorder.flush(5)
    (event,) = server.all(EVENTS)
    assert (event["involvedObject"]["uid"], event["count"]) == ("" if fault else uid, 2)


async def test_the_same_thing_said_again_raises_the_count(server: FakeApiServer, client: KubeClient) -> None:
    async with recording(client) as recorder:
        for _ in range(3):
            recorder.emit(POD, "Refused", "no room")
        await recorder.flush(5)
        recorder.emit(POD, "Refused", "no room")
        recorder.emit(POD, "Refused", "no cards")
        await recorder.flush(5)
    assert sorted(said(server)) == [("no cards", 1), ("no room", 4)]


async def test_two_pods_of_one_name_have_their_own_events(server: FakeApiServer, client: KubeClient) -> None:
    async with recording(client) as recorder:
        for uid in ("u1", "u2"):
            recorder.emit(ObjectRef("Pod", "default", "p", uid), "Refused", "no room")
        await recorder.flush(5)
    assert said(server) == [("no room", 1), ("no room", 1)]


async def test_an_event_that_the_server_forgot_is_made_anew(server: FakeApiServer, client: KubeClient) -> None:
    async with recording(client) as recorder:
        recorder.emit(POD, "Refused", "no room")
        await recorder.flush(5)
        server.delete(paths.event("default", server.all(EVENTS)[0]["metadata"]["name"]))
        recorder.emit(POD, "Refused", "no room")
        await recorder.flush(5)
    assert said(server) == [("no room", 1)]
    assert recorder.dropped == 0


async def test_a_message_with_changing_numbers_does_not_fill_the_server(
    server: FakeApiServer, client: KubeClient
) -> None:
    async with recording(client) as recorder:
        for free in range(50):
            recorder.emit(POD, "Refused", f"{free} MiB free")
            await recorder.flush(5)
    messages = [message for message, _ in said(server)]
    assert len(messages) == 10
    assert "49 MiB free" in messages


async def test_refused_events_are_dropped_and_counted_and_the_next_is_sent(
    server: FakeApiServer, client: KubeClient
) -> None:
    async with recording(client) as recorder:
        server.inject(Fault(method="POST", status=403), Fault(method="POST", drop="before"))
        for name in "abc":
            recorder.emit(POD, "Refused", name)
        recorder.emit(ObjectRef("Pod", "../..", "p", "u"), "Refused", "a hostile name")
        await recorder.flush(5)
    assert said(server) == [("c", 1)]
    assert recorder.dropped == 3


async def test_the_queue_is_bounded_and_emit_never_waits(server: FakeApiServer, client: KubeClient) -> None:
    recorder = EventRecorder(client, "fractile")
    for i in range(5000):
        recorder.emit(POD, "Refused", str(i))
    assert recorder.dropped == 4000
    assert server.requests == []


async def test_events_are_sent_at_a_bounded_rate(server: FakeApiServer, client: KubeClient) -> None:
    sleeps = Sleeps()
    async with recording(client, sleeps) as recorder:
        for i in range(150):
            recorder.emit(ObjectRef("Pod", "default", f"p{i}", "u"), "Refused", "m")
        await recorder.flush(30)
    assert len(server.all(EVENTS)) == 150
    assert sleeps.asked == pytest.approx([i / 20 for i in range(1, 51)])


async def test_flush_gives_up_when_the_server_is_slow(server: FakeApiServer, client: KubeClient) -> None:
    server.inject(Fault(method="POST", delay=30))
    async with recording(client) as recorder:
        recorder.emit(POD, "Refused", "no room")
        async with asyncio.timeout(5):
            await recorder.flush(0.1)


async def test_a_very_long_message_is_cut_to_what_the_api_takes(server: FakeApiServer, client: KubeClient) -> None:
    async with recording(client) as recorder:
        recorder.emit(POD, "Refused", "x" * 5000)
        await recorder.flush(5)
    assert len(said(server)[0][0]) == 1024
