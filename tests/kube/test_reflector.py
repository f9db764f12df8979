"""The reflector under every failure of a server that we know: nothing is lost, nothing is told twice."""

import asyncio
import random
from collections.abc import Callable

import msgspec
import pytest

from fractile.kube.backoff import Backoff
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Gone, Reflector
from fractile.wire.kubernetes.objects import Pod
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.kube.views import PODS, View, create, delete, make_reflector, running, touch

LONG_LINE = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","namespace":"default","uid":"x"'
INTERNAL_ERROR = (
    b'{"type":"ERROR","object":{"kind":"Status","code":500,"reason":"InternalError",'
    b'"message":"etcd event received with PrevKv=nil"}}'
)
FAULTS: dict[str, list[Fault]] = {
    "list 429": [Fault(watch=False, status=429, times=3, headers={"Retry-After": "0"})],
    "list 500 for long": [Fault(watch=False, status=500, times=12)],
    "list html": [Fault(watch=False, status=200, body=b"<html>", times=3)],
    "list cut": [Fault(watch=False, cut_after=100, times=3)],
    "list dropped": [Fault(watch=False, drop="before", times=7)],
    "list forbidden": [Fault(watch=False, status=403, times=3)],
    "list of no such type": [Fault(watch=False, status=404, body=b"404 page not found", times=3)],
    "list slow": [Fault(watch=False, delay=0.2)],
    "watch 401": [Fault(watch=True, status=401, times=2)],
    "watch 410 status": [Fault(watch=True, status=410, times=2)],
    "watch 429": [Fault(watch=True, status=429, times=3)],
    "watch 500": [Fault(watch=True, status=500, times=8)],
    "watch 504 of a version of the future": [Fault(watch=True, status=504, times=5)],
    "watch html error": [Fault(watch=True, status=502, body=b"<html>", times=3)],
    "watch html line": [Fault(watch=True, line=b"<html>", times=3)],
    "watch malformed line": [Fault(watch=True, line=LONG_LINE, times=3)],
    "watch error event": [Fault(watch=True, line=INTERNAL_ERROR, times=4)],
    "watch cut in a line": [Fault(watch=True, cut_after=n, times=1) for n in (0, 10, 333, 400, 1000)],
    "watch dropped": [Fault(watch=True, drop="before", times=4)],
    "watch silent": [Fault(watch=True, silent=True, times=2)],
    "watch slow": [Fault(watch=True, delay=0.2)],
}


@pytest.mark.parametrize("streaming", [False, True], ids=["list", "streaming"])
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
async def test_it_agrees_with_the_server_after_a_failing_start(
    server: FakeApiServer, client: KubeClient, faults: list[Fault], streaming: bool
) -> None:
    create(server, "a")
    create(server, "b")
    server.inject(*(Fault(**vars(f)) for f in faults))
    view = View()
    async with running(make_reflector(client, view, streaming=streaming, silence=0.1)):
        await view.agrees(server)
        touch(server, "a")
        delete(server, "b")
        create(server, "c")
        await view.agrees(server)
        assert len(view.dead) == 1


@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS.keys())
async def test_it_agrees_with_the_server_after_a_failure_in_mid_course(
    server: FakeApiServer, client: KubeClient, faults: list[Fault]
) -> None:
    for name in "abc":
        create(server, name)
    view = View()
    async with running(make_reflector(client, view, silence=0.1)):
        await view.agrees(server)
        server.inject(*(Fault(**vars(f)) for f in faults))
        await server.cut_connections()
        delete(server, "a")
        delete(server, "b")
        create(server, "b")
        touch(server, "c")
        server.compact()
        await view.agrees(server)
    assert len(view.dead) == 2


async def test_the_first_list_is_whole_when_synced_is_set(server: FakeApiServer, client: KubeClient) -> None:
    for i in range(1200):
        create(server, f"p{i}")
    view = View()
    reflector = make_reflector(client, view)
    async with asyncio.timeout(10), running(reflector):
        assert not reflector.synced.is_set()
        await reflector.synced.wait()
        assert len(view.pods) == len(reflector) == 1200


async def test_a_streaming_list_is_whole_when_synced_is_set(server: FakeApiServer, client: KubeClient) -> None:
    for i in range(1200):
        create(server, f"p{i}")
    view = View()
    reflector = make_reflector(client, view, streaming=True)
    async with asyncio.timeout(10), running(reflector):
        await reflector.synced.wait()
        assert len(view.pods) == 1200
    assert {r.query.get("sendInitialEvents") for r in server.requests} == {"true"}


