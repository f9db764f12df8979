"""What is done about use outside the ledger."""

import asyncio
import json

import pytest

from fractile.agent.audit.audit import EVICTED, REASON
from fractile.agent.audit.unaccounted import Finding
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process
from fractile.kube import paths
from fractile.kube.reflector import Gone
from fractile.model.units import PodUID
from fractile.policy.outside import Policy
from fractile.wire.fractile.placement import ANNOTATION
from tests.agent.audit.audit_world import (
    CARD,
    ID,
    MIB,
    NVIDIA,
    OURS,
    blind,
    deletions,
    limits,
    miner,
    over,
    placement,
    recorded,
    stranger,
    world,
)
from tests.fakes.apiserver import Fault


async def test_what_only_one_poll_shows_is_unconfirmed() -> None:
    async with world() as w:
        w.audit.observe([stranger()])
        assert w.audit.unconfirmed
        assert w.audit.outside == ()
        w.audit.observe([])
        assert not w.audit.unconfirmed
        assert w.audit.found == {}


async def test_what_two_looks_show_is_found_once_and_stands_until_it_is_gone() -> None:
    async with world() as w:
        for _ in range(4):
            w.audit.observe([stranger()])
        (outside,) = w.audit.outside
        assert (outside.kind, outside.pid, outside.bytes, outside.since) == ("not-a-pod", 100, 300 * MIB, 5.0)
        assert w.audit.found == {"not-a-pod": 1}
        w.audit.observe([])
        assert w.audit.outside == ()


async def test_a_pid_that_is_used_again_is_another_finding() -> None:
    async with world() as w:
        w.audit.observe([stranger(start=1)])
        w.audit.observe([stranger(start=2)])
        assert w.audit.outside == ()


async def test_the_pod_gets_one_event_with_the_numbers() -> None:
    async with world() as w:
        pod = w.pod("greedy")
        for _ in range(3):
            await w.seen_twice(over(pod))
            w.time += 60
        ((reason, name, message),) = w.told()
        assert (reason, name) == (REASON, "greedy")
        assert "900 MiB" in message
        assert "300 MiB" in message
        assert [x.pod for x in w.audit.outside] == ["greedy"]


@pytest.mark.parametrize("by", ["uid", "container id"])
async def test_a_pod_without_a_slice_is_found_by_its_cgroup(by: str) -> None:
    async with world() as w:
        pod = w.pod("miner", container_id=ID)
        await w.seen_twice(
            stranger(uid=pod.metadata.uid) if by == "uid" else stranger(container_id=ID),
        )
        assert [(reason, name) for reason, name, _ in w.told()] == [(REASON, "miner")]
        assert w.audit.outside[0].container == ("main" if by == "container id" else "")


@pytest.mark.parametrize("by", ["uid", "container id"])
async def test_cgroups_that_a_container_names_after_another_pod_do_that_pod_no_harm(by: str) -> None:
    """Its own pod was deleted by force: nobody knows it any more, and its container runs on."""
    async with world("evict") as w:
        innocent = w.pod("innocent", container_id=ID)
        inner = CgroupPlace(PodUID(innocent.metadata.uid)) if by == "uid" else CgroupPlace(PodUID("made-up"), ID)
        process = Process(100, 1, "miner", 100, 1, (CgroupPlace(PodUID("gone"), "cd" * 32), inner), "")
        for _ in range(3):
            await w.seen_twice(Finding("no-slice", CARD, process, None, 300 * MIB))
            w.time += 60
        assert (w.audit.evictions, w.told()) == (0, [])


async def test_a_pod_of_a_cluster_within_a_pod_is_found_within_it() -> None:
    async with world("evict", around=("outer",)) as w:
        inner = w.pod("miner")
        places = (CgroupPlace(PodUID("outer"), "cd" * 32), CgroupPlace(PodUID(inner.metadata.uid)))
        await w.seen_twice(Finding("no-slice", CARD, Process(100, 1, "miner", 100, 1, places, ""), None, 300 * MIB))
        assert w.audit.evictions == 1


async def test_an_owner_that_the_api_server_does_not_know_yet_is_asked_for_again() -> None:
    async with world() as w:
        await w.seen_twice(stranger(container_id=ID))
        assert w.told() == []
        w.pod("late", container_id=ID)
        await w.act()
        assert w.told() == []  # not at once: the API server is spared
        w.time += 10
        await w.act()
        assert [name for _, name, _ in w.told()] == ["late"]


