"""Pods that use a card of which they hold nothing, on a real node: evicted after the grace time, unless they may."""

import signal
from collections.abc import Generator

import pytest

from fractile.agent.audit import EVICTED
from fractile.agent.runtime import REASON
from fractile.agent.spared import ALLOWED
from fractile.cluster.local import LocalCluster
from fractile.cluster.workload import Manifest, Workload
from tests.e2e.test_limits import meanwhile, renew_agent, wait
from tests.e2e.test_usage import AT, events, get, of_pod, stowaway, until

GRACE = 3  # seconds


@pytest.fixture
def namespaces(cluster: LocalCluster) -> Generator[tuple[Workload, Workload]]:
    """One of tenants, and one that an administrator has labelled."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("the library is not built here: it needs gcc and make")
    found = Workload(cluster.kubectl, "e2e-strangers"), Workload(cluster.kubectl, "e2e-operators")
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
    cluster: LocalCluster, namespaces: tuple[Workload, Workload]
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


def test_the_node_says_how_its_runtime_hands_out_cards(cluster: LocalCluster) -> None:
    cluster.up()
    found = cluster.kubectl("get", "events", "-A", "--field-selector", f"reason={REASON}", "-o", "jsonpath={..message}")
    assert "container runtime containerd" in found
    assert b'fractile_container_runtime_info{node="' in get(cluster, "/metrics")
    assert b'runtime="containerd"' in get(cluster, "/metrics")
