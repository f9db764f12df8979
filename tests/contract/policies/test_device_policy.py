"""Who may write ExtendedResources: the agent of the node, on the real API server; forged ones are refused."""

import copy
import json
import time
from collections.abc import Callable, Generator
from typing import Any, cast

import msgspec
import pytest
import yaml

from fractile.lab.cluster import objects
from fractile.model.card import Card
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import object_name
from tests.contract.kubectl import Kubectl

ADMIN_GROUP = "cluster-admins"
AGENT = "system:serviceaccount:fractile-system:fractile-agent"
CONTROL = ("fractile-control-plane", "fractile:control-plane")
CARD = Card(CardUUID("GPU-policy"), 0, "Tesla V100", MiB(16276))
NAME = object_name(CARD.uuid)
READER = {  # kubectl reads before it patches
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {"name": "policy-test-reader"},
    "rules": [
        {
            "apiGroups": ["fractile.dev"],
            "resources": ["extendedresources", "extendedresources/status"],
            "verbs": ["get", "list", "watch"],
        }
    ],
}
RIGHTS = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        READER,
        *(
            {
                "apiVersion": "rbac.authorization.k8s.io/v1",
                "kind": "ClusterRoleBinding",
                "metadata": {"name": f"policy-test-{role.replace(':', '-')}"},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [subject],
            }
            for role, subject in (
                ("cluster-admin", {"kind": "Group", "name": ADMIN_GROUP, "apiGroup": "rbac.authorization.k8s.io"}),
                (
                    "fractile:agent",
                    {"kind": "ServiceAccount", "name": "fractile-agent", "namespace": "fractile-system"},
                ),
                (
                    "policy-test-reader",
                    {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"},
                ),
            )
        ),
    ],
}
ACCOUNT = {
    "apiVersion": "v1",
    "kind": "ServiceAccount",
    "metadata": {"name": "fractile-agent", "namespace": "fractile-system"},
}


def written(node: str, **spec: object) -> dict[str, Any]:
    """What the agent of that node would apply for the card."""
    found = cast(dict[str, Any], msgspec.to_builtins(extended_resource.from_card(CARD, NodeName(node))))
    found["spec"] |= spec
    return found


def status(**fields: object) -> tuple[str, ...]:
    """Arguments of kubectl that patch the card's status."""
    patch = json.dumps({"status": fields})
    return "patch", "er", NAME, "--subresource=status", "--type=merge", "-p", patch


class People:
    """Everybody who might write a device."""

    def __init__(self, kubectl: Kubectl) -> None:
        self.root = kubectl
        self.agent = kubectl.as_user("fractile:agent:n1", "fractile:agents")
        self.neighbour = kubectl.as_user("fractile:agent:n2", "fractile:agents")
        self.account = kubectl.as_user(AGENT, "system:serviceaccounts", node="n1")
        self.unclaimed = kubectl.as_user(AGENT, "system:serviceaccounts")
        self.control = kubectl.as_user(*CONTROL)
        self.admin = kubectl.as_user("jane", ADMIN_GROUP)


@pytest.fixture(scope="module")
def people(kubectl: Kubectl) -> People:
    kubectl.apply(ACCOUNT)
    kubectl.apply(RIGHTS)
    found = People(kubectl)
    deadline = time.monotonic() + 30.0
    while not found.admin.tell("create", "--dry-run=server", "-f", "-", stdin=written("n1")).returncode:
        assert time.monotonic() < deadline, "the policy is not in force"
        time.sleep(0.2)
    return found


@pytest.fixture
def card(people: People) -> Generator[str]:
    """The object of a card of n1, as its agent made it."""
    people.agent.apply(written("n1"))
    yield NAME
    people.root("delete", "er", NAME, "--ignore-not-found")


def refusal(who: Kubectl, *args: str, stdin: object = "") -> str:
    done = who.tell(*args, stdin=stdin)
    assert done.returncode != 0, f"it was taken: {done.stdout}"
    return done.stderr


APPLY = ("apply", "--server-side", "--force-conflicts", "-f", "-")


