"""Pods that use a card of which they hold nothing, on a real node: evicted after the grace time, unless they may."""

import signal
import time
from collections.abc import Generator

import pytest

from fractile.agent.audit.audit import EVICTED
from fractile.agent.audit.overdue import KILLED
from fractile.agent.node.runtime import REASON
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.kubernetes.objects import ALLOWED
from tests.e2e.node.test_limits import meanwhile, renew_agent, wait
from tests.e2e.node.test_usage import AT, events, get, of_pod, stowaway, until

pytestmark = pytest.mark.long

GRACE = 3  # seconds
TIME = 40  # from the eviction on


@pytest.fixture
def namespaces(cluster: LocalCluster) -> Generator[tuple[DemoWorkload, DemoWorkload]]:
    """One of tenants, and one that an administrator has labelled."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-strangers"), DemoWorkload(cluster.kubectl, "e2e-operators")
    for one in found:
        one.create_namespace()
        one.delete()
    cluster.kubectl("label", "namespace", found[1].namespace, f"{ALLOWED}=allow", "--overwrite")
    cluster.kill(f"{AT}/agent", signal.SIGTERM)
    cluster.start(f"{AT}/agent", f"--outside-ledger-grace={GRACE}")
    wait(30, "the agent's page", lambda: answers(cluster))
    try:
        yield found
    finally:
        for one in found:
            one.delete(wait=120)
        renew_agent(cluster, AT)


def answers(cluster: LocalCluster) -> bool:
    try:
        return bool(get(cluster, "/healthz"))
    except OSError:
        return False


def stranger(cluster: LocalCluster, name: str) -> Manifest:
    """A pod that asks for nothing and sees all cards of the node, as by NVIDIA's runtime."""
    made = stowaway(cluster)
    made["metadata"]["name"] = name
    return made


def test_a_tenants_pod_is_evicted_and_an_operators_stays(
    cluster: LocalCluster, namespaces: tuple[DemoWorkload, DemoWorkload]
) -> None:
    tenants, operators = namespaces
    tenants.apply([stranger(cluster, "miner")])
    operators.apply([stranger(cluster, "validator")])
    miner = tenants.wait_running("miner", seconds=90)["miner"]
    operators.wait_running("validator", seconds=90)
    with meanwhile(operators, cluster, "validator", "fill", str(3 * GRACE)):  # it takes all of the card
        until(cluster, lambda u: bool(of_pod(u, "validator")))
    assert "validator" in operators.pods()
    until(cluster, lambda u: not u.outside)
    with meanwhile(tenants, cluster, "miner", "fill", "60"):
        until(cluster, lambda u: bool(of_pod(u, "miner")))
        tenants.wait_gone("miner", seconds=40)
    assert "which this pod was not given" in events(cluster, tenants, miner)[EVICTED]


def test_what_the_tenants_own_grace_period_keeps_running_after_the_eviction_is_ended(
    cluster: LocalCluster, namespaces: tuple[DemoWorkload, DemoWorkload]
) -> None:
    """The tenant deletes the pod before the agent does, and kubelet keeps to the first grace period."""
    tenants, _ = namespaces
    pod = stranger(cluster, "undead")
    pod["spec"]["terminationGracePeriodSeconds"] = 1_000_000
    pod["spec"]["containers"][0]["command"] = ["sh", "-c", "trap '' TERM; probe fill 100000 & wait; sleep 100000"]
    tenants.apply([pod])
    undead = tenants.wait_running("undead", seconds=90)["undead"]
    cluster.kubectl("-n", tenants.namespace, "delete", "pod", "undead", "--wait=false")
    until(cluster, lambda u: bool(of_pod(u, "undead")))
    began = time.monotonic()
    wait(30, "the eviction", lambda: EVICTED in events(cluster, tenants, undead))
    time.sleep(TIME - 5)
    assert of_pod(until(cluster, lambda u: True), "undead"), "kubelet ended it, and this test shows nothing"
    wait(30, "the end of its process", lambda: not of_pod(until(cluster, lambda u: True), "undead"))
    print(f"it used the card for {time.monotonic() - began:.0f} s after it was found")
    tenants.wait_gone("undead", seconds=60)
    assert "the node's agent ended it" in events(cluster, tenants, undead)[KILLED]
    assert b'outcome="killed"} 1' in get(cluster, "/metrics")


def test_the_node_says_how_its_runtime_hands_out_cards(cluster: LocalCluster) -> None:
    cluster.up()
    found = cluster.kubectl("get", "events", "-A", "--field-selector", f"reason={REASON}", "-o", "jsonpath={..message}")
    assert "container runtime is containerd" in found
    assert b'fractile_container_runtime_info{node="' in get(cluster, "/metrics")
    assert b'runtime="containerd"' in get(cluster, "/metrics")
