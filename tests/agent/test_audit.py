"""What is done about use outside the ledger."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from fractile.agent import spared
from fractile.agent.api import deviceplugin_pb2 as dp
from fractile.agent.audit import EVICTED, REASON, Audit
from fractile.agent.books import Kubelet
from fractile.agent.cgroup import Place
from fractile.agent.ending import Ender
from fractile.agent.lasting import Lasting
from fractile.agent.outside import Finding
from fractile.agent.owners import Owner, Owners
from fractile.agent.pods import NodePods
from fractile.agent.procfs import Process
from fractile.agent.slices import Granted
from fractile.agent.spared import SYSTEM, Spared
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.kube.reflector import Gone
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, NodeName, PodUID
from fractile.policy.outside import Policy
from fractile.region import directory
from fractile.wire import kubelet_checkpoint
from fractile.wire.kubelet_checkpoint import Recorded
from fractile.wire.node_usage import Kind
from fractile.wire.objects import ALLOWED, Pod
from fractile.wire.placement import ANNOTATION
from tests.agent.test_outside import granted
from tests.fakes.apiserver import FakeApiServer, Fault

CARD = CardUUID("GPU-a")
ID = "ab" * 32
MIB = 2**20
SERVED = frozenset({"aliyun.com/gpu-mem"})


@dataclass
class World:
    server: FakeApiServer
    audit: Audit
    events: EventRecorder
    pods: NodePods
    checkpoint: Path
    time: float = 100.0

    def pod(self, name: str, *, container_id: str = "", namespace: str = "ns", **more: dict[str, Any]) -> Pod:
        """``more``: parts of its metadata and its spec."""
        made = self.server.create(
            paths.pods(namespace),
            {"metadata": {"name": name} | more.get("metadata", {}), "spec": {"nodeName": "n1"} | more.get("spec", {})},
        )
        if container_id:
            statuses = [{"name": "main", "containerID": f"containerd://{container_id}"}]
            self.server.merge(f"{paths.pod('ns', name)}/status", {"status": {"containerStatuses": statuses}})
        pod = msgspec.convert(made, Pod, strict=False)
        self.pods.changed(pod)
        return pod

    def told(self) -> list[tuple[str, str, str]]:
        """Reason, pod and message of the events."""
        found: list[dict[str, Any]] = self.server.all("/api/v1/events")
        return [(e["reason"], e["involvedObject"]["name"], e["message"]) for e in found]

    async def act(self) -> None:
        await self.audit.act()
        await self.events.flush(5)

    async def seen_twice(self, *findings: Finding) -> None:
        self.audit.observe(findings)
        self.audit.observe(findings)
        await self.act()


@asynccontextmanager
async def folder() -> AsyncGenerator[Path]:
    with TemporaryDirectory() as made:
        yield Path(made)


@asynccontextmanager
async def world(
    policy: Policy = "warn", grace: float = 0.0, around: tuple[str, ...] = (), proc: Path = Path("/proc")
) -> AsyncGenerator[World]:
    async with FakeApiServer() as server, KubeClient(server.credentials()) as client, folder() as made_for:
        for name in ("ns", SYSTEM):
            server.create(paths.namespaces(), {"metadata": {"name": name}})
        there = {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "4", "cpu": "8"}}}
        server.create(paths.nodes(), there)
        pods = NodePods(client, node=NodeName("n1"), unit=MemoryUnit.GiB)
        events = EventRecorder(client, "test")
        running = asyncio.create_task(events.run())

        def clock() -> float:
            return made.time

        owners = Owners(client, pods, around=[PodUID(uid) for uid in around], clock=clock)
        checkpoint = made_for / kubelet_checkpoint.FILE_NAME
        judge = Spared(client, SERVED, Kubelet(made_for / "none.sock", checkpoint).record)
        ender = Ender(proc=proc)
        audit = Audit(client, events, owners, judge, ender, policy=policy, grace=grace, clock=clock, now=lambda: 5.0)
        made = World(server, audit, events, pods, checkpoint)
        try:
            yield made
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


def stranger(pid: int = 100, *, uid: str = "", container_id: str = "", start: int = 1) -> Finding:
    places = (Place(PodUID(uid), container_id),) if uid or container_id else ()
    process = Process(pid, start, "miner", pid, 1, places, "")
    return Finding("no-slice" if places else "not-a-pod", CARD, process, None, 300 * MIB)


def unrecorded(uid: str, token: str = "t1") -> Finding:
    """A process that has a directory of ours in its view, in a pod of which this node knows no page."""
    return Finding("no-slice", CARD, Process(100, 1, "job", 100, 1, (Place(PodUID(uid), ID),), token), None, 300 * MIB)


def placement(node: str, card: str) -> str:
    """The annotation by which a container holds the card."""
    main = {"role": "app", "slices": [{"card": card, "memoryMiB": 1000}]}
    return json.dumps({"version": 1, "node": node, "containers": {"main": main}})


def over(pod: Pod) -> Finding:
    base = granted()
    limits = msgspec.structs.replace(
        base.limits, pod_uid=PodUID(pod.metadata.uid), namespace="ns", pod=pod.metadata.name
    )
    own: Granted = msgspec.structs.replace(base, limits=limits)
    return Finding("over-ledger", CARD, None, own, 900 * MIB, 300 * MIB)


async def test_what_one_look_shows_is_only_doubtful() -> None:
    async with world() as w:
        w.audit.observe([stranger()])
        assert w.audit.doubtful
        assert w.audit.outside == ()
        w.audit.observe([])
        assert not w.audit.doubtful
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
        inner = Place(PodUID(innocent.metadata.uid)) if by == "uid" else Place(PodUID("made-up"), ID)
        process = Process(100, 1, "miner", 100, 1, (Place(PodUID("gone"), "cd" * 32), inner), "")
        for _ in range(3):
            await w.seen_twice(Finding("no-slice", CARD, process, None, 300 * MIB))
            w.time += 60
        assert (w.audit.evictions, w.told()) == (0, [])


async def test_a_pod_of_a_cluster_within_a_pod_is_found_within_it() -> None:
    async with world("evict", around=("outer",)) as w:
        inner = w.pod("miner")
        places = (Place(PodUID("outer"), "cd" * 32), Place(PodUID(inner.metadata.uid)))
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


async def test_a_process_of_the_host_gets_no_event_and_is_never_evicted() -> None:
    async with world("evict") as w:
        await w.seen_twice(stranger())
        assert w.server.writes() == []


async def test_by_default_nobody_is_evicted() -> None:
    async with world() as w:
        pod = w.pod("greedy")
        await w.seen_twice(over(pod))
        assert w.server.get(paths.pod("ns", "greedy"))["metadata"]["uid"] == pod.metadata.uid


def deletions(w: World) -> list[str]:
    return [call for call in w.server.writes() if call.startswith("DELETE ")]


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


def miner(pod: Pod, pid: int = 100) -> Finding:
    return stranger(pid, uid=pod.metadata.uid)


def limits(resource: str) -> dict[str, Any]:
    return {"containers": [{"name": "main", "resources": {"limits": {resource: "1"}}}]}


async def test_a_pod_that_holds_nothing_of_the_card_is_evicted_after_its_grace_time_and_told_before() -> None:
    async with world("evict", grace=60) as w:
        found = miner(w.pod("miner"))
        await w.seen_twice(found)
        ((reason, _, message),) = w.told()
        assert reason == REASON
        assert message.endswith("; the pod is evicted if that lasts for 60 s")
        w.time += 59
        await w.seen_twice(found)
        assert w.audit.evictions == 0
        w.time += 1
        await w.seen_twice(found)
        assert w.audit.evictions == 1
        assert w.server.all(paths.pods()) == []


async def test_a_finding_that_ends_within_the_grace_time_begins_another_one_after_ten_minutes() -> None:
    async with world("evict", grace=60) as w:
        found = miner(w.pod("short"))
        await w.seen_twice(found)
        w.time += 59
        await w.seen_twice()
        w.time += 601
        await w.seen_twice()
        await w.seen_twice(found)
        w.time += 59
        await w.seen_twice(found)
        assert w.audit.evictions == 0
        w.time += 1
        await w.seen_twice(found)
        assert w.audit.evictions == 1


async def test_pods_of_a_namespace_that_take_turns_on_a_card_have_one_grace_time_together() -> None:
    """A Job whose pods each use it for less than that would do so for ever."""
    async with world("evict", grace=60) as w:
        for n in range(3):
            found = miner(w.pod(f"turn-{n}"), 100 + n)
            await w.seen_twice(found)
            assert w.audit.evictions == 0, n
            w.time += 20
            await w.seen_twice()
        last = miner(w.pod("last"), 200)
        await w.seen_twice(last)
        assert w.audit.evictions == 1
        (message,) = [message for _, pod, message in w.told() if pod == "turn-2"]
        assert message.endswith("; the pod is evicted if that lasts for 20 s")


async def test_pods_that_use_a_card_at_the_same_time_use_up_their_grace_time_once() -> None:
    async with world("evict", grace=60) as w:
        first, second, third = (miner(w.pod(f"p{n}"), 100 + n) for n in range(3))
        await w.seen_twice(first)
        w.time += 20
        await w.seen_twice(first, second)
        w.time += 20
        w.audit.observe([first, second, third])
        w.time += 1
        w.audit.observe([third])  # the first pod was there for 41 s, and this one for the last of them
        await w.act()
        w.time += 18
        await w.seen_twice(third)
        assert w.audit.evictions == 0
        w.time += 1
        await w.seen_twice(third)
        assert w.audit.evictions == 1


@pytest.mark.parametrize(
    "other", [pytest.param({"namespace": "kube-system"}, id="namespace"), pytest.param({"card": "GPU-b"}, id="card")]
)
def test_nobody_s_grace_time_is_used_up_in_another_namespace_or_on_another_card(other: dict[str, str]) -> None:
    lasting = Lasting()
    found = stranger(uid="v")
    lasting.ended(
        Owner("u", other.get("namespace", "ns"), "before", "main"),
        msgspec.structs.replace(found, card=CardUUID(other.get("card", CARD))),
        0.0,
        50.0,
    )
    assert lasting.seconds(Owner("v", "ns", "mine", "main"), found, 60.0) == 0


async def test_a_pod_that_may_use_the_card_uses_up_nobody_s_grace_time() -> None:
    async with world("evict", grace=60) as w:
        await w.seen_twice(miner(w.pod("entitled", spec=limits("nvidia.com/gpu"))))
        w.time += 300
        await w.seen_twice()
        found = miner(w.pod("other"), 101)
        await w.seen_twice(found)
        w.time += 59
        await w.seen_twice(found)
        assert w.audit.evictions == 0


async def test_what_pods_do_to_their_own_library_or_quota_uses_up_the_time_of_each_alone() -> None:
    async with world("evict-all", grace=60) as w:
        for n in range(4):
            await w.seen_twice(over(w.pod(f"p{n}")))
            w.time += 20
            await w.seen_twice()
        assert w.audit.evictions == 0


async def test_by_evict_a_pod_that_holds_a_part_of_the_card_is_warned_only() -> None:
    async with world("evict") as w:
        await w.seen_twice(over(w.pod("greedy")))
        w.time += 300
        await w.act()
        assert w.audit.evictions == 0
        ((_, _, message),) = w.told()
        assert message.endswith("; the pod stays: --outside-ledger is evict (only evict-all would evict it)")


LABELLED = {"metadata": {"labels": {ALLOWED: "allow"}}}
IS_LABELLED = f"would leave it too: it is of a namespace with the label {ALLOWED}=allow"


@pytest.mark.parametrize(
    ("kind", "label", "hint"),
    [
        ("no-slice", False, "evict would evict it after 60 s"),
        ("no-slice", True, f"evict {IS_LABELLED}"),
        ("over-ledger", False, "only evict-all would evict it"),
        ("over-ledger", True, f"evict-all {IS_LABELLED}"),
    ],
)
async def test_where_the_policy_only_warns_event_and_page_say_what_a_stricter_one_would_do(
    kind: str, label: bool, hint: str
) -> None:
    async with world("warn", grace=60) as w:
        if label:
            w.server.merge(paths.namespace("ns"), LABELLED)
        pod = w.pod("greedy")
        await w.seen_twice(over(pod) if kind == "over-ledger" else miner(pod))
        ((_, _, message),) = w.told()
        assert message.endswith(f"; the pod stays: --outside-ledger is warn ({hint})")
        assert [o.spared for o in w.audit.outside] == [
            f"is not evicted for that while --outside-ledger is warn ({hint})"
        ]
        assert deletions(w) == []


async def test_a_label_that_is_set_later_is_seen_within_a_minute_and_asked_about_once_for_all_processes() -> None:
    async with world("warn", grace=60) as w:
        pod = w.pod("greedy")
        found = [miner(pod, pid) for pid in (100, 101, 102)]
        await w.seen_twice(*found)
        w.server.merge(paths.namespace("ns"), LABELLED)
        before = len(w.server.requests)
        w.time += 61
        await w.seen_twice(*found)
        assert len([r for r in w.server.requests[before:] if r.path == paths.namespace("ns")]) == 1
        assert [IS_LABELLED in o.spared for o in w.audit.outside] == [True] * 3


async def test_what_a_stricter_policy_would_do_is_left_out_where_that_cannot_be_read() -> None:
    async with world("warn") as w:
        w.server.inject(Fault(method="GET", path=paths.namespace("ns"), status=500, times=9))
        await w.seen_twice(miner(w.pod("greedy")))
        ((_, _, message),) = w.told()
        assert message.endswith("; the pod stays: --outside-ledger is warn")


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


async def test_a_pod_to_which_the_ledger_gave_the_card_is_not_evicted_where_the_node_has_lost_its_record() -> None:
    """Its page of limits cannot be read, or the agent's folder is gone: then its use looks like a stranger's."""
    async with world("evict") as w:
        pods = {"mine": ("n1", CARD), "other": ("n1", "GPU-b"), "moved": ("n2", CARD)}
        found = [
            miner(w.pod(name, metadata={"annotations": {ANNOTATION: placement(*held)}}), 100 + number)
            for number, (name, held) in enumerate(pods.items())
        ]
        for _ in range(4):
            await w.seen_twice(*found)
            w.time += 60
        assert [o["metadata"]["name"] for o in w.server.all(paths.pods())] == ["mine"]


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


NVIDIA = dp.ContainerAllocateResponse(envs={"NVIDIA_VISIBLE_DEVICES": "GPU-a"})
OURS = dp.ContainerAllocateResponse(mounts=[dp.Mount(container_path=directory.MOUNT, host_path="/state/slices/t")])


def recorded(w: World, uid: str, resource: str, answer: dp.ContainerAllocateResponse) -> None:
    """Kubelet has written down that a container holds an id, and what the plugin answered."""
    entry = Recorded(PodUID(uid), ContainerName("main"), resource, frozenset({"GPU-a"}), answer.SerializeToString())
    w.checkpoint.write_bytes(kubelet_checkpoint.encode([entry], {}))


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
        pytest.param("fractile.dev/device", dp.ContainerAllocateResponse(), True, id="a device that is no GPU"),
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


def blind(pod: Pod, *, known: bool = True) -> Finding:
    """``known``: the process sees the directory of its container's slice."""
    places = (Place(PodUID(pod.metadata.uid), ID),)
    if known:
        process = Process(100, 1, "probe", 7, 1, places, "t1")
        return Finding("no-library", CARD, process, over(pod).granted, 300 * MIB, unseen="/etc/ld.so.preload")
    process = Process(100, 1, "probe", 7, 1, places, "")
    names = frozenset({"main"})
    return Finding("not-in-ledger", CARD, process, None, 300 * MIB, unseen="/etc/ld.so.preload", containers=names)


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