@pytest.mark.parametrize("who", ["agent", "account"])
def test_an_agent_writes_the_devices_of_its_node_and_their_status(people: People, who: str) -> None:
    agent: Kubectl = getattr(people, who)
    agent.apply(written("n1"))
    agent.apply(written("n1", model="Tesla V100-SXM2"))
    agent(*status(phase="PartlyBound", used={"memory": "1Gi", "slices": 1}))
    agent("delete", "er", NAME, "--wait=false")


@pytest.mark.parametrize("who", ["agent", "account"])
def test_an_agent_makes_no_devices_of_another_node(people: People, who: str) -> None:
    told = refusal(getattr(people, who), *APPLY, stdin=written("n2"))
    assert "the agent of node n1 writes the devices of its own node only, not those of node n2" in told


def test_the_agent_of_another_node_changes_nothing(people: People, card: str) -> None:
    assert "own node only, not those of node n1" in refusal(people.neighbour, *APPLY, stdin=written("n1", model="x"))
    assert "own node only" in refusal(people.neighbour, *status(phase="Unhealthy", reason="Forged"))
    assert "own node only" in refusal(people.neighbour, "delete", "er", card)


# ── one card, one object, one node ───────────────────────────────────────────────────────────────────────────────────

STAYS = "a device stays on its node"
NAMED = "the object is named by its deviceID"
OF_ITS_NODE = "the deviceID of a device other than a GPU ends with a dot and nodeName"
DISAGREE = "name and deviceID do not agree"


def node_of(people: People, name: str = NAME) -> str:
    return people.root("get", "er", name, "-o", "jsonpath={.spec.nodeName}")


def other(name: str, node: str, **spec: object) -> dict[str, Any]:
    """An object of that name on that node."""
    found = written(node, **spec)
    found["metadata"]["name"] = name
    return found


# What a stolen token of n2 may try, and what the definition says of it.
FORGED = [
    pytest.param(other("gpu-mine", "n2"), NAMED, id="another name for n1's card"),
    pytest.param(other("gpu-mine", "n2", deviceID="gpu-POLICY"), NAMED, id="another spelling under another name"),
    pytest.param(other("hca-0.n1", "n2", deviceID="hca-0.n1"), OF_ITS_NODE, id="the id of a device as a GPU"),
    pytest.param(
        other("hca-0.n1", "n2", deviceID="hca-0.n1", type="hca"), OF_ITS_NODE, id="the id of another node's device"
    ),
    pytest.param(
        other("hca-0.x.n2", "n2", deviceID="hca-0.x.n2", type="hca"), OF_ITS_NODE, id="a device of a node x.n2"
    ),
    pytest.param(other("hca-0", "n2", deviceID="hca-0", type="hca"), OF_ITS_NODE, id="a device of no node"),
]


