"""Pods that are never evicted for using a card, and what does not make a pod one of these."""

from typing import Any

import pytest

from fractile.agent.audit import spared
from fractile.agent.audit.audit import REASON
from fractile.agent.audit.spared import SYSTEM
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.kube import paths
from fractile.wire.kubernetes.objects import ALLOWED
from tests.agent.audit.audit_world import NVIDIA, OURS, World, deletions, limits, miner, recorded, stranger, world
from tests.fakes.apiserver import Fault


async def test_a_process_of_the_host_gets_no_event_and_is_never_evicted() -> None:
    async with world("evict") as w:
        await w.seen_twice(stranger())
        assert w.server.writes() == []


@pytest.mark.parametrize(
    "more",
    [
        pytest.param({"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}, id="static"),
        pytest.param({"spec": {"priorityClassName": "system-node-critical"}}, id="node-critical"),
        pytest.param({"spec": {"priorityClassName": "system-cluster-critical"}}, id="cluster-critical"),
        pytest.param({"spec": {"priority": 2_000_001_000}}, id="critical by number"),
        pytest.param({"spec": limits("nvidia.com/gpu")}, id="another device plugin"),
    ],
)
async def test_who_has_a_right_to_the_card_that_is_not_ours_is_never_evicted(more: dict[str, Any]) -> None:
    async with world("evict") as w:
        found = miner(w.pod("spared", **more))
        for _ in range(3):
            await w.seen_twice(found)
            w.time += 300
        assert w.audit.evictions == 0
        assert deletions(w) == []


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"nvidia.com/gpu": "0"}, id="nothing of another device plugin's"),
        pytest.param({"nvidia.com/gpucores": "1"}, id="an amount that no device plugin serves"),
        pytest.param({"nvidia.com/priority": "0"}, id="nothing of such an amount"),
        pytest.param(
            {"tencent.com/vcuda-core": "10"}, id="what the node does not have: kubelet admits it all the same"
        ),
        pytest.param({"nvidia.com/gpu": "many"}, id="nonsense"),
    ],
)
async def test_a_request_by_which_a_pod_holds_nothing_spares_nobody(asked: dict[str, str]) -> None:
    async with world("evict") as w:
        spec = {"containers": [{"name": "main", "resources": {"limits": asked}}]}
        await w.seen_twice(miner(w.pod("miner", spec=spec)))
        assert w.audit.evictions == 1


async def test_an_owner_that_the_pod_s_user_wrote_makes_it_no_static_pod() -> None:
    """The garbage collector leaves an owner of a kind that it does not know."""
    async with world("evict") as w:
        owner = {"apiVersion": "example.com/v1", "kind": "Node", "name": "n1", "uid": "u", "controller": True}
        await w.seen_twice(miner(w.pod("miner", metadata={"ownerReferences": [owner]})))
        assert w.audit.evictions == 1


GPU = "gpu.nvidia.com"


def claim(w: World, name: str, uid: str, *drivers: str, version: str = "v1") -> None:
    """With a device of each driver, reserved for the pod with this UID. No driver: nothing is allocated."""
    results = [{"request": f"r{n}", "driver": d, "pool": "n1", "device": f"gpu-{n}"} for n, d in enumerate(drivers)]
    status: dict[str, Any] = {"reservedFor": [{"resource": "pods", "name": "p", "uid": uid}]} if uid else {}
    status |= {"allocation": {"devices": {"results": results}}} if drivers else {}
    w.server.create(
        f"/apis/resource.k8s.io/{version}/namespaces/ns/resourceclaims", {"metadata": {"name": name}, "status": status}
    )


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
@pytest.mark.parametrize(
    ("spec", "status"),
    [
        pytest.param({"name": "gpu", "resourceClaimName": "c"}, {}, id="by name"),
        pytest.param(
            {"name": "gpu", "resourceClaimTemplateName": "t"},
            {"name": "gpu", "resourceClaimName": "c"},
            id="by template",
        ),
    ],
)
async def test_a_pod_to_which_a_gpu_driver_gave_a_device_by_a_claim_is_never_evicted(
    spec: dict[str, str], status: dict[str, str], version: str
) -> None:
    async with world("evict") as w:
        pod = w.pod("spared", spec={"resourceClaims": [{"name": "net", "resourceClaimName": "n"}, spec]})
        w.server.merge(f"{paths.pod('ns', 'spared')}/status", {"status": {"resourceClaimStatuses": [status]}})
        claim(w, "c", pod.metadata.uid, "net.example.com", GPU, version=version)
        for _ in range(3):
            await w.seen_twice(miner(pod))
            w.time += 300
        assert w.audit.evictions == 0
        assert deletions(w) == []