async def test_by_default_nobody_is_evicted() -> None:
    async with world() as w:
        pod = w.pod("greedy")
        await w.seen_twice(over(pod))
        assert w.server.get(paths.pod("ns", "greedy"))["metadata"]["uid"] == pod.metadata.uid


@pytest.mark.parametrize(
    ("own", "given"),
    [
        pytest.param({}, 30, id="not said"),
        pytest.param({"terminationGracePeriodSeconds": 3600}, 30, id="more"),
        pytest.param({"terminationGracePeriodSeconds": 30}, 30, id="as much"),
        pytest.param({"terminationGracePeriodSeconds": 29}, 29, id="less"),
        pytest.param({"terminationGracePeriodSeconds": 1}, 1, id="one second"),
        pytest.param({"terminationGracePeriodSeconds": 0}, 1, id="none, by which the pod would be gone before it ends"),
    ],
)
async def test_the_owner_of_a_pod_may_shorten_its_end_and_not_lengthen_it(own: dict[str, int], given: int) -> None:
    """Neither by a disruption budget, which only the API's eviction respects, nor by the pod's own period of grace."""
    async with world("evict-all") as w:
        pod = w.pod("greedy", spec=own)
        await w.seen_twice(over(pod))
        (request,) = [r for r in w.server.requests if r.method == "DELETE"]
        assert json.loads(request.body) == {"preconditions": {"uid": pod.metadata.uid}, "gracePeriodSeconds": given}


async def test_a_pod_whose_time_to_end_cannot_be_read_is_evicted_when_it_can() -> None:
    async with world("evict-all", grace=60) as w:
        found = over(w.pod("greedy"))
        await w.seen_twice(found)
        w.time += 60
        w.audit.observe([found])
        read = Fault(method="GET", path="/pods/greedy")  # for the spared: answered
        w.server.inject(read, Fault(method="GET", path="/pods/greedy", status=403))
        await w.act()
        assert w.audit.evictions == 0
        w.time += 5
        await w.seen_twice(found)
        assert w.audit.evictions == 1


async def test_by_policy_the_pod_is_evicted_once_with_an_event() -> None:
    async with world("evict-all") as w:
        pod = w.pod("greedy")
        w.pod("innocent")
        both = [over(pod), stranger(uid=pod.metadata.uid)]
        for _ in range(3):
            await w.seen_twice(*both)
            w.time += 60
        assert deletions(w) == ["DELETE /api/v1/namespaces/ns/pods/greedy"]
        assert [o["metadata"]["name"] for o in w.server.all(paths.pods())] == ["innocent"]
        assert sorted(reason for reason, _, _ in w.told()) == sorted([REASON, REASON, EVICTED])
        assert w.audit.evictions == 1


async def test_a_pod_of_the_same_name_is_not_evicted_in_its_place() -> None:
    async with world("evict-all") as w:
        old = w.pod("web")
        w.server.delete(paths.pod("ns", "web"))
        new = w.pod("web")
        for _ in range(3):
            await w.seen_twice(over(old))
            w.time += 60
        assert w.server.get(paths.pod("ns", "web"))["metadata"]["uid"] == new.metadata.uid
        assert len(deletions(w)) == 1
        assert w.audit.evictions == 0


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="DELETE", times=1, status=500), id="the API server fails"),
        pytest.param(Fault(method="DELETE", times=1, drop="before"), id="the connection breaks"),
        pytest.param(Fault(method="DELETE", times=1, status=403), id="the right is not given yet"),
    ],
)
async def test_an_eviction_that_fails_is_tried_again(fault: Fault) -> None:
    async with world("evict-all") as w:
        pod = w.pod("greedy")
        w.server.inject(fault)
        for _ in range(3):
            await w.seen_twice(over(pod))
            w.time += 10
        assert w.server.all(paths.pods()) == []
        assert w.audit.evictions == 1


async def test_the_loop_acts_soon_after_a_finding() -> None:
    async with world() as w:
        pod = w.pod("greedy")
        loop = asyncio.create_task(w.audit.run())
        try:
            await asyncio.sleep(0.05)
            w.audit.observe([over(pod)])
            w.audit.observe([over(pod)])
            async with asyncio.timeout(2):
                while not w.told():  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        finally:
            loop.cancel()
            await asyncio.gather(loop, return_exceptions=True)


