"""Applies, patches and gates, held against the fake and against a real kube-apiserver with etcd."""

import msgspec
import pytest

from fractile.errors import ApiError
from fractile.kube import paths
from fractile.wire.kubernetes import queued
from fractile.wire.kubernetes.objects import Gate, Lease, ObjectMeta, Pod
from tests.contract.api_objects import ConfigMap, config_map, gated_pod, lease, pod
from tests.contract.conftest import Api


async def test_apply_creates_then_changes_and_an_equal_apply_writes_nothing(api: Api) -> None:
    path = paths.lease(api.namespace, "l")
    await api.client.apply(path, lease("l", "a"), field_manager="test")
    first = await api.client.get(path, Lease)
    await api.client.apply(path, lease("l", "a"), field_manager="test")
    assert await api.client.get(path, Lease) == first
    await api.client.apply(path, lease("l", "b"), field_manager="test")
    second = await api.client.get(path, Lease)
    assert (first.spec.holder_identity, second.spec.holder_identity) == ("a", "b")
    assert second.metadata.uid == first.metadata.uid


def applied(name: str, **data: str) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def test_what_an_apply_names_no_more_goes_unless_somebody_else_wants_it(api: Api) -> None:
    path = api.config_map("a")
    await api.client.apply(path, applied("a", mine="1", both="2", old="3"), field_manager="me")
    await api.client.apply(path, applied("a", both="2", yours="4"), field_manager="you")
    await api.client.apply(path, applied("a", mine="1"), field_manager="me")
    assert (await api.client.get(path, ConfigMap)).data == {"mine": "1", "both": "2", "yours": "4"}
    await api.client.merge_patch(path, {"data": {"mine": "5"}})
    await api.client.apply(path, applied("a", other="6"), field_manager="me")
    assert (await api.client.get(path, ConfigMap)).data == {"mine": "5", "both": "2", "yours": "4", "other": "6"}


@pytest.mark.parametrize("by", ["apply", "patch"])
async def test_an_apply_without_force_changes_nothing_that_somebody_else_said_otherwise(api: Api, by: str) -> None:
    path = api.config_map("a")
    await api.client.apply(path, applied("a", k="1", other="2"), field_manager="me")
    if by == "apply":
        await api.client.apply(path, applied("a", k="you"), field_manager="you")
    else:
        await api.client.merge_patch(path, {"data": {"k": "you"}})
    with pytest.raises(ApiError) as error:
        await api.client.apply(path, applied("a", k="me", other="3"), field_manager="me", force=False)
    assert error.value.code == 409
    assert (await api.client.get(path, ConfigMap)).data == {"k": "you", "other": "2"}
    await api.client.apply(path, applied("a", k="you", other="3"), field_manager="me", force=False)  # agrees
    await api.client.apply(path, applied("a", k="me"), field_manager="me")
    assert (await api.client.get(path, ConfigMap)).data == {"k": "me"}


async def test_apply_without_a_field_manager_is_a_422(api: Api) -> None:
    with pytest.raises(ApiError) as error:
        await api.client.apply(paths.lease(api.namespace, "l"), lease("l", "a"), field_manager="")
    assert error.value.code == 422