async def test_a_server_without_streaming_lists_is_asked_once_and_then_listed(
    server: FakeApiServer, client: KubeClient
) -> None:
    server.streaming_lists = False
    create(server, "a")
    view = View()
    async with running(make_reflector(client, view, streaming=True)):
        await view.agrees(server)
        await server.cut_connections()
        touch(server, "a")
        server.compact()
        await view.agrees(server)
    asked = [r for r in server.requests if "sendInitialEvents" in r.query]
    assert len(asked) == 1


async def test_a_cut_watch_resumes_without_a_list(server: FakeApiServer, client: KubeClient) -> None:
    create(server, "a")
    view = View()
    async with running(make_reflector(client, view)):
        await view.agrees(server)
        for _ in range(5):
            await server.cut_connections()
            touch(server, "a")
            await view.agrees(server)
    lists = [r for r in server.requests if "watch" not in r.query]
    assert len(lists) == 1


async def test_a_watch_that_ends_in_the_normal_way_resumes_without_a_list(
    server: FakeApiServer, client: KubeClient
) -> None:
    create(server, "a")
    view = View()
    async with running(make_reflector(client, view, silence=0.05)):
        await view.agrees(server)
        await asyncio.sleep(0.3)
        touch(server, "a")
        await view.agrees(server)
    lists = [r for r in server.requests if "watch" not in r.query]
    watches = [r for r in server.requests if "watch" in r.query]
    assert len(lists) == 1
    assert 3 <= len(watches) <= 10, "a silent watch is cut and resumed, not hammered"


async def test_bookmarks_move_the_place_to_resume_from(server: FakeApiServer, client: KubeClient) -> None:
    create(server, "a")
    view = View()
    reflector = make_reflector(client, view)
    async with running(reflector):
        await view.agrees(server)
        before = vars(reflector)["_version"]
        for _ in range(5):  # writes to another collection age our version
            server.create("/api/v1/nodes", {"metadata": {"generateName": "n"}})
        async with asyncio.timeout(10):
            while vars(reflector)["_version"] == before:
                server.bookmark()  # goes to watches that are there: ours may not have begun yet
                await asyncio.sleep(0.005)
        server.compact()
        await server.cut_connections()
        touch(server, "a")
        await view.agrees(server)
    assert len([r for r in server.requests if "watch" not in r.query]) == 1, "no 410, so no list"


async def test_a_pod_made_anew_unseen_is_gone_with_the_old_uid_and_then_changed(
    server: FakeApiServer, client: KubeClient
) -> None:
    create(server, "a")
    view = View()
    async with running(make_reflector(client, view)):
        await view.agrees(server)
        await server.stop()
        delete(server, "a")
        create(server, "a")
        server.compact()
        await server.restart()
        await view.agrees(server)
    assert view.log == ["changed a", "gone a", "changed a"]


async def test_a_relist_does_not_tell_again_what_did_not_change(server: FakeApiServer, client: KubeClient) -> None:
    for i in range(20):
        create(server, f"p{i}")
    view = View()
    async with running(make_reflector(client, view)):
        await view.agrees(server)
        await server.stop()
        touch(server, "p3")
        server.compact()
        await server.restart()
        await view.agrees(server)
    assert len(view.log) == 21


async def test_what_is_deleted_while_a_broken_list_begins_anew_is_gone(server: FakeApiServer) -> None:
    view = View()

    def changed(pod: Pod) -> None:
        view.changed(pod)
        if view.log == ["changed a"]:  # between the first page and the second
            delete(server, "a")
            server.compact()

    create(server, "a")
    create(server, "b")
    async with (
        KubeClient(server.credentials(), page_size=1) as client,
        running(Reflector(client, PODS, Pod, changed=changed, gone=view.gone)),
    ):
        await view.has_heard("changed a", "changed b", "gone a")


async def test_a_streaming_list_that_breaks_off_is_no_place_to_resume_from(
    server: FakeApiServer, client: KubeClient
) -> None:
    create(server, "b")  # older than "a", but listed after it
    create(server, "a")
    first = msgspec.json.encode({"type": "ADDED", "object": server.all(PODS)[0]})
    server.inject(Fault(watch=True, cut_after=len(first) + 5))
    view = View()
    async with running(make_reflector(client, view, streaming=True)):
        await view.agrees(server)
    assert view.log == ["changed a", "changed b"]


