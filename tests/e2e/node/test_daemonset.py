"""The agent as a DaemonSet on the real cluster: with what deploy/agent.yaml gives it, and no more, it does its work.

The image is missing, so the pod gets this machine's Python, read-only; all else is as in the file but for addresses.
"""

import json
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fractile.lab.cluster import node
from fractile.lab.cluster.local import KubectlFailed, LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.foreign import vcuda
from fractile.wire.output import node_usage
from tests.e2e.conftest import not_on_chart
from tests.e2e.node.test_limits import CONTEXT, MIB, meanwhile, probe, renew_agent, sharer, tenant, wait
from tests.e2e.node.test_usage import asked

ROOT = Path(__file__).parents[3]
FILE = ROOT / "deploy" / "agent.yaml"
AT = "n2"
SYSTEM = "fractile-system"
PODS = ("-n", SYSTEM, "get", "pods", "-l", "app.kubernetes.io/name=fractile-agent", "-o", "json")


pytestmark = not_on_chart("its agents are a DaemonSet of the same name already")


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, and a node whose agent is no DaemonSet afterwards."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-daemonset")
    found.create_namespace()
    found.delete()
    try:
        yield found
    finally:
        found.delete(wait=120)
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(FILE))
        wait(60, "the DaemonSet to be gone", lambda: not json.loads(cluster.kubectl(*PODS))["items"])
        renew_agent(cluster, AT)


def test_the_file_is_taken_by_the_api_server(cluster: LocalCluster) -> None:
    cluster.up()
    said = cluster.kubectl("apply", "--dry-run=server", "-f", str(FILE))
    assert "daemonset.apps/fractile-agent created (server dry run)" in said


@pytest.mark.long
def test_the_agent_serves_its_node_with_these_rights_and_an_upgrade_takes_over(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    cluster.kill(f"{AT}/agent", signal.SIGTERM)
    cluster.kubectl("label", "node", AT, "fractile.dev/gpu=true", "--overwrite")
    cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(here(cluster)))
    first = agent_pod(cluster)
    wait(60, "it to be registered", lambda: "registered resource=nvidia.com/gpu" in log(cluster, first))

    work.apply([tenant("quota", 1024, at=AT), old(sharer("old", 30))])
    work.wait_running("quota", "old", seconds=90)
    assert probe(work, cluster, "quota", "info")["total"] == 1024 * MIB
    with meanwhile(work, cluster, "quota", "fill", "8"):
        # What the driver says of the container is found by pid, cgroup and mounts of a process of another container.
        wait(20, "the use to be seen", lambda: driver_bytes(cluster, "quota") == 1024 * MIB)
        assert asked(cluster, AT).outside == ()
        wait(30, "the arbiter to serve", lambda: asked(cluster, AT).arbiter)
    config = cluster.kubectl("-n", work.namespace, "exec", "old", "--", "od", "-An", "-v", "-tx1", vcuda_file("CONFIG"))
    assert vcuda.decode_config(bytes.fromhex(config)).cores == 30
    pids = ("-n", work.namespace, "exec", "old", "--", "od", "-An", "-v", "-tx1", vcuda_file("PIDS"))
    wait(20, "its processes", lambda: bool(vcuda.decode_pids(bytes.fromhex(cluster.kubectl(*pids)))))

    cluster.kubectl("-n", SYSTEM, "rollout", "restart", "daemonset/fractile-agent")
    wait(60, "the upgrade", lambda: (now := agent_pod(cluster)) != first and "registered" in log(cluster, now))
    work.apply([tenant("later", 512, at=AT)])
    later = work.wait_running("later", seconds=90)
    assert probe(work, cluster, "later", "info")["free"] == (512 - CONTEXT) * MIB
    assert all(
        p["status"]["containerStatuses"][0]["restartCount"] == 0 for p in (*work.pods().values(), *later.values())
    )
    agents = json.loads(cluster.kubectl(*PODS))["items"]
    assert [p["status"]["containerStatuses"][0]["restartCount"] for p in agents] == [0], (
        "kubelet's probe finds it alive"
    )
    log_now = log(cluster, agent_pod(cluster))
    assert "forbidden" not in log_now
    assert "Permission denied" not in log_now


