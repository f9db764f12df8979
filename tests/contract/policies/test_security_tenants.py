"""What the strongest user of a namespace can write on the real API server, and what it cannot
(docs/operate/security.md)."""

import itertools
import json
import time
from typing import Any

import pytest

from fractile.dialects import table
from fractile.wire.fractile import isolation, placement
from tests.contract.kubectl import Kubectl

pytestmark = pytest.mark.long

TEAM = "security-team"
OURS = (placement.ANNOTATION, placement.CHOICE_ANNOTATION, isolation.STATE)
SENTENCE = "are written by Fractile alone"
BY_POLICY = "is forbidden: ValidatingAdmissionPolicy"  # two refuse an agent, and one of them is named
ACCOUNT = "system:serviceaccount:fractile-system:"
WORKERS = "security-workers"  # the agents' rights, for accounts without a binding here
ADMINS = "security-admins"  # all rights that RBAC can give, but not system:masters
# What kube-controller-manager, which does not run here, puts together as the role ``admin``.
PARTS_OF_ADMIN = ("system:aggregate-to-admin", "system:aggregate-to-edit", "system:aggregate-to-view")
CONTROL = ("fractile-control-plane", "fractile:control-plane")
COURTESY = {
    "ALIYUN_COM_GPU_MEM_IDX": "0",
    "ALIYUN_COM_GPU_MEM_ASSIGNED": "true",
    "tencent.com/predicate-gpu-idx-0": "0",
    "tencent.com/gpu-assigned": "true",
    "hami.io/vgpu-devices-allocated": "GPU-a,NVIDIA,1024,0:;",
    "hami.io/bind-phase": "success",
}
_names = itertools.count()


def binding(kind: str, role: str, subject: dict[str, str], namespace: str = "") -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": f"security-{role.replace(':', '-')}", **({"namespace": namespace} if namespace else {})},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", **subject}],
    }


def pod(name: str = "", **annotations: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name or f"p-{next(_names)}", "namespace": TEAM, "annotations": annotations},
        "spec": {
            "schedulerName": "nobody",
            "containers": [{"name": "main", "image": "i", "resources": {"limits": {"aliyun.com/gpu-mem": "1"}}}],
        },
    }


class People:
    def __init__(self, root: Kubectl) -> None:
        self.root = root
        self.tenant = root.as_user("tina")
        self.admin = root.as_user("jane", ADMINS)
        self.node = root.as_user("system:node:n1", "system:nodes")
        self.control = root.as_user(*CONTROL)
        accounts = ("system:serviceaccounts", "system:serviceaccounts:fractile-system", WORKERS)
        self.account_of_control = root.as_user(f"{ACCOUNT}fractile-control-plane", *accounts)
        self.agent = root.as_user("fractile:agent:n1", "fractile:agents")
        self.neighbour = root.as_user("fractile:agent:n2", "fractile:agents")
        self.account = root.as_user(f"{ACCOUNT}fractile-agent", *accounts, node="n1")
        self.unclaimed = root.as_user(f"{ACCOUNT}fractile-agent", *accounts)


@pytest.fixture(scope="module")
def people(kubectl: Kubectl) -> People:
    """``tina`` has the role ``admin`` in a namespace, the most that Kubernetes gives to its users."""
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}},
        *(binding("RoleBinding", role, {"kind": "User", "name": "tina"}, TEAM) for role in PARTS_OF_ADMIN),
        binding("ClusterRoleBinding", "cluster-admin", {"kind": "Group", "name": ADMINS}),
        binding("ClusterRoleBinding", "fractile:agent", {"kind": "Group", "name": WORKERS}),
    ]
    kubectl.apply({"apiVersion": "v1", "kind": "List", "items": items})
    found = People(kubectl)
    deadline = time.monotonic() + 30
    forged = pod(**{placement.ANNOTATION: "{}"})
    while SENTENCE not in (said := found.tenant.tell("create", "--dry-run=server", "-f", "-", stdin=forged)).stderr:
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    return found