async def test_a_pod_whose_process_starts_again_and_again_is_evicted_after_the_same_grace_time() -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("miner")
        for turn in range(3):  # each lives for 30 s
            for _ in range(3):
                await w.seen_twice(miner(pod, 100 + turn))
                w.time += 10
            await w.seen_twice()
        assert w.audit.evictions == 1


async def test_processes_that_run_at_the_same_time_use_up_the_grace_time_once_and_pauses_do_not() -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("short")
        for turn in range(5):  # 10 s each, all together, with pauses of 100 s
            several = [miner(pod, 100 + 10 * turn + n) for n in range(8)]
            await w.seen_twice(*several)
            w.time += 10
            await w.seen_twice(*several)
            await w.seen_twice()
            w.time += 100
        assert w.audit.evictions == 0
        await w.seen_twice(miner(pod, 99))
        w.time += 10
        await w.seen_twice(miner(pod, 99))
        assert w.audit.evictions == 1


async def test_processes_that_relieve_each_other_within_a_second_are_one_use_of_the_card() -> None:
    """No look shows one that the look before has shown."""
    async with world("evict", grace=60.0) as w:
        pod = w.pod("miner", container_id=ID)
        for second in range(60):
            w.audit.observe([stranger(100 + second, uid=pod.metadata.uid, container_id=ID)])
            await w.act()
            assert w.audit.evictions == 0, second
            assert [(o.pod, o.container) for o in w.audit.outside] == [("miner", "main")] * (second > 0)
            w.time += 1
        assert w.audit.found == {"no-slice": 1}
        ((_, _, message),) = w.told()
        assert message.endswith("; the pod is evicted if that lasts for 60 s")
        w.audit.observe([stranger(200, uid=pod.metadata.uid, container_id=ID)])
        await w.act()
        assert w.audit.evictions == 1