@pytest.mark.parametrize("evictions", [pytest.param(0, id="a GPU"), pytest.param(1, id="a device of another kind")])
async def test_a_claim_that_serves_extended_resources_counts_although_only_the_status_names_it(evictions: int) -> None:
    """DRAExtendedResource: kube-scheduler makes the claim for a resource in the container's limits."""
    async with world("evict") as w:
        many = [{"name": f"c{n}", "resourceClaimName": f"gone-{n}"} for n in range(40)]
        pod = w.pod("dra", spec=limits("example.com/gpu") | {"resourceClaims": many})
        mappings = [{"containerName": "main", "requestName": "r0", "resourceName": "example.com/gpu"}]
        extended = {"resourceClaimName": "dra-x7", "requestMappings": mappings}
        w.server.merge(f"{paths.pod('ns', 'dra')}/status", {"status": {"extendedResourceClaimStatus": extended}})
        claim(w, "dra-x7", pod.metadata.uid, "net.example.com" if evictions else GPU)
        for _ in range(3):
            await w.seen_twice(miner(pod))
            w.time += 300
        assert w.audit.evictions == evictions


@pytest.mark.parametrize(
    ("drivers", "reserved"),
    [
        pytest.param((), True, id="that asks for nothing"),
        pytest.param(("net.example.com",), True, id="for a device of another kind"),
        pytest.param((GPU,), False, id="that is reserved for another pod"),
    ],
)
async def test_a_claim_that_cannot_explain_the_process_spares_nobody(drivers: tuple[str, ...], reserved: bool) -> None:
    async with world("evict") as w:
        pod = w.pod("miner", spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]})
        claim(w, "c", pod.metadata.uid if reserved else "other", *drivers)
        await w.seen_twice(miner(pod))
        assert w.audit.evictions == 1


async def test_claims_without_an_object_in_any_number_spare_nobody() -> None:
    async with world("evict") as w:
        many = [{"name": f"c{n}", "resourceClaimName": f"gone-{n}"} for n in range(2000)]
        await w.seen_twice(miner(w.pod("miner", spec={"resourceClaims": many})))
        assert w.audit.evictions == 1
        assert sum("resourceclaims" in r.path for r in w.server.requests) < 250


@pytest.mark.parametrize("given", [False, True])
async def test_a_pod_with_many_claims_is_judged_on_a_slow_server_too(
    monkeypatch: pytest.MonkeyPatch, given: bool
) -> None:
    """What was read of them is known the next time."""
    monkeypatch.setattr(spared, "_CALL", 0.5)
    async with world("evict") as w:
        many = [{"name": f"c{n}", "resourceClaimName": f"c{n}"} for n in range(32)]
        pod = w.pod("miner", spec={"resourceClaims": many})
        for n in range(32):
            claim(w, f"c{n}", pod.metadata.uid, GPU if given and n == 31 else "net.example.com")
        w.server.inject(Fault(method="GET", path="resourceclaims", times=1000, delay=0.1))
        read: set[str] = set()
        for _ in range(40):
            await w.seen_twice(miner(pod))
            read = {r.path for r in w.server.requests if "resourceclaims" in r.path}
            if len(read) == 32 and (given or w.audit.evictions):
                break
            w.time += 10
        assert len(read) == 32
        assert w.audit.evictions == (0 if given else 1)