@pytest.fixture
def older_definition(people: People) -> Generator[None]:
    """The CustomResourceDefinition without rules about names and nodes: the policy alone must do."""
    everything = list(yaml.safe_load_all(objects.manifests()))
    (whole,) = [d for d in everything if d["metadata"]["name"] == "extendedresources.fractile.dev"]
    bare = copy.deepcopy(whole)
    schema = bare["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    del schema["x-kubernetes-validations"]
    spec = schema["properties"]["spec"]
    spec["x-kubernetes-validations"] = spec["x-kubernetes-validations"][:2]
    del spec["properties"]["nodeName"]["x-kubernetes-validations"]
    people.root.apply(bare)
    wait(lambda: not people.root.tell(*DRY, stdin=other("gpu-mine", "n2")).returncode)
    yield
    people.root.apply(whole)
    wait(lambda: bool(people.root.tell(*DRY, stdin=other("gpu-mine", "n2")).returncode))


DRY = ("create", "--dry-run=server", "-f", "-")


def wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30.0
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.mark.parametrize(("forged", "sentence"), FORGED)
def test_no_card_has_a_second_object(people: People, card: str, forged: dict[str, Any], sentence: str) -> None:
    """Not even one that whoever the API server asks no rights of has written."""
    for who in (people.neighbour, people.root):
        assert sentence in refusal(who, *APPLY, stdin=forged)
    assert node_of(people) == "n1"


@pytest.mark.usefixtures("older_definition")
def test_nor_where_the_definition_of_the_objects_is_older(people: People) -> None:
    for forged, _ in (param.values for param in FORGED):
        assert DISAGREE in refusal(people.neighbour, *APPLY, stdin=cast(dict[str, Any], forged))
    people.neighbour.apply(other("hca-0.n2", "n2", deviceID="hca_0.n2", type="hca"))
    people.neighbour("delete", "er", "hca-0.n2", "--wait=false")
    people.agent.apply(written("n1"))
    told = refusal(people.neighbour, *APPLY, stdin=written("n2"))
    assert "the device is on node n1; the agent of node n2 can publish it when that object is deleted" in told
    assert f"kubectl delete extendedresource {NAME}" in told
    people.control(*status(phase="Lost", reason="NodeLost"))
    assert "the device is on node n1" in refusal(people.neighbour, *APPLY, stdin=written("n2"))
    people.agent("delete", "er", NAME, "--wait=false")


@pytest.mark.parametrize("phase", ["Available", "Lost"])
def test_a_card_moves_to_no_other_node_while_its_object_exists(people: People, card: str, phase: str) -> None:
    if phase == "Lost":
        people.control(*status(phase="Lost", reason="NodeLost"))
    for who in (people.neighbour, people.agent, people.root):
        assert STAYS in refusal(who, *APPLY, stdin=written("n2"))
    assert node_of(people) == "n1"


def test_a_card_that_was_carried_to_another_machine_is_published_there_when_its_object_is_deleted(
    people: People, card: str
) -> None:
    people.admin("delete", "er", card)
    people.neighbour.apply(written("n2"))
    assert node_of(people) == "n2"
    assert STAYS in refusal(people.agent, *APPLY, stdin=written("n1"))
    people.admin("delete", "er", card)
    people.agent.apply(written("n1"))
    assert node_of(people) == "n1"


def test_an_object_cannot_be_made_to_outlive_its_deletion(people: People, card: str) -> None:
    forged = written("n1")
    forged["metadata"]["finalizers"] = ["example.com/never"]
    assert "an agent gives its devices no finalizers" in refusal(people.agent, *APPLY, stdin=forged)
    people.agent.apply(written("n1"))


def test_an_object_bears_no_label_of_another_node(people: People) -> None:
    """By the label an agent finds its own."""
    forged = written("n1")
    forged["metadata"]["labels"]["fractile.dev/node"] = "n2"
    assert "no other node in the label fractile.dev/node" in refusal(people.agent, *APPLY, stdin=forged)


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"annotations": {"evil": "x" * 250_000}}, id="a long annotation"),
        pytest.param({"annotations": {"evil": ""}}, id="an annotation"),
        pytest.param({"annotations": {extended_resource.DIALECTS_ANNOTATION: "x" * 257}}, id="its own, too long"),
        pytest.param({"labels": {"fractile.dev/node": "n1", "evil": "x"}}, id="a label"),
    ],
)
def test_an_agent_puts_nothing_of_any_length_into_the_metadata_of_its_devices(
    people: People, card: str, metadata: dict[str, Any]
) -> None:
    for name in (card, "gpu-new"):
        forged = written("n1") if name == card else other(name, "n1", deviceID="GPU-new")
        forged["metadata"] |= metadata
        assert "an administrator's to set" in refusal(people.agent, *APPLY, stdin=forged)


def owner(uid: str, kind: str = "Node", name: str = "n1") -> dict[str, str]:
    return {"apiVersion": "v1", "kind": kind, "name": name, "uid": uid}


@pytest.mark.parametrize(
    "metadata",
    [
        pytest.param({"ownerReferences": [owner(f"{n}") for n in range(2)]}, id="two nodes"),
        pytest.param({"ownerReferences": [owner("x" * 65)]}, id="a long uid"),
        pytest.param({"ownerReferences": [owner("1", name="n2")]}, id="another node"),
        pytest.param({"ownerReferences": [owner("1", kind="Pod")]}, id="a pod"),
        pytest.param({"generateName": "evil-"}, id="a generateName"),
    ],
)
def test_a_device_belongs_to_its_node_and_to_nothing_else(people: People, card: str, metadata: dict[str, Any]) -> None:
    for name in (card, "gpu-new"):
        forged = written("n1") if name == card else other(name, "n1", deviceID="GPU-new")
        forged["metadata"] |= metadata
        assert "one owner, the Node that they are on" in refusal(people.agent, *APPLY, stdin=forged)


