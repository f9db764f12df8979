"""Nodes that Fractile chooses over all nodes, with the real kube-scheduler (docs/use/global-placement.md)."""

import json
import re
import signal
import time
from collections.abc import Generator, Sequence

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest
from fractile.wire.kubernetes.queued import ANNOTATION, GATE, NOMINATED

CARD = 16_276
FEW = 4000
BUSY = 10.0  # seconds; 5 on a machine that has time


@pytest.fixture(scope="module")
def gating(cluster: LocalCluster) -> Generator[LocalCluster]:
    """The control plane holds pods back until they are nominated."""
    cluster.up()
    cluster.restart("control-plane", "--placement-gate")
    yield cluster
    cluster.restart("control-plane")


@pytest.fixture
def work(gating: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, and whose pods ask to be placed over all nodes."""
    found = DemoWorkload(gating.kubectl, "e2e-global")
    found.create_namespace()
    gating.kubectl("annotate", "--overwrite", "namespace", found.namespace, f"{ANNOTATION}=true")
    found.delete()
    yield found
    found.delete(wait=120)


def asking(name: str, memory: int = FEW, *, gate: bool = False, port: int = 0) -> Manifest:
    container = w.container(memory=memory)
    if port:
        container["ports"] = [{"containerPort": port, "hostPort": port}]
    made = w.pod(name, container)
    if gate:
        made["spec"]["schedulingGates"] = [{"name": GATE}]
    return made


def gates(made: Manifest) -> list[str]:
    return [gate["name"] for gate in made["spec"].get("schedulingGates", [])]


def nominated(made: Manifest) -> str:
    return w.annotations(made).get(NOMINATED, "")


def where_nominated(work: DemoWorkload, names: Sequence[str]) -> bool:
    """Whether they run on the node that was chosen for them."""
    found = work.wait_running(*names)
    return all(nominated(found[name]) == w.node_of(found[name]) for name in names)


def said(cluster: LocalCluster, text: str) -> int:
    return cluster.log("control-plane").read_text().count(text)


def test_the_webhook_holds_pods_back_and_they_are_bound_where_they_were_nominated(
    gating: LocalCluster, work: DemoWorkload
) -> None:
    names = [f"p{i}" for i in range(6)]
    work.wait_until(20, "gates", lambda: _gates_are_set(gating, work))
    work.apply([asking(name, CARD) for name in names])
    assert where_nominated(work, names)
    # kube-scheduler asked about one node each time.
    log = gating.log("control-plane").read_text()
    assert {asked for name in names for asked in re.findall(rf"filter pod='e2e-global/{name}' asked=(\d+)", log)} == {
        "1"
    }


def _gates_are_set(cluster: LocalCluster, work: DemoWorkload) -> bool:
    """The API server says what it would store."""
    body = json.dumps(asking("trial"))
    options = ("--dry-run=server", "-o", "json", "-f", "-")
    return gates(json.loads(cluster.kubectl("-n", work.namespace, "create", *options, stdin=body))) == [GATE]


@pytest.mark.long
def test_a_gate_that_was_left_is_removed_when_a_killed_leader_is_back(gating: LocalCluster, work: DemoWorkload) -> None:
    gating.kill("control-plane")
    try:
        work.apply([asking(name, gate=True) for name in ("a", "b")])
        assert gates(work.pods()["a"]) == [GATE]
    finally:
        gating.start("control-plane", "--placement-gate")
    began = time.monotonic()
    work.wait_until(20, "no gates", lambda: not any(map(gates, work.pods().values())))
    assert time.monotonic() - began < BUSY
    found = work.wait_running("a", "b")  # nominated, unless the start took so long that they were let go before
    assert all(nominated(one) in ("", w.node_of(one)) for one in found.values())


@pytest.mark.long
def test_pods_that_wait_in_the_queue_are_nominated_there(gating: LocalCluster, work: DemoWorkload) -> None:
    gating.kill("kube-scheduler", signal.SIGSTOP)
    try:
        for name in ("a", "b"):  # the webhook does not see them
            made = asking(name)
            made["metadata"]["labels"]["fractile.dev/webhook"] = "ignore"
            work.apply([made])
        work.wait_until(20, "nominations", lambda: all(map(nominated, work.pods().values())))
        assert {one["status"]["nominatedNodeName"] for one in work.pods().values()} == {nominated(work.pods()["a"])}
    finally:
        gating.kill("kube-scheduler", signal.SIGCONT)
    assert where_nominated(work, ["a", "b"])


@pytest.mark.long
def test_a_wrong_nomination_costs_nothing_but_the_nomination(gating: LocalCluster, work: DemoWorkload) -> None:
    """Fractile does not know ports of nodes: it fills one node before the next."""
    work.apply([asking("first", port=18_123)])
    work.wait_until(30, "a node", lambda: bool(w.node_of(work.pods()["first"])))
    missed = said(gating, "nomination missed")
    began = time.monotonic()
    work.apply([asking("second", port=18_123)])
    work.wait_until(20, "a node", lambda: bool(w.node_of(work.pods()["second"])))
    assert time.monotonic() - began < BUSY
    both = work.pods()
    assert nominated(both["second"]) == w.node_of(both["first"]) != w.node_of(both["second"])
    assert said(gating, "nomination missed") == missed + 1


def test_a_pod_without_room_says_so_and_runs_when_there_is(gating: LocalCluster, work: DemoWorkload) -> None:
    work.apply([asking(f"p{i}", CARD) for i in range(7)])
    work.wait_running(*(f"p{i}" for i in range(7)))
    work.apply([asking("late", CARD)])
    work.wait_refused("late")
    assert (gates(work.pods()["late"]), nominated(work.pods()["late"])) == ([], "")
    work.delete("p3")
    work.wait_running("late")
