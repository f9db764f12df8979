"""Usage, metrics and audit on the real cluster: real containers, with pid namespaces and cgroups of their own."""

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Generator

import pytest

from fractile.agent.audit.audit import EVICTED, REASON
from fractile.agent.limits.library import SIMULATED_HOST
from fractile.lab.cluster import node
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.lab.machine import images
from fractile.metrics.exposition import OPENMETRICS
from fractile.wire.output import node_usage
from fractile.wire.output.node_usage import NodeUsage, Outside
from tests.e2e.node.test_limits import OUT_OF_MEMORY, books, in_books, meanwhile, renew_agent, tenant
from tests.e2e.placing.test_path import card_of, wait_event
from tests.metrics.parsers import parsed

MIB = 2**20
AT = "n1"
PROGRAM = "from fractile.main.cli import main; main()"
FOUND = 5.0  # seconds until use outside the ledger is known: 2 are promised, of a machine that is not overloaded


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, on nodes that have the library."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-usage")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def asked(cluster: LocalCluster, at: str) -> NodeUsage:
    """What the agent of the node says now."""
    return node_usage.decode(get(cluster, "/v1/usage", at=at))


def get(cluster: LocalCluster, path: str, accept: str = "*/*", *, at: str = AT) -> bytes:
    url = f"http://{cluster.state.node(at).address}:{node.METRICS_PORT}{path}"
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
        return answer.read()


def until(cluster: LocalCluster, right: Callable[[NodeUsage], bool], seconds: float = 30) -> NodeUsage:
    deadline = time.monotonic() + seconds
    while True:
        usage = asked(cluster, AT)
        if right(usage):
            return usage
        assert time.monotonic() < deadline, usage
        time.sleep(0.05)


def holding(pod: str, least: int = 300) -> Callable[[NodeUsage], bool]:
    """Whether driver and library both see that the pod holds so many MiB; 300: something beside a context."""
    return lambda u: any(
        min(s.driver_bytes or 0, s.used_bytes or 0) >= least * MIB
        for c in u.containers
        if c.pod == pod
        for s in c.cards
    )


def of_pod(usage: NodeUsage, pod: str) -> list[Outside]:
    return [o for o in usage.outside if o.pod == pod]