@pytest.fixture
def placed(people: People) -> str:
    """A pod of the tenant whose placement the control plane has written."""
    made = pod()
    name: str = made["metadata"]["name"]
    people.tenant("create", "-f", "-", stdin=made)
    people.control(*merge(name, {placement.ANNOTATION: "truth"}))
    return name


def merge(name: str, annotations: dict[str, str | None], *more: str) -> tuple[str, ...]:
    body = json.dumps({"metadata": {"annotations": annotations}})
    return ("-n", TEAM, "patch", "pod", name, "--type=merge", "-p", body, *more)


def annotations(people: People, name: str) -> dict[str, str]:
    return json.loads(people.root("-n", TEAM, "get", "pod", name, "-o", "json"))["metadata"].get("annotations", {})


def refusal(who: Kubectl, *args: str, stdin: object = "") -> str:
    done = who.tell(*args, stdin=stdin)
    assert done.returncode != 0, f"it was taken: {done.stdout}"
    return done.stderr


@pytest.mark.parametrize("key", OURS)
def test_a_pod_is_not_created_with_what_fractile_writes(people: People, key: str) -> None:
    for who in (people.tenant, people.admin):
        assert SENTENCE in refusal(who, "create", "-f", "-", stdin=pod(**{key: "{}"}))


@pytest.mark.parametrize("key", OURS)
def test_nor_is_it_given_that_later_or_robbed_of_it(people: People, placed: str, key: str) -> None:
    for who in (people.tenant, people.admin):
        assert SENTENCE in refusal(who, *merge(placed, {key: "forged"}))
    removed = refusal(people.tenant, *merge(placed, {placement.ANNOTATION: None}))
    assert f"{SENTENCE}: do not set, change or remove them" in removed
    assert annotations(people, placed)[placement.ANNOTATION] == "truth"


@pytest.mark.parametrize("subresource", ["status", "resize"])
def test_no_subresource_of_a_pod_is_a_way_around(people: People, placed: str, subresource: str) -> None:
    for who in (people.tenant, people.admin, people.node):
        who.tell(*merge(placed, {placement.ANNOTATION: "forged"}, f"--subresource={subresource}"))
        assert annotations(people, placed)[placement.ANNOTATION] == "truth"
    said = refusal(people.admin, *merge(placed, {placement.ANNOTATION: "x"}, "--subresource=status"))
    assert SENTENCE in said


