"""The local cluster itself: it is quick, it heals, it runs pods, and it leaves nothing on the machine."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.up import UpOptions
from fractile.lab.machine import cgroups, network
from fractile.lab.progress import Progress

pytestmark = pytest.mark.e2e

NAMESPACE = "cluster-test"
FORBIDDEN = "written by Fractile alone"


def pod(name: str, command: list[str], **meta: object) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": NAMESPACE, **meta},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "dnsPolicy": "Default",
            "containers": [
                {"name": "main", "image": "fractile.dev/busybox:1", "imagePullPolicy": "Never", "command": command}
            ],
        },
    }


def apply(cluster: LocalCluster, *objects: dict[str, object]) -> None:
    document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(document))


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.fixture
def namespace(cluster: LocalCluster) -> Generator[str]:
    cluster.up()
    apply(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    account = ("-n", NAMESPACE, "get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
    assert eventually(lambda: bool(cluster.kubectl(*account).strip()), 20)
    yield NAMESPACE
    cluster.up()
    cluster.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s")


def wait_ready(cluster: LocalCluster, *names: str) -> None:
    cluster.kubectl("-n", NAMESPACE, "wait", "--for=condition=Ready", "--timeout=60s", *(f"pod/{n}" for n in names))


def test_a_second_up_is_quick_and_changes_nothing(cluster: LocalCluster) -> None:
    cluster.up()
    before = {name: seen.pid for name, seen in cluster.status().items()}
    files = {p: p.stat().st_mtime_ns for p in cluster.place.root.glob("nodes/*/config/*")}
    again = cluster.up()
    assert {name: seen.pid for name, seen in cluster.status().items()} == before
    assert None not in before.values()
    assert {p: p.stat().st_mtime_ns for p in files} == files
    assert again.seconds < 30, "1 s on an idle machine"


def test_a_pod_runs_and_logs_exec_and_network_work(cluster: LocalCluster, namespace: str) -> None:
    apply(cluster, pod("one", ["sh", "-c", "echo said; exec sleep 1000"]), pod("two", ["sleep", "1000"]))
    wait_ready(cluster, "one", "two")
    assert cluster.kubectl("-n", namespace, "logs", "one") == "said\n"
    assert cluster.kubectl("-n", namespace, "exec", "one", "--", "cat", "/etc/hostname") == "one\n"
    address = cluster.kubectl("-n", namespace, "get", "pod", "two", "-o", "jsonpath={.status.podIP}")
    cluster.kubectl("-n", namespace, "exec", "one", "--", "ping", "-c1", "-W5", address)
    warnings = cluster.kubectl("-n", namespace, "get", "events", "--field-selector=type=Warning", "-o", "name")
    assert warnings == ""


def test_sleep_as_process_1_ends_at_once_when_its_pod_is_deleted(cluster: LocalCluster, namespace: str) -> None:
    manifest = pod("sleeper", ["sleep", "1000"])
    spec = manifest["spec"]
    assert isinstance(spec, dict)
    spec["terminationGracePeriodSeconds"] = 60
    apply(cluster, manifest)
    wait_ready(cluster, "sleeper")
    began = time.monotonic()
    cluster.kubectl("-n", namespace, "delete", "pod", "sleeper")
    assert time.monotonic() - began < 30, "2 s on an idle machine; without a handler it would be 60"


@pytest.mark.parametrize("annotation", ["fractile.dev/placement", "fractile.dev/kubelet-choice"])
def test_nobody_but_fractile_writes_a_placement(cluster: LocalCluster, namespace: str, annotation: str) -> None:
    with pytest.raises(KubectlFailed, match=FORBIDDEN):
        apply(cluster, pod("forged", ["sleep", "1"], annotations={annotation: "{}"}))
    apply(cluster, pod("honest", ["sleep", "1000"]))
    wait_ready(cluster, "honest")
    with pytest.raises(KubectlFailed, match=FORBIDDEN):
        cluster.kubectl("-n", namespace, "annotate", "pod", "honest", f"{annotation}=x")
    patch = json.dumps({"metadata": {"annotations": {annotation: "x"}}})
    with pytest.raises(KubectlFailed, match=FORBIDDEN):
        cluster.kubectl("-n", namespace, "patch", "pod", "honest", "--subresource=status", "--type=merge", "-p", patch)
    node = cluster.kubectl("-n", namespace, "get", "pod", "honest", "-o", "jsonpath={.spec.nodeName}")
    agents = {n: cluster.place.node(cluster.state.node(n).index).config / "agent.kubeconfig" for n in cluster.nodes}
    mine = annotation == "fractile.dev/kubelet-choice"  # the agent's, of the pod's own node
    writer = agents.pop(node) if mine else cluster.place.config / "control-plane.kubeconfig"
    for other in agents.values():
        with pytest.raises(KubectlFailed, match=f"{FORBIDDEN}|agents.fractile.dev"):
            cluster.kubectl(
                f"--kubeconfig={other}", "-n", namespace, "patch", "pod", "honest", "--type=merge", "-p", patch
            )
    cluster.kubectl(f"--kubeconfig={writer}", "-n", namespace, "patch", "pod", "honest", "--type=merge", "-p", patch)
    cluster.kubectl("-n", namespace, "annotate", "pod", "honest", "example.com/other=x")
    with pytest.raises(KubectlFailed, match=FORBIDDEN):
        cluster.kubectl("-n", namespace, "annotate", "pod", "honest", f"{annotation}-")


def test_a_binding_made_by_a_user_cannot_carry_a_placement(cluster: LocalCluster, namespace: str) -> None:
    waiting = pod("waiting", ["sleep", "1"])
    spec = waiting["spec"]
    assert isinstance(spec, dict)
    spec["schedulerName"] = "nobody"
    apply(cluster, waiting)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "waiting", "annotations": {"fractile.dev/placement": "{}"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": cluster.nodes[0]},
    }
    for path in ("pods/waiting/binding", "bindings"):
        with pytest.raises(KubectlFailed, match=FORBIDDEN):
            cluster.kubectl(
                "create", "--raw", f"/api/v1/namespaces/{namespace}/{path}", "-f", "-", stdin=json.dumps(binding)
            )


@pytest.mark.parametrize(
    ("who", "verb", "what", "allowed"),
    [
        ("control-plane", "create", "pods/binding", True),
        ("control-plane", "patch", "pods", True),
        ("control-plane", "create", "pods", False),
        ("control-plane", "get", "secrets", False),
        ("control-plane", "patch", "extendedresources.fractile.dev", False),
        ("agent", "patch", "extendedresources.fractile.dev", True),
        ("agent", "patch", "nodes/status", False),
        ("agent", "patch", "nodes", False),
        ("agent", "create", "pods/binding", False),
        ("agent", "get", "secrets", False),
    ],
)
def test_our_programs_have_the_rights_they_need_and_no_more(
    cluster: LocalCluster, who: str, verb: str, what: str, allowed: bool
) -> None:
    place = cluster.place
    kubeconfig = place.node(0).config / "agent.kubeconfig" if who == "agent" else place.config / f"{who}.kubeconfig"
    resource, _, sub = what.partition("/")
    argv = [f"--kubeconfig={kubeconfig}", "auth", "can-i", verb, resource, "-n", "default", "-q"]
    try:
        cluster.kubectl(*argv, *([f"--subresource={sub}"] if sub else []))
        can = True
    except KubectlFailed:
        can = False
    assert can is allowed


@pytest.mark.long
def test_every_component_killed_one_by_one_comes_back(cluster: LocalCluster, namespace: str) -> None:
    apply(cluster, pod("survivor", ["sleep", "100000"]))
    wait_ready(cluster, "survivor")
    container = cluster.kubectl("-n", namespace, "get", "pod", "survivor", "-o", "jsonpath={.status.containerStatuses}")
    for name in cluster.components():
        cluster.kill(name)
        assert cluster.status()[name].pid is None
        cluster.up()
        assert cluster.status()[name].pid is not None
    after = cluster.kubectl("-n", namespace, "get", "pod", "survivor", "-o", "jsonpath={.status.containerStatuses}")
    assert json.loads(after)[0]["containerID"] == json.loads(container)[0]["containerID"]
    assert json.loads(after)[0]["restartCount"] == 0


@pytest.mark.long
def test_everything_killed_at_once_comes_back(cluster: LocalCluster, namespace: str) -> None:
    apply(cluster, pod("survivor", ["sleep", "100000"]))
    wait_ready(cluster, "survivor")
    for name in cluster.components():
        cluster.kill(name)
    cluster.up()
    assert all(seen.pid for seen in cluster.status().values())
    wait_ready(cluster, "survivor")
    assert cluster.kubectl("-n", namespace, "exec", "survivor", "--", "echo", "here") == "here\n"


@pytest.mark.long
def test_a_cluster_whose_runtime_state_is_gone_as_after_a_reboot_comes_back(
    cluster: LocalCluster, namespace: str
) -> None:
    """A reboot ends all processes, mounts, cgroups and bridges and keeps the files; so does this."""
    apply(cluster, pod("returns", ["sleep", "100000"]))
    wait_ready(cluster, "returns")
    lose_what_a_reboot_loses(cluster)
    cluster.up()
    running = ("-n", namespace, "get", "pod", "returns", "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
    assert eventually(lambda: cluster.kubectl(*running) == "1", 60), "kubelet starts it again"
    wait_ready(cluster, "returns")
    assert cluster.kubectl("-n", namespace, "exec", "returns", "--", "echo", "here") == "here\n"


def test_two_commands_at_once_and_wishes_that_contradict_are_refused(cluster: LocalCluster) -> None:
    with pytest.raises(SetupError, match=rf"exists and differs .* run `fractile down --name {cluster.name}` first"):
        cluster.up(UpOptions(spec=from_options(cluster.name, nodes=1)))


@pytest.mark.long
def test_up_killed_at_any_moment_is_completed_by_the_next_and_down_leaves_nothing() -> None:
    """A cluster of its own: created, killed half-made several times, completed, extended, removed."""
    name = "e2e-crash"
    LocalCluster(name).down()
    before = traces(name)
    try:
        for step in ("containerd", "etcd", "kube-apiserver", "kubelet", "control-plane"):
            kill_up_when_it_started(name, step)
        cluster = LocalCluster(name)
        cluster.up()
        assert cluster.nodes == ["node-1"]
        first = {n: s.pid for n, s in cluster.status().items()}
        cluster.up(UpOptions(spec=from_options(name, nodes=2)))
        assert cluster.nodes == ["node-1", "node-2"]
        assert {n: s.pid for n, s in cluster.status().items() if n in first} == first
        assert cluster.kubectl("get", "extendedresources", "-o", "name").count("gpu-") == 4
        run_a_pod(cluster)
        there = traces(name)
        assert all(set(there[kind]) - set(before[kind]) for kind in there), f"seen while it runs: {there}"
    finally:
        lines: list[str] = []
        assert LocalCluster(name, progress=Progress(lines.append)).down()
    assert eventually(lambda: not left(name, before), 10), f"left: {left(name, before)} after {lines}"
    assert not LocalCluster(name).down(), "a second down finds nothing"


@pytest.mark.long
def test_a_half_made_cluster_can_be_taken_down() -> None:
    name = "e2e-half"
    LocalCluster(name).down()
    before = traces(name)
    try:
        kill_up_when_it_started(name, "kube-apiserver")
    finally:
        LocalCluster(name).down()
    assert eventually(lambda: not left(name, before), 10), f"left: {left(name, before)}"


@pytest.mark.long
def test_two_clusters_run_side_by_side(cluster: LocalCluster) -> None:
    other = LocalCluster("e2e-hollow")
    other.down()
    try:
        other.up(UpOptions(spec=from_options("e2e-hollow", nodes=1), hollow=True))
        assert other.hollow == "asked for"
        assert json.loads(other.kubectl("get", "nodes", "-o", "json"))["items"][0]["metadata"]["name"] == "node-1"
        assert "node-1" not in cluster.kubectl("get", "nodes", "-o", "name")
    finally:
        other.down()
    cluster.kubectl("get", "--raw", "/readyz")


def kill_up_when_it_started(name: str, step: str) -> None:
    """Run `fractile up` as a program and kill -9 it as soon as that component has its record."""
    argv = [sys.executable, "-c", "from fractile.main.cli import main; main()", "up", "--name", name, "--nodes", "1"]
    place = LocalCluster(name).place
    known = set((place.root / "run").glob("*.pid"))
    up = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while up.poll() is None:
            new = set((place.root / "run").glob("*.pid")) - known
            if any(record.stem.endswith(step) for record in new):
                break
            time.sleep(0.005)
    finally:
        up.send_signal(signal.SIGKILL)
        up.wait(10)


def lose_what_a_reboot_loses(cluster: LocalCluster) -> None:
    from fractile.lab.machine import mounts  # only this test takes a cluster apart

    place = cluster.place
    for name in cluster.components():
        cluster.kill(name)
    for node in cluster.state.nodes:
        mounts.kill_all_in(place.pin(node.index))
        cgroups.remove(cgroups.of_node(place.node(node.index)))
        mounts.release(place.pin(node.index))
        network.remove_bridge(network.bridge_name(place.name, node.index))
    mounts.unmount_below(place.root)


def left(name: str, before: dict[str, list[str]]) -> list[str]:
    """What is there and was not before. What was and is not may have been another cluster's."""
    return [trace for kind, found in traces(name).items() for trace in found if trace not in before[kind]]