async def test_by_evict_a_pod_that_holds_a_part_of_the_card_is_warned_only() -> None:
    async with world("evict") as w:
        await w.seen_twice(over(w.pod("greedy")))
        w.time += 300
        await w.act()
        assert w.audit.evictions == 0
        ((_, _, message),) = w.told()
        assert message.endswith("; the pod stays: --outside-ledger is evict (only evict-all would evict it)")


async def test_a_process_of_the_host_is_nobodys_to_evict() -> None:
    async with world("warn") as w:
        await w.seen_twice(stranger())
        assert [o.spared for o in w.audit.outside] == [""]


async def test_no_more_than_one_pod_in_a_minute_is_evicted() -> None:
    async with world("evict") as w:
        findings = [miner(w.pod(f"m{n}"), 100 + n) for n in range(3)]
        for evicted in (1, 1, 2, 2, 3):
            await w.seen_twice(*findings)
            assert w.audit.evictions == evicted
            w.time += 30


LIBRARY = dp.ContainerAllocateResponse(
    mounts=[*OURS.mounts, dp.Mount(container_path="/etc/ld.so.preload", host_path="/state/lib/v/ld.so.preload")]
)


GONE = "11111111-2222-3333-4444-555555555555"


@pytest.mark.parametrize("policy", ["warn", "evict"])
@pytest.mark.parametrize("known", [True, False])
async def test_a_pod_that_is_gone_while_its_processes_use_a_card_is_said_of_the_node_once(
    policy: Policy, known: bool
) -> None:
    """``known``: it was found before it was deleted by force."""
    async with world(policy, grace=60.0) as w:
        uid = w.pod("undead").metadata.uid if known else GONE
        found = [stranger(100, uid=uid), stranger(101, uid=uid)]
        await w.seen_twice(*found)
        assert [reason for reason, _, _ in w.told()] == ([REASON] if known else [])
        if known:
            w.pods.gone(Gone("ns", "undead", uid))
            w.server.delete(paths.pod("ns", "undead"))
        for _ in range(10):
            w.time += 20
            await w.seen_twice(*found)
        ((_, node, message),) = [told for told in w.told() if told[0] == "GPUHeldByDeletedPod"]
        assert node == "n1"
        uids = {
            e["involvedObject"]["uid"] for e in w.server.all("/api/v1/events") if e["reason"] == "GPUHeldByDeletedPod"
        }
        assert uids == {w.server.get(paths.node("n1"))["metadata"]["uid"]}
        for part in ("300 MiB of card GPU-a", uid, "process 100 (miner)", *(["ns/undead"] if known else [])):
            assert part in message
        assert [o.pod_uid for o in w.audit.outside] == [uid] * 2
        assert w.audit.evictions == 0


@pytest.mark.parametrize("static", [True, False])
async def test_a_pod_that_only_seems_to_be_gone_is_not_said_to_be(static: bool) -> None:
    """A static pod has another UID in the API; of a new one only the API server may know."""
    async with world() as w:
        there = {"metadata": {"name": "new"}, "spec": {"nodeName": "n1"}}
        uid = "0" * 32 if static else w.server.create(paths.pods("ns"), there)["metadata"]["uid"]
        for _ in range(5):
            await w.seen_twice(stranger(uid=uid))
            w.time += 20
        assert w.told() == []


@pytest.mark.parametrize("known", [True, False])
async def test_a_container_that_does_not_see_its_library_is_evicted_like_one_without_a_slice(known: bool) -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("escape", container_id=ID, metadata={"annotations": {ANNOTATION: placement("n1", CARD)}})
        recorded(w, pod.metadata.uid, "aliyun.com/gpu-mem", LIBRARY)
        for evictions in (0, 1):
            await w.seen_twice(blind(pod, known=known))
            assert w.audit.evictions == evictions
            assert [(o.kind, o.container) for o in w.audit.outside] == [("no-library", "main")]
            w.time += 60
        assert w.audit.found["no-library"] == 1
        told = {reason: message for reason, _, message in w.told()}
        assert "the container does not see the library that it was given" in told[REASON]
        assert "/etc/ld.so.preload" in told[EVICTED]