def test_what_a_container_uses_is_shown_by_driver_and_ledger_alike(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([tenant("honest", 1024)])
    pods = work.wait_running("honest")
    with meanwhile(work, cluster, "honest", "fill", "15"):
        usage = until(cluster, holding("honest", least=1024))  # it takes a while to fill its part
        (container,) = [c for c in usage.containers if c.pod == "honest"]
        (one,) = container.cards
        assert (container.namespace, container.container, container.processes) == (work.namespace, "main", 1)
        assert (one.uuid, one.limit_bytes) == (card_of(pods["honest"]), 1024 * MIB)
        assert one.used_bytes == one.driver_bytes == 1024 * MIB
        assert len(one.pids) == 1
        assert usage.audited
        assert usage.arbiter
        page = parsed(get(cluster, "/metrics", OPENMETRICS), openmetrics=True)
        memory = [s for s in page["container_gpu_memory_total"].samples if s.labels["pod_name"] == "honest"]
        assert {s.value for s in memory} == {1024}
        assert json.loads(get(cluster, "/usage"))["usage"][container.pod_uid]["stat"]["main"]["dev"][0]["mem"] == 1024
        top = subprocess.run(
            [sys.executable, "-c", PROGRAM, "top", AT, "--name", cluster.name, "-o", "json"],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert [n.node for n in node_usage.decode_cluster(top.stdout).nodes] == [AT]
        time.sleep(3)
        assert of_pod(until(cluster, lambda _: True), "honest") == []
    work.delete("honest")
    until(cluster, lambda u: not any(c.pod == "honest" for c in u.containers))
    assert b"honest" not in get(cluster, "/metrics")


def test_a_program_that_goes_around_the_library_is_found_and_its_pod_is_told(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    work.apply([around("sly", 1024)])
    work.wait_running("sly")
    cluster.kubectl("-n", work.namespace, "exec", "sly", "--", "umount", "/etc/ld.so.preload")
    with meanwhile(work, cluster, "sly", "fill", "10"):
        (found,) = of_pod(until(cluster, lambda u: bool(of_pod(u, "sly"))), "sly")
        assert (found.kind, found.container) == ("no-library", "main")
        assert found.pid > 1
        wait_event(work, "sly", REASON)
    until(cluster, lambda u: not of_pod(u, "sly"))


@pytest.mark.long
def test_where_it_is_wanted_the_pod_that_goes_around_the_library_is_evicted_and_no_other(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    cluster.kill(f"{AT}/agent", signal.SIGTERM)
    cluster.start(f"{AT}/agent", "--outside-ledger=evict-all", "--outside-ledger-grace=1")
    try:
        work.apply([tenant("honest", 1024), around("sly", 1024)])
        pods = work.wait_running("honest", "sly")
        cluster.kubectl("-n", work.namespace, "exec", "sly", "--", "umount", "/etc/ld.so.preload")
        sly = in_books(work, cluster, "sly")
        with meanwhile(work, cluster, "honest", "fill", "12") as honest:
            until(cluster, holding("honest"))
            with meanwhile(work, cluster, "sly", "fill", "60"):
                began = in_driver(cluster, sly)
                until(cluster, lambda u: bool(of_pod(u, "sly")))
                flagged = time.monotonic() - began
                work.wait_gone("sly", seconds=30)
        print(f"use outside the ledger was flagged {flagged:.2f} s after the driver knew of it")
        assert flagged < FOUND
        told = events(cluster, work, pods["sly"])
        assert "evicted, by --outside-ledger of the node's agent: process " in told[EVICTED]
        assert "around Fractile's library" in told[EVICTED]
        assert REASON in told
        assert honest[0]["refusal"] == OUT_OF_MEMORY  # its program ran to its own end
        after = work.wait_running("honest")["honest"]
        assert after["metadata"]["uid"] == pods["honest"]["metadata"]["uid"]
        assert after["status"]["containerStatuses"][0]["restartCount"] == 0
        assert not {REASON, EVICTED} & events(cluster, work, after).keys()
    finally:
        renew_agent(cluster, AT)


@pytest.mark.long
def test_a_pod_whose_mount_through_a_link_covers_the_library_is_evicted_by_the_default_of_a_release(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    """Neither a right nor a policy stands in its way: the link is made by an init container, in the pod's volume."""
    cluster.kill(f"{AT}/agent", signal.SIGTERM)
    cluster.start(f"{AT}/agent", "--outside-ledger=evict", "--outside-ledger-grace=1")
    try:
        work.apply([linked("escape", 1024), tenant("honest", 1024)])
        pods = work.wait_running("escape", "honest")
        with meanwhile(work, cluster, "honest", "fill", "20"), meanwhile(work, cluster, "escape", "fill", "60"):
            work.wait_gone("escape", seconds=60)
        told = events(cluster, work, pods["escape"])
        assert "the container does not see the library that it was given" in told[EVICTED]
        assert not {REASON, EVICTED} & events(cluster, work, pods["honest"]).keys()
    finally:
        renew_agent(cluster, AT)


@pytest.mark.long
def test_a_pod_whose_program_brings_a_loader_that_knows_no_library_is_evicted_by_the_default_of_a_release(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    """It takes no right at all: the container sees the library, and the program does not load it."""
    cluster.kill(f"{AT}/agent", signal.SIGTERM)
    cluster.start(f"{AT}/agent", "--outside-ledger=evict", "--outside-ledger-grace=1")
    try:
        sly = tenant("loader", 600)
        sly["spec"]["containers"][0]["command"] = ["sh", "-c", f"{LOADER}; exec /tmp/ld /bin/probe fill 600"]
        work.apply([sly, tenant("honest", 1024)])
        pods = work.wait_running("loader", "honest")
        with meanwhile(work, cluster, "honest", "fill", "20"):
            work.wait_gone("loader", seconds=60)
        told = events(cluster, work, pods["loader"])
        assert "which the container was given and the process has not loaded" in told[EVICTED]
        assert int(re.findall(r"used (\d+) MiB", told[EVICTED])[0]) > 10_000
        assert not {REASON, EVICTED} & events(cluster, work, pods["honest"]).keys()
    finally:
        renew_agent(cluster, AT)


LOADER = (
    'sed s#/etc/ld.so.preload#/etc/ld.so.xreload# "$(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* | head -1)" '
    ">/tmp/ld; chmod +x /tmp/ld"
)


def linked(name: str, memory: int) -> Manifest:
    """A tenant that mounts an empty file over the library's, by way of a link to /etc."""
    pod = tenant(name, memory)
    spec = pod["spec"]
    (main,) = spec["containers"]
    shared = {"name": "shared", "mountPath": "/a"}
    first = {"name": "first", "image": main["image"], "imagePullPolicy": "Never", "volumeMounts": [shared]}
    spec["initContainers"] = [first | {"command": ["sh", "-c", "ln -s /etc /a/l; : >/a/empty"]}]
    spec["volumes"] = [{"name": "shared", "emptyDir": {}}]
    main["volumeMounts"] = [shared, shared | {"subPath": "empty", "mountPath": "/a/l/ld.so.preload"}]
    return pod


def around(name: str, memory: int) -> Manifest:
    """A tenant that can take the library away from itself."""
    pod = tenant(name, memory)
    pod["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    pod["metadata"]["labels"]["fractile.dev/webhook"] = "ignore"  # which refuses privileged containers with GPUs
    return pod


def in_driver(cluster: LocalCluster, container: str) -> float:
    """When the driver was seen to know of the container's process."""
    deadline = time.monotonic() + 30
    while not any(p["container"] == container for p in books(cluster, AT)["processes"]):
        assert time.monotonic() < deadline, "the program does not start"
        time.sleep(0.02)
    return time.monotonic()


def events(cluster: LocalCluster, work: DemoWorkload, pod: Manifest) -> dict[str, str]:
    """What was told about the pod, which may be gone, by reason."""
    selector = f"--field-selector=involvedObject.uid={pod['metadata']['uid']}"
    found = json.loads(cluster.kubectl("-n", work.namespace, "get", "events", selector, "-o", "json"))
    return {e["reason"]: e["message"] for e in found["items"]}


@pytest.mark.long
def test_a_pod_that_was_given_no_card_and_uses_one_is_found(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([stowaway(cluster)])
    work.wait_running("stowaway")
    with meanwhile(work, cluster, "stowaway", "fill", "10"):
        (found,) = of_pod(until(cluster, lambda u: bool(of_pod(u, "stowaway"))), "stowaway")
        assert (found.kind, found.container) == ("no-slice", "main")
        wait_event(work, "stowaway", REASON)


def stowaway(cluster: LocalCluster) -> Manifest:
    """A pod that asks for nothing and brings the driver itself."""
    folder = cluster.place.node(cluster.state.node(AT).index).simgpu
    files = {"driver": f"{cluster.state.native}/simgpu/libcuda.so.1", "state": str(folder)}
    container = w.container() | {
        "image": images.CUDA,
        "env": [{"name": "SIMGPU_DIR", "value": SIMULATED_HOST}, {"name": "LD_LIBRARY_PATH", "value": "/driver"}],
        "volumeMounts": [
            {"name": "driver", "mountPath": "/driver/libcuda.so.1", "readOnly": True},
            {"name": "state", "mountPath": SIMULATED_HOST},
        ],
    }
    pod = w.pod("stowaway", container, nodes=[AT])
    pod["spec"]["volumes"] = [{"name": name, "hostPath": {"path": path}} for name, path in files.items()]
    return pod
