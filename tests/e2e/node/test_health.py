"""Sick cards on the real cluster: faults of simulated cards, seen by kubelet, kube-scheduler and people."""

import json
import subprocess
from collections.abc import Generator
from typing import Any

import pytest

from fractile.dialects import aliyun
from fractile.lab.cluster import node
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.wire.fractile.extended_resource import HEALTHY
from tests.e2e.placing.test_path import card_of, inspect

pytestmark = pytest.mark.long

AT = "n1"


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, on nodes whose agents read simgpu's NVML, with well cards."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("simgpu is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-health")
    found.create_namespace()
    found.delete()
    try:
        yield found
    finally:
        for card in status(cluster):
            hurt(cluster, "heal", card)
        found.delete(wait=120)


def hurt(cluster: LocalCluster, *words: str) -> None:
    state = cluster.state
    env = node.simulated_driver(cluster.place, state, state.node(AT))
    subprocess.run([f"{state.native}/simgpu/simgpu-ctl", *words], env=env, timeout=30, check=True, capture_output=True)


def status(cluster: LocalCluster) -> dict[str, dict[str, Any]]:
    """The status of each card of the node."""
    found = json.loads(cluster.kubectl("get", "extendedresources", "-l", f"fractile.dev/node={AT}", "-o", "json"))
    return {o["spec"]["deviceID"]: o["status"] for o in found["items"]}


def event(work: DemoWorkload, pod: str, reason: str) -> str:
    """What the pod is told, when it is."""
    found: list[str] = []

    def told() -> bool:
        found.extend(e["message"] for e in work.events(pod) if e["reason"] == reason)
        return bool(found)

    work.wait_until(40, f"event {reason} of {pod}", told)
    return found[0]


def agent_log(cluster: LocalCluster) -> str:
    return cluster.log(f"{AT}/agent").read_text()


def allocatable(cluster: LocalCluster) -> int:
    found = json.loads(cluster.kubectl("get", "node", AT, "-o", "json"))
    return int(found["status"]["allocatable"][aliyun.COUNT])


def test_a_card_that_falls_off_the_bus_is_taken_out_alone_and_comes_back(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    cards = allocatable(cluster)
    work.apply([w.pod("on", w.container(memory=4069), nodes=[AT])])
    pod = work.wait_running("on")["on"]
    card = card_of(pod)

    hurt(cluster, "xid", card, "79")
    work.wait_until(20, "the status", lambda: status(cluster)[card].get("reason") == "CardLost")
    assert {c for c, s in status(cluster).items() if s["phase"] in HEALTHY} == status(cluster).keys() - {card}
    work.wait_until(30, "kubelet", lambda: allocatable(cluster) == cards - 1)
    assert card in event(work, "on", "CardUnhealthy")
    (problem,) = [p for p in inspect(cluster)["problems"] if p["name"] == card.lower()]
    assert "CardLost" in problem["reason"]

    work.apply([w.pod("other", w.container(memory=4069), nodes=[AT])])
    assert card_of(work.wait_running("other")["other"]) != card
    assert work.wait_running("on")["on"]["metadata"]["uid"] == pod["metadata"]["uid"]

    hurt(cluster, "heal", card)
    work.wait_until(60, "the status", lambda: status(cluster)[card].get("phase") in HEALTHY)
    work.wait_until(30, "kubelet", lambda: allocatable(cluster) == cards)
    event(work, "on", "CardHealthy")
    work.apply([w.pod("again", w.container(memory=4069), nodes=[AT])])
    work.wait_running("again")


def test_an_error_of_a_program_is_an_event_on_its_pod_and_no_more(cluster: LocalCluster, work: DemoWorkload) -> None:
    work.apply([w.pod("faulty", w.container(memory=4069), nodes=[AT])])
    card = card_of(work.wait_running("faulty")["faulty"])
    hurt(cluster, "xid", card, "31")
    assert "XID 31" in event(work, "faulty", "ProgramFailedOnCard")
    assert status(cluster)[card]["phase"] in HEALTHY


def test_an_uncorrected_error_holds_over_a_restart_of_the_agent(cluster: LocalCluster, work: DemoWorkload) -> None:
    card = next(iter(status(cluster)))
    hurt(cluster, "ecc", card, "uncorrected")
    work.wait_until(20, "the status", lambda: status(cluster)[card].get("phase") == "Unhealthy")
    before = status(cluster)[card]
    assert before["returnsAt"]
    seen = len(agent_log(cluster))
    cluster.restart(f"{AT}/agent")
    work.wait_until(60, "the new agent", lambda: f"card={card} phase=Unhealthy" in agent_log(cluster)[seen:])
    assert status(cluster)[card] == before
    hurt(cluster, "heal", card)  # the counter begins again: a reset
    work.wait_until(30, "the return", lambda: status(cluster)[card].get("phase") in HEALTHY)