def test_ephemeral_containers_are_no_way_around(people: People, placed: str) -> None:
    path = f"/api/v1/namespaces/{TEAM}/pods/{placed}/ephemeralcontainers"
    whole = json.loads(people.root("-n", TEAM, "get", "pod", placed, "-o", "json"))
    whole["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "i"}]
    whole["metadata"]["annotations"][placement.ANNOTATION] = "forged"
    people.tenant.tell("replace", "--raw", path, "-f", "-", stdin=whole)
    assert annotations(people, placed)[placement.ANNOTATION] == "truth"


def test_a_binding_carries_no_forged_placement(people: People) -> None:
    made = pod()
    name: str = made["metadata"]["name"]
    people.tenant("create", "-f", "-", stdin=made)
    bound = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": TEAM, "annotations": {placement.ANNOTATION: "forged"}},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    for path in (f"/api/v1/namespaces/{TEAM}/pods/{name}/binding", f"/api/v1/namespaces/{TEAM}/bindings"):
        refusal(people.tenant, "create", "--raw", path, "-f", "-", stdin=bound)  # no right at all
        assert SENTENCE in refusal(people.admin, "create", "--raw", path, "-f", "-", stdin=bound)
    assert "nodeName" not in json.loads(people.root("-n", TEAM, "get", "pod", name, "-o", "json"))["spec"]


def test_controllers_make_no_pod_from_a_template_with_a_placement(people: People) -> None:
    """They have rights of their own; the policy judges them as everybody."""
    controller = people.root.as_user(
        "system:serviceaccount:kube-system:replicaset-controller", "system:serviceaccounts"
    )
    assert SENTENCE in refusal(controller, "create", "-f", "-", stdin=pod(**{placement.ANNOTATION: "{}"}))


def test_an_agent_writes_no_placement_and_speaks_of_pods_of_its_node_only(people: People) -> None:
    made = pod()
    name: str = made["metadata"]["name"]
    made["spec"]["nodeName"] = "n1"
    people.tenant("create", "-f", "-", stdin=made)
    people.control(*merge(name, {placement.ANNOTATION: "truth"}))
    for agent in (people.agent, people.account):
        agent(
            *merge(
                name, {placement.CHOICE_ANNOTATION: "{}", isolation.STATE: "off: x", "tencent.com/gpu-assigned": "true"}
            )
        )
        agent(*merge(name, {placement.CHOICE_ANNOTATION: None}))
        assert BY_POLICY in refusal(agent, *merge(name, {placement.ANNOTATION: "forged"}))
        assert BY_POLICY in refusal(agent, *merge(name, {placement.ANNOTATION: None}))
    for agent in (people.neighbour, people.unclaimed):
        assert BY_POLICY in refusal(agent, *merge(name, {placement.CHOICE_ANNOTATION: "{}"}))
        assert BY_POLICY in refusal(agent, *merge(name, {isolation.STATE: None}))
    assert annotations(people, name)[placement.ANNOTATION] == "truth"


def test_no_other_account_of_our_namespace_writes_a_placement(people: People, placed: str) -> None:
    other = people.root.as_user(
        "system:serviceaccount:fractile-system:other", "system:serviceaccounts:fractile-system", ADMINS
    )
    assert SENTENCE in refusal(other, *merge(placed, {placement.ANNOTATION: "forged"}))
    people.account_of_control(*merge(placed, {placement.ANNOTATION: "moved"}))


def test_an_update_that_leaves_the_placement_alone_passes(people: People, placed: str) -> None:
    people.tenant("-n", TEAM, "label", "pod", placed, "mine=yes")
    assert annotations(people, placed)[placement.ANNOTATION] == "truth"


def test_annotations_of_other_tools_may_be_written_by_whoever_owns_the_pod(people: People) -> None:
    """That is why nothing of ours reads them (tests/dialects/test_forged.py)."""
    people.tenant("create", "--dry-run=server", "-f", "-", stdin=pod(**COURTESY))


def by_class(slots: dict[str, str], init: dict[str, str] | None = None) -> dict[str, Any]:
    """A pod that asks by class and that the webhook does not see. ``init``: amounts of an init container before it."""
    made = pod()
    made["metadata"]["labels"] = {"fractile.dev/webhook": "ignore"}
    made["spec"]["containers"][0]["resources"]["limits"] = {"class.fractile.dev/small": "1", **slots}
    if init is not None:
        made["spec"]["initContainers"] = [{"name": "first", "image": "i", "resources": {"limits": init}}]
    return made


UNSEEN = "admission webhook has not seen it"
GPU, DEVICE = "fractile.dev/gpu", "fractile.dev/device"


def test_the_owner_of_a_namespace_gives_no_class_without_its_slots(people: People) -> None:
    assert UNSEEN in refusal(people.tenant, "create", "-f", "-", stdin=by_class({}))


@pytest.mark.parametrize("slot", [GPU, DEVICE])
@pytest.mark.parametrize("zero", ["0", "00", "0k", "0Ki", "0e0", "0E3", "0.0", "0m", "+0", "-0"])
def test_nor_with_none_of_its_slots(people: People, slot: str, zero: str) -> None:
    """Any zero, however it is written."""
    none = {"class.fractile.dev/small": zero, GPU: zero}
    for made in (by_class({slot: zero}), by_class({GPU: zero, DEVICE: "0"}), by_class({GPU: zero}, none)):
        assert UNSEEN in refusal(people.tenant, "create", "-f", "-", stdin=made)


def test_nor_in_an_init_container(people: People) -> None:
    made = by_class({GPU: "1"}, {"class.fractile.dev/small": "1", GPU: "0"})
    assert UNSEEN in refusal(people.tenant, "create", "-f", "-", stdin=made)


def test_a_class_with_its_slots_may_be_asked_for_without_the_webhook(people: People) -> None:
    for made in (by_class({GPU: "1"}), by_class({DEVICE: "2"}), by_class({GPU: "0", DEVICE: "1"})):
        people.tenant("create", "--dry-run=server", "-f", "-", stdin=made)
    none = by_class({"class.fractile.dev/small": "0k", GPU: "0"})  # asks for nothing
    people.tenant("create", "--dry-run=server", "-f", "-", stdin=none)


def test_each_class_needs_slots_of_its_own_kind_without_the_webhook(people: People) -> None:
    """A container has one class of each kind, so two classes with one kind of slots lack some."""
    second = {"class.fractile.dev/ib": "1"}
    for slots in ({DEVICE: "1"}, {GPU: "1"}, {GPU: "0", DEVICE: "2"}):
        assert UNSEEN in refusal(people.tenant, "create", "-f", "-", stdin=by_class(slots | second))
        init = by_class({GPU: "1"}, slots | second | {"class.fractile.dev/small": "1"})
        assert UNSEEN in refusal(people.tenant, "create", "-f", "-", stdin=init)
    for slots in ({GPU: "1", DEVICE: "1"} | second, {GPU: "1", "class.fractile.dev/ib": "0"}):
        people.tenant("create", "--dry-run=server", "-f", "-", stdin=by_class(slots))


ITSELF = "names its node itself"
MIRROR = {"kubernetes.io/config.mirror": "x"}
LEAVING_OUT = ("fractile.dev/webhook", "hami.io/webhook")


def on_a_node(*labels: str, namespace: str = TEAM, **annotations: str) -> dict[str, Any]:
    """A pod that names its node; the labels leave the webhook out, which refuses others (tests/admission)."""
    made = pod(**annotations)
    made["metadata"] |= {"namespace": namespace, "labels": dict.fromkeys(labels, "ignore")}
    made["spec"]["nodeName"] = "n1"
    return made


def namespace(people: People, name: str, **labels: str) -> str:
    made = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
    people.root("apply", "-f", "-", stdin=made)
    return name


@pytest.mark.parametrize("label", LEAVING_OUT)
@pytest.mark.parametrize("resource", sorted(table.RESOURCES - {"nvidia.com/priority"}))
def test_a_pod_with_devices_names_no_node_where_a_label_leaves_the_webhook_out(
    people: People, label: str, resource: str
) -> None:
    """Nobody would choose its cards, and kube-scheduler counts its slots, so that others wait."""
    made = on_a_node(label)
    made["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    init = on_a_node(label)
    init["spec"]["initContainers"] = [{**made["spec"]["containers"][0], "name": "first"}]
    init["spec"]["containers"][0]["resources"]["limits"] = {}
    for one in (made, init):
        assert ITSELF in refusal(people.admin, "create", "--dry-run=server", "-f", "-", stdin=one)


def test_nor_where_its_namespace_does(people: People) -> None:
    out = namespace(people, "security-left-out", **{"fractile.dev/webhook": "ignore"})
    deadline = time.monotonic() + 30  # the API server learns of the label
    while not (
        done := people.admin.tell("create", "--dry-run=server", "-f", "-", stdin=on_a_node(namespace=out))
    ).stderr:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert ITSELF in done.stderr


def test_nor_as_if_it_were_a_static_one(people: People) -> None:
    """kubelet's own object for a static pod is created by a node."""
    for labels in ((), LEAVING_OUT):
        said = refusal(people.tenant, "create", "-f", "-", stdin=on_a_node(*labels, **MIRROR))
        assert ITSELF in said
        made = on_a_node(*labels, **MIRROR)
        assert ITSELF not in people.node.tell("create", "--dry-run=server", "-f", "-", stdin=made).stderr


def test_it_may_where_an_administrator_allows_its_pods_all_cards(people: People) -> None:
    """Validators of NVIDIA's operator do."""
    allowed = namespace(people, "security-operators", **{"fractile.dev/visible-devices": "allow"})
    made = on_a_node(*LEAVING_OUT, namespace=allowed)
    people.admin("create", "--dry-run=server", "-f", "-", stdin=made)


def test_so_may_a_pod_that_asks_for_none(people: People) -> None:
    for limits in ({}, {"aliyun.com/gpu-mem": "0"}, {"cpu": "1"}, {"example.com/fpga": "1"}):
        made = on_a_node(*LEAVING_OUT)
        made["spec"]["containers"][0]["resources"]["limits"] = limits
        people.tenant("create", "--dry-run=server", "-f", "-", stdin=made)


def test_a_kubelet_labels_no_other_node(people: People) -> None:
    """By labels of nodes pools and isolation are chosen."""
    for name in ("n1", "n2"):
        people.root.apply({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
    label = '{"metadata":{"labels":{"fractile.dev/isolation":"optional"}}}'
    people.node("patch", "node", "n1", "--type=merge", "-p", label)
    other = json.loads(people.root("get", "node", "n2", "-o", "json"))
    other["metadata"]["labels"] = {"fractile.dev/isolation": "optional"}
    said = refusal(people.node, "replace", "--raw", "/api/v1/nodes/n2", "-f", "-", stdin=other)
    assert "not allowed to modify node" in said


def test_a_bound_pod_is_not_given_more_by_its_owner(people: People, placed: str) -> None:
    """What it asks for stands in its specification, which the API server keeps."""
    for amount in ("2", None):
        body = {"spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": amount}}}]}}
        patch = ("-n", TEAM, "patch", "pod", placed, "--type=strategic", "-p", json.dumps(body))
        assert "pod updates may not change fields" in refusal(people.tenant, *patch)
        assert "only cpu and memory resources are mutable" in refusal(people.admin, *patch, "--subresource=resize")