def test_the_owner_of_a_device_is_made_again_with_its_node(people: People, card: str) -> None:
    """Beside one that an administrator gave it."""
    more = json.dumps({"metadata": {"ownerReferences": [owner("9", kind="ConfigMap", name="mine")]}})
    people.admin("patch", "er", card, "--type=merge", "-p", more)
    for uid in ("1", "2"):
        mine = written("n1")
        mine["metadata"]["ownerReferences"] = [owner(uid)]
        people.agent(*APPLY, stdin=mine)
    found = json.loads(people.admin("get", "er", card, "-o", "json"))["metadata"]["ownerReferences"]
    assert {o["uid"] for o in found} == {"2", "9"}


def test_what_an_administrator_wrote_there_keeps_no_agent_from_its_device(people: People, card: str) -> None:
    people.admin("label", "er", card, "rack=r1")
    people.admin("annotate", "er", card, f"note={'x' * 1000}")
    people.agent(*APPLY, stdin=written("n1", model="another"))
    kept = json.loads(people.admin("get", "er", card, "-o", "json"))["metadata"]
    assert (kept["labels"]["rack"], len(kept["annotations"]["note"])) == ("r1", 1000)


def test_a_token_without_a_node_writes_nothing(people: People) -> None:
    assert "this agent does not say which node it is on" in refusal(people.unclaimed, *APPLY, stdin=written("n1"))


def test_the_control_plane_says_whether_a_device_is_lost_and_nothing_else(people: People, card: str) -> None:
    people.agent(*status(phase="PartlyBound", used={"memory": "1Gi", "slices": 1}))
    sentence = "the control plane says only whether a device is lost with its node"
    for wrong in (
        status(phase="Unhealthy"),
        status(phase="Bound"),
        status(phase="Lost", used={"slices": 0}),
        status(phase="Lost", boundTo=[{"namespace": "n", "pod": "p", "container": "c"}]),
    ):
        assert sentence in refusal(people.control, *wrong)
    people.control(*status(phase="Lost", reason="NodeLost", message="gone"))
    people.control(*status(phase="PartlyBound", reason="", message=""))


def test_nobody_else_forges_a_status(people: People, card: str) -> None:
    sentence = "devices and their statuses are written by the agents of their nodes alone"
    assert sentence in refusal(people.admin, *status(phase="Unhealthy"))
    assert sentence in refusal(people.admin, *APPLY, stdin=written("n1", memory="99Gi"))
    assert sentence in refusal(people.admin, *APPLY, stdin=other("gpu-new", "n9", deviceID="GPU-new"))


def test_an_administrator_may_label_and_delete_a_device(people: People, card: str) -> None:
    people.admin("label", "er", card, "rack=r1")
    people.admin("delete", "er", card)


def test_the_token_of_an_agents_pod_says_its_node(people: People, kubectl: Kubectl) -> None:
    """A real token, not an impersonation: bound to a pod, which is bound to a node."""
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "claimed"}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "agent", "namespace": "fractile-system"},
        "spec": {
            "nodeName": "claimed",
            "serviceAccountName": "fractile-agent",
            "containers": [{"name": "agent", "image": "i"}],
        },
    }
    kubectl.apply(node)
    kubectl.apply(pod)
    try:
        bound = ("--bound-object-kind=Pod", "--bound-object-name=agent")
        token = kubectl("create", "token", "fractile-agent", "-n", "fractile-system", *bound).strip()
        agent = kubectl.with_token(token)
        assert "the agent of node claimed writes" in refusal(agent, *APPLY, stdin=written("n1"))
        agent.apply(written("claimed"))
        agent("delete", "er", NAME, "--wait=false")
    finally:
        kubectl("delete", "pod", "agent", "-n", "fractile-system", "--grace-period=0", "--force")
        kubectl("delete", "node", "claimed")
