"""The fence at the API server: a Binding that an earlier leader decided is refused, however late it comes."""

import itertools
import json
import time

import pytest

from tests.contract.kubectl import Kubectl

LEASE = "fractile-control-plane"
CONTROL = ("fractile-control-plane", "fractile:control-plane")
_names = itertools.count()


def lead(kubectl: Kubectl, holder: str, transitions: int) -> None:
    patch = json.dumps({"spec": {"holderIdentity": holder, "leaseTransitions": transitions}})
    kubectl("-n", "fractile-system", "patch", "lease", LEASE, "--type=merge", "-p", patch)


@pytest.fixture
def pod(kubectl: Kubectl) -> str:
    """A pod that waits."""
    name = f"leader-{next(_names)}"
    spec = {"containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody"}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    kubectl("-n", "default", "create", "-f", "-", stdin=body)
    return name


def bind(kubectl: Kubectl, pod: str, leader: str | None) -> str:
    """What the server says against it; "" for nothing."""
    annotations = {} if leader is None else {"fractile.dev/leader": leader}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": "default", "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    path = f"/api/v1/namespaces/default/pods/{pod}/binding"
    done = kubectl.as_user(*CONTROL).tell("create", "--raw", path, "-f", "-", stdin=binding)
    return done.stderr if done.returncode else ""


def test_only_the_leader_of_the_moment_binds(kubectl: Kubectl, pod: str) -> None:
    lead(kubectl, "new", 5)
    deadline = time.monotonic() + 30
    while "another replica of fractile leads now" not in (said := bind(kubectl, pod, "old/4")):
        assert said, "a Binding of an earlier leader was taken"
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    for late in ("old/5", "new/4", "new", "/", ""):
        assert "another replica" in bind(kubectl, pod, late), late
    assert bind(kubectl, pod, "new/5") == ""
    found = json.loads(kubectl("-n", "default", "get", "pod", pod, "-o", "json"))
    assert found["spec"]["nodeName"] == "n1"


def test_a_change_of_leader_counts_within_a_second(kubectl: Kubectl, pod: str) -> None:
    lead(kubectl, "first", 6)
    time.sleep(1)
    assert "another replica" in bind(kubectl, pod, "second/7")
    lead(kubectl, "second", 7)
    began = time.monotonic()
    while bind(kubectl, pod, "second/7"):
        assert time.monotonic() - began < 5
    print(f"known after {time.monotonic() - began:.2f} s, kubectl included")


def test_a_control_plane_without_a_lease_binds_as_before(kubectl: Kubectl, pod: str) -> None:
    lead(kubectl, "somebody", 9)
    assert bind(kubectl, pod, None) == ""


def move(kubectl: Kubectl, pod: str, leader: str | None, **more: str) -> str:
    """What the server says against an update that moves the pod to other cards, with these annotations besides."""
    notes = {"fractile.dev/placement": f"cards-{next(_names)}", "fractile.dev/leader": leader, **more}
    patch = json.dumps({"metadata": {"annotations": notes}})
    done = kubectl.as_user(*CONTROL).tell("-n", "default", "patch", "pod", pod, "--type=merge", "-p", patch)
    return done.stderr if done.returncode else ""


def test_only_the_leader_of_the_moment_moves_a_pod_to_other_cards(kubectl: Kubectl, pod: str) -> None:
    lead(kubectl, "mover", 11)
    deadline = time.monotonic() + 30
    while "another replica of fractile leads now" not in (said := move(kubectl, pod, "old/10")):
        assert said, "a move by an earlier leader was taken"
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    assert move(kubectl, pod, "mover/11") == ""
    lead(kubectl, "next", 12)
    time.sleep(1)
    assert "another replica" in move(kubectl, pod, "mover/11")
    assert move(kubectl, pod, None) == ""  # without a lease nobody is compared


def test_an_update_that_moves_nothing_may_carry_the_lead_of_before(kubectl: Kubectl, pod: str) -> None:
    lead(kubectl, "first", 13)
    time.sleep(1)
    assert move(kubectl, pod, "first/13") == ""
    lead(kubectl, "second", 14)
    time.sleep(1)
    patch = json.dumps({"metadata": {"annotations": {"note": "x"}}})
    kubectl.as_user(*CONTROL)("-n", "default", "patch", "pod", pod, "--type=merge", "-p", patch)


def test_the_api_server_takes_the_time_that_a_binding_may_need(kubectl: Kubectl, pod: str) -> None:
    """``timeout`` of the call (kube/client.py): a second is enough here, and nonsense is refused, so it is read."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": "default"},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    path = f"/api/v1/namespaces/default/pods/{pod}/binding"
    user = kubectl.as_user(*CONTROL)
    assert user.tell("create", "--raw", f"{path}?timeout=nonsense", "-f", "-", stdin=binding).returncode != 0
    assert user.tell("create", "--raw", f"{path}?timeout=2s", "-f", "-", stdin=binding).returncode == 0
