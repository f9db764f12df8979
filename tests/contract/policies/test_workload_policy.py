"""Whoever applies a workload is warned where its pods would be refused, on the real API server (37-workloads.yaml).

A pod and a template with the same specification are put to the server: the sentence by which the pod is refused is the
one by which the template is warned of, and where the pod is taken nothing is said.
"""

import copy
import json
import time
from typing import Any

import pytest

from tests import mount_places
from tests.contract.kubectl import Kubectl
from tests.contract.policies.test_container_policy import FROM_A_FIELD, cuda, large, mount, pod, visible

TEAM = "workload-team"
DRIVERS = "workload-drivers"
WARNS = "the pods of this template will be refused: "
KINDS = {
    "Deployment": "apps/v1",
    "ReplicaSet": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Job": "batch/v1",
    "CronJob": "batch/v1",
}
PLACED = {"metadata": {"annotations": {"fractile.dev/placement": "{}"}}}


def workload(made: dict[str, Any], kind: str = "Deployment", namespace: str = TEAM) -> dict[str, Any]:
    """A workload whose template is the pod."""
    own = copy.deepcopy(made)
    meta = {k: v for k, v in own["metadata"].items() if k in ("annotations", "labels")}
    own["spec"].setdefault("restartPolicy", "Never" if "Job" in kind else "Always")
    labels = {"app": "a", **meta.pop("labels", {})}
    template = {"metadata": {"labels": labels, **meta}, "spec": own["spec"]}
    spec: dict[str, Any] = {"template": template}
    if "Job" not in kind:
        spec["selector"] = {"matchLabels": {"app": "a"}}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}
    name = {"name": made["metadata"]["name"], "namespace": namespace}
    return {"apiVersion": KINDS[kind], "kind": kind, "metadata": name, "spec": spec}


def told(who: Kubectl, thing: dict[str, Any], verb: str = "create") -> str:
    """What the server warns of; it takes the thing."""
    done = who.tell(verb, "--dry-run=server", "-f", "-", stdin=thing)
    assert done.returncode == 0, done.stderr
    return done.stderr


def refusal(who: Kubectl, made: dict[str, Any]) -> str:
    """By which the server refuses the pod; "" when it does not."""
    made = copy.deepcopy(made)
    made["metadata"]["namespace"] = TEAM
    done = who.tell("create", "--dry-run=server", "-f", "-", stdin=made)
    return done.stderr.partition(" denied request: ")[2].strip() if done.returncode else ""


@pytest.fixture(scope="module")
def tina(kubectl: Kubectl) -> Kubectl:
    """An administrator of all that RBAC gives, once the policies are in force."""
    allowed = {"labels": {"fractile.dev/visible-devices": "allow"}}
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}},
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DRIVERS, **allowed}},
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "workload-admins"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}
                for name in ("workload-admins", "system:serviceaccounts:kube-system")
            ]
            + [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "system:kube-controller-manager"}],
        },
    ]
    kubectl.apply({"apiVersion": "v1", "kind": "List", "items": items})
    who = kubectl.as_user("tina", "workload-admins")
    for refused in (pod(mount("/etc")), pod(visible(value="all"), gpu=False), placed(), hidden_node()):
        deadline = time.monotonic() + 30
        while not (refusal(who, refused) and WARNS in told(who, workload(refused))):
            assert time.monotonic() < deadline, f"{refusal(who, refused)!r}, {told(who, workload(refused))!r}"
            time.sleep(0.2)
    return who


def placed() -> dict[str, Any]:
    made = pod({})
    made["metadata"]["annotations"] = {"fractile.dev/placement": "{}"}
    return made


def hidden_node() -> dict[str, Any]:
    """It names its node, and a label leaves the webhook out."""
    made = pod({})
    made["metadata"]["labels"] = {"fractile.dev/webhook": "ignore"}
    made["spec"]["nodeName"] = "n1"
    return made


def by_class(container: dict[str, Any]) -> dict[str, Any]:
    """With its slots, so that class.fractile.dev, which warns of no template, takes it."""
    made = pod(container, resource="class.fractile.dev/small")
    made["spec"]["containers"][0]["resources"]["limits"]["fractile.dev/gpu"] = "1"
    return made


def named_node(container: dict[str, Any], *, gpu: bool = True) -> dict[str, Any]:
    made = pod(container, gpu=gpu)
    made["spec"]["nodeName"] = "n1"
    return made