async def test_processes_that_relieve_each_other_with_pauses_use_up_the_time_in_which_they_are_there() -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("miner")
        for turn in range(7):  # of 10 s each
            for second in range(10):
                w.audit.observe([stranger(100 + 20 * turn + second, uid=pod.metadata.uid)])
                await w.act()
                assert w.audit.evictions == (turn == 6 and second > 0), (turn, second)
                w.time += 1
            w.audit.observe([])
            w.time += 30


@pytest.mark.parametrize(
    ("kind", "found"), [("not-in-ledger", {}), ("no-library", {"no-library": 1}), ("no-slice", {"no-slice": 1})]
)
async def test_what_one_look_alone_does_not_show_for_certain_each_process_confirms_for_itself(
    kind: Kind, found: dict[str, int]
) -> None:
    """Of a container with many short programs the region is read while one has begun or just ended."""
    async with world("evict-all") as w:
        pod = w.pod("busy")
        for number in range(10):
            one = stranger(100 + number, uid=pod.metadata.uid)
            w.audit.observe([msgspec.structs.replace(one, kind=kind, granted=over(pod).granted)])
        assert w.audit.found == found


@pytest.mark.parametrize("other", ["pod", "card"])
async def test_processes_of_two_pods_or_on_two_cards_confirm_nothing_of_each_other(other: str) -> None:
    async with world("evict") as w:
        uids = [w.pod(name).metadata.uid for name in ("a", "b")]
        for number in range(10):
            found = stranger(100 + number, uid=uids[number % 2 if other == "pod" else 0])
            card = CardUUID(f"GPU-{number % 2}") if other == "card" else CARD
            w.audit.observe([msgspec.structs.replace(found, card=card)])
        assert w.audit.found == {}