def here(cluster: LocalCluster) -> list[Manifest]:
    """The objects of the file, for a machine without the image and for a node that shares its files with others."""
    account, binding, daemonset = yaml.safe_load_all(FILE.read_text())
    spec = daemonset["spec"]["template"]["spec"]
    (agent,) = spec["containers"]
    place = cluster.place.node(cluster.state.node(AT).index)
    agent |= {"image": w.IMAGE, "imagePullPolicy": "Never"}
    agent["command"] = [sys.executable, "-c", "from fractile.main.cli import main; main()"]
    agent["args"] += [
        f"--state-dir={place.agent}",
        f"--library-dir={cluster.state.native}",
        f"--simgpu-dir={place.simgpu}",
        f"--context-memory={CONTEXT}",
        f"--metrics-address={address(cluster)}:{node.METRICS_PORT}",
    ]
    alive = agent["livenessProbe"]["exec"]["command"]
    assert alive == ["fractile", "alive", "--state-dir=/var/lib/fractile"]
    agent["livenessProbe"] |= {
        "exec": {"command": [*agent["command"], "alive", f"--state-dir={place.agent}"]},
        "initialDelaySeconds": 3,  # so that four failures in a row would end the agent while this test runs
        "periodSeconds": 5,
    }
    agent["env"] += [
        {"name": "KUBERNETES_SERVICE_HOST", "value": "127.0.0.1"},
        {"name": "KUBERNETES_SERVICE_PORT", "value": str(cluster.state.ports.apiserver)},
        {"name": "PYTHONPATH", "value": os.pathsep.join(p for p in sys.path if p)},
        *({"name": k, "value": v} for k, v in simulated(cluster).items()),
    ]
    for volume in spec["volumes"]:
        if volume["name"] == "state":
            volume["hostPath"]["path"] = str(place.agent)
    for mount in agent["volumeMounts"]:
        if mount["name"] == "state":
            mount["mountPath"] = str(place.agent)
    for i, path in enumerate(python_folders(cluster)):
        spec["volumes"].append({"name": f"python-{i}", "hostPath": {"path": path}})
        agent["volumeMounts"].append({"name": f"python-{i}", "mountPath": path, "readOnly": True})
    spec["volumes"].append({"name": "simgpu", "hostPath": {"path": str(place.simgpu)}})
    agent["volumeMounts"].append({"name": "simgpu", "mountPath": str(place.simgpu)})
    return [account, binding, daemonset]


def python_folders(cluster: LocalCluster) -> list[str]:
    """Where this Python, its libraries and Fractile lie."""
    wanted = ["/usr", "/lib", "/lib64", sys.prefix, sys.base_prefix, cluster.state.native]
    wanted += [str(Path(p).resolve()) for p in sys.path if Path(p).is_dir()]
    found: list[str] = []
    for path in sorted({p for p in wanted if Path(p).exists()}, key=len):
        if not any(path == f or path.startswith(f"{f}/") for f in found):
            found.append(path)
    return found


def simulated(cluster: LocalCluster) -> dict[str, str]:
    return node.simulated_driver(cluster.place, cluster.state, cluster.state.node(AT))


def address(cluster: LocalCluster) -> str:
    return cluster.state.node(AT).address


def agent_pod(cluster: LocalCluster) -> str:
    """The only pod that is not about to go; "" while there are two."""
    items: list[Any] = json.loads(cluster.kubectl(*PODS))["items"]
    names = [i["metadata"]["name"] for i in items if not i["metadata"].get("deletionTimestamp")]
    return names[0] if len(names) == 1 else ""


def log(cluster: LocalCluster, pod: str) -> str:
    """What it has said; "" before it runs."""
    try:
        return cluster.kubectl("-n", SYSTEM, "logs", pod) if pod else ""
    except KubectlFailed:
        return ""


def old(pod: Manifest) -> Manifest:
    """The same on this node."""
    return pod | {"spec": pod["spec"] | {"affinity": tenant("x", 1, at=AT)["spec"]["affinity"]}}


def vcuda_file(name: str) -> str:
    return f"/etc/vcuda/{vcuda.CONFIG_NAME if name == 'CONFIG' else vcuda.PIDS_NAME}"


def driver_bytes(cluster: LocalCluster, pod: str) -> int:
    usage: node_usage.NodeUsage = asked(cluster, AT)
    return sum(s.driver_bytes or 0 for c in usage.containers if c.pod == pod for s in c.cards)