@pytest.mark.parametrize(
    ("name", "record", "why"),
    [
        pytest.param("other", LIBRARY, "", id="in a container without a slice beside one with"),
        pytest.param("main", OURS, "was given no library", id="by an agent without the library"),
        pytest.param("main", NVIDIA, "by another device plugin", id="by another device plugin"),
    ],
)
async def test_who_was_given_no_library_is_not_evicted_for_its_lack(
    name: str, record: dp.ContainerAllocateResponse, why: str
) -> None:
    async with world("evict") as w:
        pod = w.pod("spared", container_id=ID)
        statuses = [{"name": name, "containerID": f"containerd://{ID}"}]
        w.server.merge(f"{paths.pod('ns', 'spared')}/status", {"status": {"containerStatuses": statuses}})
        recorded(w, pod.metadata.uid, "aliyun.com/gpu-mem", record)
        for _ in range(3):
            await w.seen_twice(blind(pod, known=False))
            w.time += 300
        assert w.audit.evictions == 0
        ((_, _, message),) = w.told()
        assert why in message


async def test_by_evict_all_nobody_is_spared_for_having_been_given_no_library() -> None:
    async with world("evict-all") as w:
        await w.seen_twice(blind(w.pod("sly")))
        assert w.audit.evictions == 1


async def test_the_container_of_a_process_without_its_library_is_waited_for() -> None:
    """Kubelet says the ids of a pod's containers a little after they have started."""
    async with world("evict") as w:
        pod = w.pod("early")
        recorded(w, pod.metadata.uid, "aliyun.com/gpu-mem", LIBRARY)
        await w.seen_twice(blind(pod, known=False))
        assert w.told() == []
        statuses = [{"name": "main", "containerID": f"containerd://{ID}"}]
        w.server.merge(f"{paths.pod('ns', 'early')}/status", {"status": {"containerStatuses": statuses}})
        w.time += 10
        await w.seen_twice(blind(pod, known=False))
        assert w.audit.evictions == 1


async def test_while_kubelets_record_cannot_be_read_the_pod_stays() -> None:
    async with world("evict") as w:
        pod = w.pod("miner")
        w.checkpoint.write_bytes(b"{")
        await w.seen_twice(miner(pod))
        assert w.audit.evictions == 0
        w.checkpoint.unlink()
        w.time += 10
        await w.seen_twice(miner(pod))
        assert w.audit.evictions == 1


async def test_a_pod_with_a_part_of_the_card_that_goes_beyond_it_is_evicted_by_evict_all() -> None:
    async with world("evict-all") as w:
        await w.seen_twice(over(w.pod("greedy", metadata={"annotations": {ANNOTATION: placement("n1", CARD)}})))
        assert w.audit.evictions == 1


async def test_who_asks_for_what_this_node_serves_and_uses_another_card_is_evicted() -> None:
    async with world("evict") as w:
        await w.seen_twice(miner(w.pod("other", spec=limits("aliyun.com/gpu-mem"))))
        assert w.audit.evictions == 1


async def test_the_page_says_when_the_pod_is_evicted_at_the_earliest_and_why_one_stays() -> None:
    async with world("evict", grace=60.0) as w:
        critical = {"priorityClassName": "system-node-critical"}
        pods = [w.pod("a", container_id=ID), w.pod("b", container_id="cd" * 32, spec=critical)]
        found = [
            stranger(100 + n, uid=pod.metadata.uid, container_id=i * 32)
            for n, (pod, i) in enumerate(zip(pods, ("ab", "cd"), strict=True))
        ]
        await w.seen_twice(*found)
        w.time += 18
        a, b = w.audit.outside
        assert (a.pod, a.evicted_in_seconds, a.spared) == ("a", 42.0, "")
        assert (b.pod, b.evicted_in_seconds, b.spared) == ("b", None, "is critical for its node or its cluster")
        w.time += 43
        await w.act()
        assert [o.evicted_in_seconds for o in w.audit.outside] == [0.0, None]


async def test_of_two_pods_whose_time_is_over_the_second_has_a_minute_more() -> None:
    async with world("evict", grace=60.0) as w:
        pods = [w.pod("a", container_id=ID), w.pod("b", container_id="cd" * 32)]
        found = [
            stranger(100 + n, uid=pod.metadata.uid, container_id=i * 32)
            for n, (pod, i) in enumerate(zip(pods, ("ab", "cd"), strict=True))
        ]
        await w.seen_twice(*found)
        w.time += 61
        await w.act()
        w.time += 1
        assert [o.evicted_in_seconds for o in w.audit.outside] == [0.0, 59.0]


@pytest.mark.parametrize("policy", ["warn", "evict"])
async def test_the_page_announces_no_eviction_that_the_policy_does_not_have(policy: Policy) -> None:
    async with world(policy) as w:
        await w.seen_twice(over(w.pod("a")))
        assert [o.evicted_in_seconds for o in w.audit.outside] == [None]