async def test_who_asks_for_what_this_node_serves_and_uses_another_card_is_evicted() -> None:
    async with world("evict") as w:
        await w.seen_twice(miner(w.pod("other", spec=limits("aliyun.com/gpu-mem"))))
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


# ---- the node's record of a container was removed ----


@pytest.mark.parametrize(
    ("node", "card", "token", "told"),
    [
        pytest.param("n1", CARD, "t1", [], id="of a pod that holds the card"),
        pytest.param("n1", CARD, "", [REASON], id="of a container that was given no directory"),
        pytest.param("n1", "GPU-b", "t1", [REASON], id="of a pod that holds another card"),
        pytest.param("n2", CARD, "t1", [REASON], id="of a pod that is placed elsewhere"),
    ],
)
async def test_a_process_whose_record_was_removed_is_no_finding(
    node: str, card: str, token: str, told: list[str]
) -> None:
    async with world("evict") as w:
        pod = w.pod("p", container_id=ID, metadata={"annotations": {ANNOTATION: placement(node, card)}})
        await w.seen_twice(unrecorded(pod.metadata.uid, token))
        assert [reason for reason, _, _ in w.told() if reason == REASON] == told
        assert len(w.audit.outside) == len(told)


async def test_a_cgroup_that_a_container_names_after_another_pod_does_not_stand_for_that_pods_placement() -> None:
    async with world("evict") as w:
        honest = w.pod("p", metadata={"annotations": {ANNOTATION: placement("n1", CARD)}})
        sly = w.pod("q", container_id=ID)
        places = (Place(PodUID(sly.metadata.uid), ID), Place(PodUID(honest.metadata.uid), "cd" * 32))
        finding = Finding("no-slice", CARD, Process(100, 1, "job", 100, 1, places, "t1"), None, 300 * MIB)
        await w.seen_twice(finding)
        assert [pod for reason, pod, _ in w.told() if reason == REASON] == ["q"]


async def test_while_the_pods_of_the_node_are_not_known_yet_nobody_is_told_for_a_record_that_is_not_there() -> None:
    async with world("evict") as w:
        pod = w.pod("p", container_id=ID)
        watch = w.pods.follow()
        await w.seen_twice(unrecorded(pod.metadata.uid))
        assert w.told() == []
        watch.synced.set()
        await w.seen_twice(unrecorded(pod.metadata.uid))
        assert REASON in [reason for reason, _, _ in w.told()]


async def test_where_kubelet_makes_no_cgroups_for_pods_the_container_says_whose_record_was_removed() -> None:
    async with world("evict") as w:
        w.pod("p", container_id=ID, metadata={"annotations": {ANNOTATION: placement("n1", CARD)}})
        await w.seen_twice(unrecorded(""))
        await w.seen_twice(unrecorded(""))
        assert w.told() == []
        assert w.audit.outside == ()
