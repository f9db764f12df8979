"""What the client relies on, held against the fake and against a real kube-apiserver with etcd."""

import asyncio
from contextlib import aclosing
from pathlib import Path

import msgspec
import pytest

from fractile.errors import ApiError
from fractile.kube import credentials, paths
from fractile.kube.client import EventType, KubeClient, WatchEvent
from fractile.kube.credentials import Credentials
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.kube.lease import LeaderElector, LeaseTiming
from fractile.kube.reflector import INITIAL_EVENTS_END, Gone, Reflector
from fractile.kube.tokens import StaticToken
from fractile.wire.kubernetes.objects import Lease, Pod
from tests.contract.api_objects import WAIT, ConfigMap, Event, config_map, lease, pod, take
from tests.contract.conftest import Api
from tests.contract.real_apiserver import RealApiServer


async def test_a_list_of_several_pages_has_every_object_once_and_one_version(api: Api) -> None:
    for i in range(8):
        await api.client.create(api.config_maps, config_map(f"c{i}"))
    items, version = await api.client.list(api.config_maps, ConfigMap)
    assert [c.metadata.name for c in items] == [f"c{i}" for i in range(8)]
    assert int(version) >= max(int(c.metadata.resource_version) for c in items)


async def test_an_empty_list_has_a_version_to_watch_from(api: Api) -> None:
    items, version = await api.client.list(api.config_maps, ConfigMap)
    await api.client.create(api.config_maps, config_map("later"))
    assert items == []
    assert await take(api, api.config_maps, 1, version=version) == [("ADDED", "later")]


async def test_labels_select(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("a", labels={"x": "1"}))
    await api.client.create(paths.pods(api.namespace), pod("b", labels={"x": "2"}))
    items, _ = await api.client.list(paths.pods(api.namespace), Pod, label_selector="x=2")
    assert [p.metadata.name for p in items] == ["b"]


async def test_a_list_from_the_servers_memory_shows_what_is_there_and_soon_no_longer_what_is_deleted(api: Api) -> None:
    names = [f"c{i}" for i in range(8)]  # more than a page
    for name in names:
        await api.client.create(api.config_maps, config_map(name))

    async def until(wanted: list[str]) -> None:
        async with asyncio.timeout(WAIT):
            while True:
                items, _ = await api.client.list(api.config_maps, ConfigMap, cached=True)
                if [c.metadata.name for c in items] == wanted:
                    return
                await asyncio.sleep(0.05)

    await until(names)
    await api.client.delete(api.config_map("c3"))
    await until([name for name in names if name != "c3"])


async def test_events_are_selected_by_kind_and_name_of_their_object(api: Api) -> None:
    recorder = EventRecorder(api.client, "test")
    sending = asyncio.create_task(recorder.run())
    for kind in ("Pod", "ReplicaSet"):
        recorder.emit(ObjectRef(kind, api.namespace, "same", "u"), "R", kind)
    await recorder.flush(WAIT)
    sending.cancel()
    of_pods = "involvedObject.name=same,involvedObject.kind=Pod"
    found, _ = await api.client.list(paths.events(api.namespace), Event, field_selector=of_pods)
    assert [e.message for e in found] == ["Pod"]


async def test_an_unknown_field_is_a_400(api: Api) -> None:
    with pytest.raises(ApiError) as error:
        await api.client.list(paths.pods(api.namespace), Pod, field_selector="spec.bogus=1")
    assert error.value.code == 400


async def test_a_watch_tells_creation_change_and_deletion_in_order(api: Api) -> None:
    _, version = await api.client.list(api.config_maps, ConfigMap)
    await api.client.create(api.config_maps, config_map("a"))
    await api.client.merge_patch(api.config_map("a"), {"data": {"k": "v"}})
    await api.client.delete(api.config_map("a"))
    assert await take(api, api.config_maps, 3, version=version) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_watch_resumes_after_the_version_of_any_event(api: Api) -> None:
    _, version = await api.client.list(api.config_maps, ConfigMap)
    for name in "abc":
        await api.client.create(api.config_maps, config_map(name))
    async with aclosing(api.client.watch(api.config_maps, ConfigMap, resource_version=version)) as events:
        first = await anext(events)
    assert await take(api, api.config_maps, 2, version=first.metadata.resource_version) == [
        ("ADDED", "b"),
        ("ADDED", "c"),
    ]