async def test_objects_that_leave_the_selector_are_gone(server: FakeApiServer, client: KubeClient) -> None:
    create(server, "a", node="n1")
    create(server, "b", node="n2")
    view = View()
    async with (
        asyncio.timeout(10),
        running(reflector := make_reflector(client, view, field_selector="spec.nodeName=n1")),
    ):
        await reflector.synced.wait()
        server.merge("/api/v1/namespaces/default/pods/a", {"spec": {"nodeName": "n3"}})
        server.merge("/api/v1/namespaces/default/pods/b", {"spec": {"nodeName": "n1"}})
        await view.has_heard("changed a", "gone a", "changed b")


async def test_a_malformed_object_stops_nothing_and_its_deletion_is_told(
    server: FakeApiServer, client: KubeClient
) -> None:
    create(server, "a")
    server.create(
        PODS, {"metadata": {"name": "odd", "namespace": "default"}, "spec": {"nodeName": ["not", "a", "name"]}}
    )
    view = View()
    reflector = Reflector(
        client, PODS, Pod, changed=view.changed, gone=lambda gone: view.log.append(f"gone {gone.name}")
    )
    async with asyncio.timeout(10), running(reflector):
        await reflector.synced.wait()
        delete(server, "odd")
        create(server, "b")
        await view.has_heard("changed a", "gone odd", "changed b")


async def test_a_server_restored_from_a_backup_is_listed_anew(server: FakeApiServer, client: KubeClient) -> None:
    create(server, "a")
    view = View()
    gone_back = Fault(watch=True, status=504, times=3)  # what 1.36 says to a version that it does not know yet
    async with running(make_reflector(client, view)):
        await view.agrees(server)
        server.inject(gone_back)
        await server.cut_connections()
        delete(server, "a")
        await view.agrees(server)
    assert len([r for r in server.requests if "watch" not in r.query]) == 2


@pytest.mark.parametrize("callback", ["changed", "gone"])
async def test_an_exception_of_a_callback_ends_the_run(
    server: FakeApiServer, client: KubeClient, callback: str
) -> None:
    def fail(_: object) -> None:
        raise KeyError("a bug")

    def ignore(_: object) -> None:
        return None

    changed: Callable[[Pod], None] = fail if callback == "changed" else ignore
    gone: Callable[[Gone], None] = fail if callback == "gone" else ignore
    create(server, "a")
    reflector = Reflector(client, PODS, Pod, changed=changed, gone=gone)
    task = asyncio.create_task(reflector.run())
    if callback == "gone":
        await asyncio.wait_for(reflector.synced.wait(), 10)
        delete(server, "a")
    with pytest.raises(KeyError):
        await asyncio.wait_for(task, 10)


async def test_a_refusing_server_is_not_hammered(server: FakeApiServer) -> None:
    server.inject(Fault(status=403, times=1000))
    view = View()
    async with (
        KubeClient(server.credentials()) as client,
        running(Reflector(client, PODS, Pod, changed=view.changed, gone=view.gone)),
    ):
        await asyncio.sleep(1)
    assert 2 <= len(server.requests) <= 6


@pytest.mark.parametrize("streaming", [False, True], ids=["list", "streaming"])
async def test_every_list_tells_all_that_exist_and_when_it_was_asked_for(
    server: FakeApiServer, client: KubeClient, streaming: bool
) -> None:
    now = 0.0
    lists: list[tuple[set[str], float]] = []
    second = asyncio.Event()

    def listed(uids: set[str], asked: float) -> None:
        lists.append((uids, asked))
        if len(lists) == 2:
            second.set()

    view = View()
    create(server, "a")
    create(server, "b")
    server.inject(Fault(watch=streaming, delay=0.2))
    reflector = Reflector(
        client,
        PODS,
        Pod,
        changed=view.changed,
        gone=view.gone,
        listed=listed,
        streaming=streaming,
        backoff=Backoff(base=0.001, cap=0.02, rng=random.Random(1)),
        clock=lambda: now,
    )
    async with running(reflector):
        await asyncio.sleep(0.1)
        now = 5.0  # the first list has been asked for, and is on its way
        await view.agrees(server)
        await reflector.synced.wait()
        first = {uid for uid, _ in view.pods.values()}
        await server.stop()
        delete(server, "a")
        create(server, "c")
        server.compact()
        await server.restart()
        await view.agrees(server)
        await second.wait()
    assert lists == [(first, 0.0), ({uid for uid, _ in view.pods.values()}, 5.0)]