async def test_a_claim_that_cannot_be_read_now_keeps_the_pod_until_it_can() -> None:
    async with world("evict") as w:
        pod = w.pod("miner", spec={"resourceClaims": [{"name": "gpu", "resourceClaimName": "c"}]})
        claim(w, "c", pod.metadata.uid)
        path = paths.resource_claim("ns", "c", "v1")
        w.server.inject(Fault(method="GET", path=path, times=2, status=403))  # one for the event
        for evicted in (0, 1):
            await w.seen_twice(miner(pod))
            assert w.audit.evictions == evicted
            w.time += 10


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-mem", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"])
async def test_a_pod_that_another_device_plugin_gave_the_card_before_is_warned_only(resource: str) -> None:
    """Also where the resource is Fractile's now."""
    async with world("evict") as w:
        pod = w.pod("older", spec=limits(resource))
        recorded(w, pod.metadata.uid, resource, NVIDIA)
        for _ in range(3):
            await w.seen_twice(miner(pod))
            w.time += 300
        assert w.audit.evictions == 0
        assert deletions(w) == []
        assert [x.pod for x in w.audit.outside] == ["older"]
        ((reason, _, message),) = w.told()
        assert reason == REASON
        assert message.endswith(
            f"; the pod stays: it was given {resource} by another device plugin, before Fractile served it on this node"
        )


@pytest.mark.parametrize(
    ("resource", "answer", "mine"),
    [
        pytest.param("aliyun.com/gpu-mem", OURS, True, id="Fractile gave it"),
        pytest.param("aliyun.com/gpu-mem", NVIDIA, False, id="it was given to another pod"),
        pytest.param(
            "tencent.com/vcuda-memory", dp.ContainerAllocateResponse(), True, id="a resource that counts only"
        ),
        pytest.param("fractile.dev/device", dp.ContainerAllocateResponse(), True, id="a non-GPU device"),
        pytest.param("nvidia.com/hostdev", NVIDIA, True, id="a network card"),
        pytest.param("example.com/fuse", NVIDIA, True, id="a device of somebody else"),
    ],
)
async def test_no_pod_looks_as_if_another_device_plugin_had_given_it_the_card(
    resource: str, answer: dp.ContainerAllocateResponse, mine: bool
) -> None:
    async with world("evict") as w:
        times = {"creationTimestamp": "2020-01-01T00:00:00Z"}
        pod = w.pod("miner", metadata=times, spec=limits(resource))
        recorded(w, pod.metadata.uid if mine else "other", resource, answer)
        await w.seen_twice(miner(pod))
        assert w.audit.evictions == 1


async def test_pods_of_ours_and_of_labelled_namespaces_are_spared_until_the_label_goes() -> None:
    async with world("evict") as w:
        w.server.merge(paths.namespace("ns"), {"metadata": {"labels": {ALLOWED: "allow"}}})
        findings = [miner(w.pod("dcgm")), miner(w.pod("agent", namespace=SYSTEM), 101)]
        for _ in range(3):
            await w.seen_twice(*findings)
            w.time += 60
        assert w.audit.evictions == 0
        w.server.merge(paths.namespace("ns"), {"metadata": {"labels": {ALLOWED: None}}})
        await w.seen_twice(*findings)
        assert w.audit.evictions == 1
        assert [o["metadata"]["name"] for o in w.server.all(paths.pods())] == ["agent"]


async def test_while_nobody_says_whether_a_pod_is_spared_it_stays() -> None:
    async with world("evict") as w:
        found = miner(w.pod("miner"))
        w.server.inject(Fault(method="GET", path=paths.pod("ns", "miner"), times=3, status=403))  # one for the event
        for evicted in (0, 0, 1):
            await w.seen_twice(found)
            assert w.audit.evictions == evicted
            w.time += 10