@pytest.mark.parametrize(
    ("verb", "what", "namespace"),
    [
        ("patch", "nodes", ""),
        ("patch", "nodes/status", ""),
        ("patch", "namespaces", TEAM),
        ("create", "extendedresources.fractile.dev", ""),
        ("patch", "extendedresources.fractile.dev/status", ""),
        ("delete", "extendedresources.fractile.dev", ""),
        ("create", "resourceclasses.fractile.dev", ""),
        ("patch", "resourceclasses.fractile.dev", ""),
        ("delete", "resourceclasses.fractile.dev", ""),
        ("patch", "resourceclasses.fractile.dev/status", ""),
        ("patch", "leases.coordination.k8s.io", "fractile-system"),
        ("patch", "configmaps", "fractile-system"),
        ("update", "leases.coordination.k8s.io", "fractile-system"),
        ("create", "configmaps", "fractile-system"),
        ("get", "secrets", "fractile-system"),
        ("patch", "validatingwebhookconfigurations.admissionregistration.k8s.io", ""),
        ("patch", "validatingadmissionpolicybindings.admissionregistration.k8s.io", ""),
        ("delete", "customresourcedefinitions.apiextensions.k8s.io", ""),
        ("create", "clusterrolebindings.rbac.authorization.k8s.io", ""),
        ("create", "tokenreviews.authentication.k8s.io", ""),
        ("get", "nodes/proxy", ""),
        ("create", "pods", "fractile-system"),
        ("create", "serviceaccounts", "fractile-system"),
        ("create", "serviceaccounts/token", "fractile-system"),
        ("patch", "mutatingwebhookconfigurations.admissionregistration.k8s.io", ""),
        ("delete", "validatingadmissionpolicies.admissionregistration.k8s.io", ""),
        ("create", "pods/binding", TEAM),
        ("patch", "pods/status", TEAM),
        ("patch", "resourceclaims.resource.k8s.io/status", TEAM),  # what is allocated, and for which pod
        ("create", "resourceslices.resource.k8s.io", ""),
        ("impersonate", "groups", ""),
    ],
)
def test_what_the_owner_of_a_namespace_has_no_right_to(people: People, verb: str, what: str, namespace: str) -> None:
    name, _, subresource = what.partition("/")
    more = (*((f"--subresource={subresource}",) if subresource else ()), *(("-n", namespace) if namespace else ()))
    done = people.tenant.tell("auth", "can-i", verb, name, *more)
    assert done.stdout.strip() == "no", (done.stdout, done.stderr)
    assert people.admin.tell("auth", "can-i", verb, name, *more).stdout.strip() == "yes"