async def test_the_version_of_a_deletion_is_that_of_the_deletion(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    _, version = await api.client.list(api.config_maps, ConfigMap)
    await api.client.delete(api.config_map("a"))
    async with aclosing(api.client.watch(api.config_maps, ConfigMap, resource_version=version)) as events:
        deleted = await anext(events)
    assert deleted.type is EventType.DELETED
    assert int(deleted.metadata.resource_version) > int(version)


async def test_an_object_that_enters_or_leaves_the_selector_is_added_or_deleted(api: Api) -> None:
    path = paths.pods(api.namespace)
    await api.client.create(path, pod("a"))
    before = await api.client.get(paths.pod(api.namespace, "a"), Pod)
    _, version = await api.client.list(path, Pod)
    node = f"node-{api.namespace}"
    await api.client.bind(namespace=api.namespace, name="a", uid=before.metadata.uid, node=node, annotations={"k": "v"})
    assert await take(api, path, 1, version=version, field_selector=f"spec.nodeName={node}") == [("ADDED", "a")]
    assert await take(api, path, 1, version=version, field_selector="spec.nodeName=") == [("DELETED", "a")]


async def test_initial_events_end_with_a_marked_bookmark(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    await api.client.create(api.config_maps, config_map("b"))
    seen: list[WatchEvent[ConfigMap]] = []
    async with (
        asyncio.timeout(WAIT),
        aclosing(api.client.watch(api.config_maps, ConfigMap, initial_events=True)) as events,
    ):
        async for event in events:
            seen.append(event)
            if event.type is EventType.BOOKMARK:
                break
    assert [(e.type.value, e.metadata.name) for e in seen] == [("ADDED", "a"), ("ADDED", "b"), ("BOOKMARK", "")]
    assert (seen[-1].metadata.annotations or {})[INITIAL_EVENTS_END] == "true"
    assert int(seen[-1].metadata.resource_version) >= int(seen[-2].metadata.resource_version)


async def test_a_watch_from_a_compacted_version_is_refused_with_410_in_the_stream(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    _, version = await api.client.list(api.config_maps, ConfigMap)
    for value in "vw":  # with one write only, 1.36.3 answers 500: etcd has the event but not what was before it
        await api.client.merge_patch(api.config_map("a"), {"data": {"k": value}})
    await api.compact()
    with pytest.raises(ApiError) as error:
        await take(api, api.config_maps, 1, version=version)
    assert (error.value.code, error.value.reason) == (410, "Expired")


async def test_a_list_whose_snapshot_is_compacted_between_two_pages_begins_anew(api: Api) -> None:
    for i in range(5):
        await api.client.create(api.config_maps, config_map(f"c{i}"))
    firsts: list[bool] = []
    async with aclosing(api.client.pages(api.config_maps)) as pages:
        async for page in pages:
            firsts.append(page.first)
            if len(firsts) == 1:
                await api.client.merge_patch(api.config_map("c4"), {"data": {"k": "v"}})
                await api.compact()
    assert firsts == [True, True]


async def test_a_reflector_loses_no_deletion_to_a_compaction(api: Api) -> None:
    for name in "ab":
        await api.client.create(api.config_maps, config_map(name))
    told: asyncio.Queue[str | Gone] = asyncio.Queue()
    reflector = Reflector(
        api.client,
        api.config_maps,
        ConfigMap,
        changed=lambda c: told.put_nowait(c.metadata.name),
        gone=told.put_nowait,
    )
    uid = (await api.client.get(api.config_map("a"), ConfigMap)).metadata.uid
    async with asyncio.timeout(WAIT):
        running = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await api.client.delete(api.config_map("a"))
        await api.client.create(api.config_maps, config_map("a"))
        await api.compact()
        running = asyncio.create_task(reflector.run())
        heard = [await told.get() for _ in range(4)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert heard == ["a", "b", Gone(api.namespace, "a", uid), "a"]


@pytest.mark.parametrize("streaming", [False, True], ids=["list-and-watch", "streaming-list"])
async def test_a_reflector_follows(api: Api, streaming: bool) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    told: asyncio.Queue[str] = asyncio.Queue()
    reflector = Reflector(
        api.client,
        api.config_maps,
        ConfigMap,
        changed=lambda c: told.put_nowait(f"changed {c.metadata.name} {(c.data or {}).get('k')}"),
        gone=lambda g: told.put_nowait(f"gone {g.name}"),
        streaming=streaming,
    )
    async with asyncio.timeout(WAIT):
        running = asyncio.create_task(reflector.run())
        await reflector.synced.wait()
        await api.client.merge_patch(api.config_map("a"), {"data": {"k": "v"}})
        await api.client.create(api.config_maps, config_map("b", k="w"))
        await api.client.delete(api.config_map("a"))
        heard = [await told.get() for _ in range(4)]
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
    assert heard == ["changed a None", "changed a v", "changed b w", "gone a"]


async def test_a_binding_sets_the_node_and_merges_annotations_in_one_write(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p", annotations={"a": "1", "b": "2"}, labels={"l": "1"}))
    before = await api.client.get(paths.pod(api.namespace, "p"), Pod)
    await api.client.bind(
        namespace=api.namespace, name="p", uid=before.metadata.uid, node="n1", annotations={"b": "3", "c": "4"}
    )
    after = await api.client.get(paths.pod(api.namespace, "p"), Pod)
    assert after.spec.node_name == "n1"
    assert after.metadata.annotations == {"a": "1", "b": "3", "c": "4"}
    assert after.metadata.labels == {"l": "1"}


async def test_a_binding_for_another_uid_is_a_409_and_changes_nothing(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p"))
    before = await api.client.get(paths.pod(api.namespace, "p"), Pod)
    with pytest.raises(ApiError, match="UID in precondition") as error:
        await api.client.bind(namespace=api.namespace, name="p", uid="other", node="n1", annotations={"a": "1"})
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    assert await api.client.get(paths.pod(api.namespace, "p"), Pod) == before


async def test_a_second_binding_is_a_409_already_assigned_and_changes_nothing(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p"))
    uid = (await api.client.get(paths.pod(api.namespace, "p"), Pod)).metadata.uid
    await api.client.bind(namespace=api.namespace, name="p", uid=uid, node="n1", annotations={"a": "1"})
    before = await api.client.get(paths.pod(api.namespace, "p"), Pod)
    with pytest.raises(ApiError, match='already assigned to node "n1"') as error:
        await api.client.bind(namespace=api.namespace, name="p", uid=uid, node="n2", annotations={"a": "2"})
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    assert await api.client.get(paths.pod(api.namespace, "p"), Pod) == before


async def test_a_binding_of_a_pod_that_is_being_deleted_is_a_409(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p", finalizers=["fractile.dev/test"]))
    uid = (await api.client.get(paths.pod(api.namespace, "p"), Pod)).metadata.uid
    await api.client.delete(paths.pod(api.namespace, "p"))
    with pytest.raises(ApiError, match="is being deleted") as error:
        await api.client.bind(namespace=api.namespace, name="p", uid=uid, node="n1", annotations={})
    assert error.value.code == 409


async def test_a_binding_of_a_missing_pod_is_a_404(api: Api) -> None:
    with pytest.raises(ApiError) as error:
        await api.client.bind(namespace=api.namespace, name="none", uid="u", node="n1", annotations={})
    assert error.value.code == 404


async def test_creating_twice_is_a_409(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    with pytest.raises(ApiError) as error:
        await api.client.create(api.config_maps, config_map("a"))
    assert (error.value.code, error.value.reason) == (409, "AlreadyExists")


async def test_a_replace_with_an_old_version_is_a_409(api: Api) -> None:
    path = paths.lease(api.namespace, "l")
    await api.client.create(paths.leases(api.namespace), lease("l", "a"))
    version = (await api.client.get(path, Lease)).metadata.resource_version
    await api.client.replace(path, lease("l", "b", resourceVersion=version))
    with pytest.raises(ApiError) as error:
        await api.client.replace(path, lease("l", "c", resourceVersion=version))
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    assert (await api.client.get(path, Lease)).spec.holder_identity == "b"


async def test_a_delete_for_another_uid_is_a_409_and_deletes_nothing(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    with pytest.raises(ApiError) as error:
        await api.client.delete(api.config_map("a"), uid="other")
    assert (error.value.code, error.value.reason) == (409, "Conflict")
    uid = (await api.client.get(api.config_map("a"), ConfigMap)).metadata.uid
    await api.client.delete(api.config_map("a"), uid=uid)
    with pytest.raises(ApiError) as gone:
        await api.client.get(api.config_map("a"), ConfigMap)
    assert (gone.value.code, gone.value.reason) == (404, "NotFound")


async def test_a_delete_of_an_object_that_was_changed_meanwhile_is_a_409_and_deletes_nothing(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    read = (await api.client.get(api.config_map("a"), ConfigMap)).metadata
    await api.client.merge_patch(api.config_map("a"), {"data": {"k": "v"}})
    with pytest.raises(ApiError) as error:
        await api.client.delete(api.config_map("a"), uid=read.uid, resource_version=read.resource_version)
    assert error.value.code == 409
    now = (await api.client.get(api.config_map("a"), ConfigMap)).metadata
    await api.client.delete(api.config_map("a"), uid=now.uid, resource_version=now.resource_version)
    assert (await api.client.list(api.config_maps, ConfigMap))[0] == []


async def test_an_unknown_token_is_a_401(api: Api) -> None:
    stranger = Credentials(api.credentials.server, tls=api.credentials.tls, token=StaticToken("nobody"))
    async with KubeClient(stranger) as client:
        with pytest.raises(ApiError) as error:
            await client.list(api.config_maps, ConfigMap)
    assert error.value.code == 401


async def test_repeated_events_are_one_object_with_a_count(api: Api) -> None:
    recorder = EventRecorder(api.client, "fractile-test")
    about = ObjectRef("Pod", api.namespace, "p", "uid-1")
    running = asyncio.create_task(recorder.run())
    recorder.emit(about, "Refused", "no room")
    recorder.emit(about, "Refused", "no room")
    await recorder.flush(WAIT)
    recorder.emit(about, "Refused", "no room")
    await recorder.flush(WAIT)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    found, _ = await api.client.list(paths.events(api.namespace), Event, field_selector="involvedObject.name=p")
    assert [(e.reason, e.message, e.type, e.count) for e in found] == [("Refused", "no room", "Warning", 3)]
    assert (found[0].involved_object or {})["uid"] == "uid-1"
    assert recorder.dropped == 0


async def test_the_lead_passes_on_when_it_is_released(api: Api) -> None:
    timing = LeaseTiming(duration=4, deadline=3, retry=0.05)  # a Lease that is missing is waited for so long
    first, second = (
        LeaderElector(api.client, namespace=api.namespace, name="lead", identity=name, timing=timing) for name in "ab"
    )
    async with asyncio.timeout(WAIT):
        await first.acquire()
        waiting = asyncio.create_task(second.acquire())
        await asyncio.sleep(0.2)
        assert (first.leading, second.leading) == (True, False)
        await first.release()
        async with asyncio.timeout(2):  # and not until the time of the first is over
            await waiting
    assert (first.leading, second.leading) == (False, True)
    assert second.transitions == first.transitions + 1


async def test_an_object_with_a_finalizer_goes_when_the_finalizer_does(api: Api) -> None:
    await api.client.create(
        api.config_maps, {"metadata": {"name": "a", "finalizers": ["fractile.dev/test"]}, "data": {}}
    )
    _, version = await api.client.list(api.config_maps, ConfigMap)
    await api.client.delete(api.config_map("a"))
    assert (await api.client.get(api.config_map("a"), ConfigMap)).metadata.deletion_timestamp is not None
    await api.client.merge_patch(api.config_map("a"), {"metadata": {"finalizers": None}})
    assert await take(api, api.config_maps, 2, version=version) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_the_real_server_takes_a_client_certificate_from_a_kubeconfig(
    real_server: RealApiServer, tmp_path: Path
) -> None:
    folder = real_server.ca.parent
    user = {"client-certificate": str(folder / "admin.pem"), "client-key": str(folder / "admin.key")}
    config = {
        "current-context": "c",
        "clusters": [
            {"name": "c", "cluster": {"server": real_server.url, "certificate-authority": str(real_server.ca)}}
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
    }
    file = tmp_path / "kubeconfig"
    file.write_bytes(msgspec.json.encode(config))
    async with KubeClient(credentials.load(file)) as client:
        assert (await client.list("/api/v1/namespaces", ConfigMap))[0]


async def test_the_real_server_forbids_what_a_user_may_not_do(real_server: RealApiServer) -> None:
    trusting = credentials.load(real_server.kubeconfig).tls
    weak = Credentials(real_server.url, tls=trusting, token=StaticToken("weak"))
    async with KubeClient(weak) as client:
        with pytest.raises(ApiError, match="cannot list resource") as error:
            await client.list(paths.pods("default"), Pod)
    assert (error.value.code, error.value.reason) == (403, "Forbidden")


async def test_the_real_server_does_not_know_a_group_without_its_definition(real_server: RealApiServer) -> None:
    async with KubeClient(credentials.load(real_server.kubeconfig)) as client:
        with pytest.raises(ApiError, match="404 page not found") as error:
            await client.list(paths.extended_resources(), ConfigMap)
    assert error.value.code == 404