async def test_a_merge_patch_adds_and_a_null_removes(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p", annotations={"a": "1", "b": "2"}))
    path = paths.pod(api.namespace, "p")
    await api.client.merge_patch(path, {"metadata": {"annotations": {"a": None, "c": "3"}}})
    assert (await api.client.get(path, Pod)).metadata.annotations == {"b": "2", "c": "3"}


async def test_a_merge_patch_with_the_version_of_before_is_a_409(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a"))
    old = (await api.client.get(api.config_map("a"), ConfigMap)).metadata.resource_version
    await api.client.merge_patch(api.config_map("a"), {"data": {"k": "v"}})
    with pytest.raises(ApiError) as error:
        await api.client.merge_patch(api.config_map("a"), {"metadata": {"resourceVersion": old}, "data": {"k": "w"}})
    assert error.value.code == 409


async def test_a_patch_that_changes_nothing_is_no_write(api: Api) -> None:
    await api.client.create(api.config_maps, config_map("a", k="v"))
    before = await api.client.get(api.config_map("a"), ConfigMap)
    await api.client.merge_patch(api.config_map("a"), {"data": {"k": "v"}})
    assert await api.client.get(api.config_map("a"), ConfigMap) == before


async def test_a_patch_of_another_uid_is_refused(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p"))
    with pytest.raises(ApiError) as error:
        await api.client.merge_patch(
            paths.pod(api.namespace, "p"), {"metadata": {"uid": "other", "annotations": {"a": "1"}}}
        )
    assert error.value.code == 422


async def test_the_status_is_a_subresource_of_its_own(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p"))
    path = paths.pod(api.namespace, "p")
    await api.client.merge_patch(path, {"status": {"phase": "Running"}})
    assert (await api.client.get(path, Pod)).status.phase == "Pending"
    await api.client.merge_patch(f"{path}/status", {"status": {"phase": "Running"}})
    assert (await api.client.get(path, Pod)).status.phase == "Running"


async def test_a_nomination_and_its_annotation_are_one_write_of_the_status(api: Api) -> None:
    """Also on a pod that is gated."""
    await api.client.create(paths.pods(api.namespace), gated_pod("p"))
    path = paths.pod(api.namespace, "p")
    before = await api.client.get(path, Pod)
    await api.client.merge_patch(f"{path}/status", queued.nomination(before, "n1"))
    after = await api.client.get(path, Pod)
    assert queued.nominated_by_us(after) == "n1"
    assert queued.gated(after)
    await api.client.merge_patch(f"{path}/status", queued.no_nomination(after))
    assert queued.nominated_by_us(await api.client.get(path, Pod)) == ""


async def test_a_nomination_for_an_older_state_of_a_pod_is_a_409(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), pod("p"))
    path = paths.pod(api.namespace, "p")
    before = await api.client.get(path, Pod)
    await api.client.bind(namespace=api.namespace, name="p", uid=before.metadata.uid, node="n2", annotations={})
    with pytest.raises(ApiError) as error:
        await api.client.merge_patch(f"{path}/status", queued.nomination(before, "n1"))
    assert error.value.code == 409


async def test_our_gate_is_taken_away_and_those_of_others_stay(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), gated_pod("p", "example.com/other"))
    path = paths.pod(api.namespace, "p")
    for _ in range(2):  # twice changes nothing
        await api.client.strategic_patch(path, queued.without_gate(await api.client.get(path, Pod)))
        assert (await api.client.get(path, Pod)).spec.scheduling_gates == [Gate(name="example.com/other")]


async def test_a_gate_of_another_pod_of_that_name_stays(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), gated_pod("p"))
    path = paths.pod(api.namespace, "p")
    other = msgspec.structs.replace(await api.client.get(path, Pod), metadata=ObjectMeta(name="p", uid="other"))
    with pytest.raises(ApiError) as error:
        await api.client.strategic_patch(path, queued.without_gate(other))
    assert error.value.code in (409, 422)
    with pytest.raises(ApiError) as error:
        await api.client.merge_patch(path, queued.without_gates(other))
    assert error.value.code in (409, 422)
    assert queued.gated(await api.client.get(path, Pod))


async def test_our_gate_alone_is_taken_away_with_the_list(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), gated_pod("p"))
    path = paths.pod(api.namespace, "p")
    for _ in range(2):  # twice changes nothing
        await api.client.merge_patch(path, queued.without_gates(await api.client.get(path, Pod)))
        assert not (await api.client.get(path, Pod)).spec.scheduling_gates


async def test_a_gated_pod_cannot_be_bound(api: Api) -> None:
    await api.client.create(paths.pods(api.namespace), gated_pod("p"))
    uid = (await api.client.get(paths.pod(api.namespace, "p"), Pod)).metadata.uid
    with pytest.raises(ApiError, match="schedulingGates") as error:
        await api.client.bind(namespace=api.namespace, name="p", uid=uid, node="n1", annotations={})
    assert error.value.code == 409


async def test_a_patch_of_a_pod_that_is_not_there_is_a_404(api: Api) -> None:
    path = paths.pod(api.namespace, "nobody")
    with pytest.raises(ApiError) as of_status:
        await api.client.merge_patch(f"{path}/status", {"metadata": {}})
    with pytest.raises(ApiError) as of_pod:
        await api.client.strategic_patch(path, {"metadata": {}})
    assert (of_status.value.code, of_pod.value.code) == (404, 404)