REFUSED = {
    **{f"mount {path}": pod(mount(path)) for path in mount_places.OURS},
    **{f"led {path}": pod(mount(path)) for path in mount_places.BY_LINKS_OF_THE_KERNEL},
    "a mount of an init container": pod(mount("/etc"), kind="initContainers"),
    "a termination message": pod({"terminationMessagePath": "/etc/ld.so.preload"}),
    "a mount beside a class": by_class(mount("/etc")),
    "a mount beside an amount of HAMi": pod(mount("/etc"), resource="nvidia.com/gpumem"),
    "all cards": pod(visible(value="all"), gpu=False),
    "all cards beside a request": pod(visible(value="all")),
    "cards by a field": pod(visible(**FROM_A_FIELD), gpu=False),
    "an empty variable": pod(visible(value=""), gpu=False),
    **{f"cards by {path}": pod(mount(path), gpu=False) for path in mount_places.CARDS_BY_A_MOUNT},
    "an old image": pod(cuda(), gpu=False),
    "an old image on a node that it names": named_node(cuda()),
    "a placement": placed(),
    "a node that it names, unseen by the webhook": hidden_node(),
}
TAKEN = {
    **{f"mount {path}": pod(mount(path)) for path in mount_places.ELSEWHERE},
    **{f"no cards by {path}": pod(mount(path), gpu=False) for path in mount_places.NO_CARDS_BY_A_MOUNT},
    "nothing": pod({}),
    "a mount without GPUs": pod(mount("/etc"), gpu=False),
    "no card": pod(visible(value="none"), gpu=False),
    "a version of CUDA beside a request": pod(cuda()),
    "a node that it names without GPUs": named_node(cuda(more={"NVIDIA_VISIBLE_DEVICES": "none"}), gpu=False),
}


@pytest.mark.parametrize("made", REFUSED.values(), ids=REFUSED.keys())
def test_a_template_whose_pods_are_refused_is_warned_of_by_the_same_sentence(
    tina: Kubectl, made: dict[str, Any]
) -> None:
    said = refusal(tina, made)
    assert said, "the pod was taken"
    assert f"{WARNS}{said}" in told(tina, workload(made))


@pytest.mark.parametrize("made", TAKEN.values(), ids=TAKEN.keys())
def test_of_a_template_whose_pods_are_taken_nothing_is_said(tina: Kubectl, made: dict[str, Any]) -> None:
    assert refusal(tina, made) == ""
    assert WARNS not in told(tina, workload(made))


ITSELF = f"{WARNS}the pod asks for GPUs and names its node itself"


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-mem", "nvidia.com/gpu", "class.fractile.dev/small"])
def test_a_template_that_names_a_node_is_warned_of_where_the_webhook_will_refuse_its_pods(
    tina: Kubectl, resource: str
) -> None:
    """No label leaves the webhook out, so the policy of pods leaves them to it (tests/admission)."""
    made = named_node({})
    made["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    for kind in KINDS:
        assert ITSELF in told(tina, workload(made, kind))
    assert told(tina, workload(made, namespace=DRIVERS)) == ""
    assert told(tina, workload(made, namespace="kube-system")) == "", "about which the webhook is not asked"
    assert ITSELF in told(tina, workload(hidden_node(), namespace="kube-system"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_workload_is_looked_at(tina: Kubectl, kind: str) -> None:
    for made in (pod(mount("/etc")), pod(visible(value="all"), gpu=False), placed(), hidden_node()):
        assert WARNS in told(tina, workload(made, kind))
    assert WARNS not in told(tina, workload(pod({}), kind))


def test_a_change_of_a_workload_is_warned_of_too_and_it_is_stored(tina: Kubectl) -> None:
    made = workload(pod({}))
    tina.apply(made)
    made["spec"]["template"]["spec"]["containers"][0] |= mount("/etc")
    done = tina.tell("apply", "--server-side", "-f", "-", stdin=made)
    assert WARNS in done.stderr
    stored = json.loads(tina("-n", TEAM, "get", "deployment", made["metadata"]["name"], "-o", "json"))
    assert stored["spec"]["template"]["spec"]["containers"][0]["volumeMounts"][0]["mountPath"] == "/etc"


@pytest.mark.parametrize("path", ["/a{}", "/etc/my-application/conf.d/some-rather-long-name-of-a-file-{}.conf"])
def test_a_very_large_template_is_judged_like_any_other(tina: Kubectl, path: str) -> None:
    made = large(path)
    assert told(tina, workload(made)) == ""
    made["spec"]["containers"][-1]["volumeMounts"] = [
        *made["spec"]["containers"][-1]["volumeMounts"][:-1],
        {"name": "v", "mountPath": "/etc/ld.so.preload"},
    ]
    assert WARNS in told(tina, workload(made))


@pytest.mark.parametrize("resource", ["class.fractile.dev/small", "nvidia.com/gpumem", "nvidia.com/gpucores"])
def test_what_the_webhook_adds_to_the_pods_is_not_missed_in_the_template(tina: Kubectl, resource: str) -> None:
    """With the slot that the webhook adds the container asks for a GPU, and may say its version of CUDA."""
    assert told(tina, workload(pod(cuda(), resource=resource))) == ""


def test_where_an_administrator_allows_it_nothing_is_said(tina: Kubectl) -> None:
    for made in (pod(visible(value="all"), gpu=False), hidden_node()):
        assert told(tina, workload(made, "DaemonSet", DRIVERS)) == ""


def test_controllers_are_not_warned(tina: Kubectl, kubectl: Kubectl) -> None:
    made = pod(mount("/etc"))
    account = "system:serviceaccount:kube-system:deployment-controller"
    manager = kubectl.as_user("system:kube-controller-manager")
    assert told(manager, workload(made)) == ""
    assert told(kubectl.as_user(account, "system:serviceaccounts:kube-system"), workload(made)) == ""
    owned = workload(made, "ReplicaSet")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "a", "uid": "b", "controller": True}
    owned["metadata"]["ownerReferences"] = [owner]
    assert told(tina, owned) == ""