def traces(name: str) -> dict[str, list[str]]:
    """All that a cluster of that name, and containers in general, leave on a machine."""
    place = LocalCluster(name).place
    mounted = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "processes": processes_of(str(place.root)),
        "mounts": [line for line in mounted if f"/{name}/" in line],
        "bridges": network.bridges(name),
        "files": [str(p) for p in (place.root, place.lock) if p.exists()],
        "cgroups": sorted(
            str(p)
            for h in cgroups.hierarchies()
            for p in h.glob("k8s.io/*")
            if p.is_dir() and not in_use_by_others(p, name)
        ),
        "cables": sorted(p.name for p in Path("/sys/class/net").glob("veth*") if cable_of(p) in ("", name)),
    }


def cable_of(port: Path) -> str:
    """The cluster whose bridge the host's end of a pod's cable hangs on; empty when it hangs on none."""
    master = port / "master"
    bridge = master.readlink().name if master.is_symlink() else ""
    clusters = [p.name for p in LocalCluster("x").place.root.parent.glob("*") if p.is_dir()]
    return next((c for c in clusters if bridge in network.bridges(c)), "")


def run_a_pod(cluster: LocalCluster) -> None:
    account = ("get", "serviceaccount", "default", "--ignore-not-found", "-o", "name")
    assert eventually(lambda: bool(cluster.kubectl(*account).strip()), 20)
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(pod("left", ["sleep", "100000"], namespace="default")))
    cluster.kubectl("wait", "--for=condition=Ready", "--timeout=60s", "pod/left")


def processes_of(root: str) -> list[str]:
    """Living processes whose command line names a path of the cluster, or that run in a namespace of it."""
    found: list[str] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                mounted = (entry / "mountinfo").read_text()
            except OSError:
                continue
            if f"{root}/" in command or f"{root}/nodes" in mounted:
                found.append(f"{entry.name} {command}")
    return found


def in_use_by_others(cgroup: Path, name: str) -> bool:
    """Whether a container of another cluster of this machine lives in the cgroup."""
    clusters = LocalCluster(name).place.root.parent
    others = (p for p in clusters.glob(f"*/nodes/*/run/io.containerd.runtime.v2.task/k8s.io/{cgroup.name}"))
    return any(p.parents[5].name != name for p in others)
