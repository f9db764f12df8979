"""What somebody can do on the real API server with the stolen token of a node's agent (docs/operate/security.md)."""

import itertools
import json
import re
import time
from collections.abc import Callable, Generator
from typing import Any
from uuid import UUID

import pytest
import yaml

from fractile.agent.limits.isolation import CGPU, ISOLATION, OPTIONAL, judge
from fractile.dialects import table
from fractile.lab.cluster import objects
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import PodRequest, Role
from fractile.model.units import CardUUID, ContainerName, MemoryUnit, MiB, NodeName, Percent
from fractile.wire.fractile import isolation, placement
from tests.builders import container, pod
from tests.contract.kubectl import Kubectl

TEAM = "stolen-team"
MINE, OTHER = "stolen-n1", "stolen-n2"  # nodes; the token is that of the first one's agent
SYSTEM = "fractile-system"
AGENT = "fractile-agent"
ITS_NODE = "changes and deletes pods of its own node only"
NOTHING_ELSE = "an agent changes nothing of a pod but the annotations"
POLICY = "agents.fractile.dev"
OWN = (placement.CHOICE_ANNOTATION, isolation.STATE)
COURTESY = ("ALIYUN_COM_GPU_MEM_ASSIGNED", "tencent.com/gpu-assigned", "hami.io/bind-phase")
_names = itertools.count()


def agent_pod(node: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"agent-{node}", "namespace": SYSTEM},
        "spec": {"nodeName": node, "serviceAccountName": AGENT, "containers": [{"name": "agent", "image": "i"}]},
    }


class Thief:
    """``stolen`` is the token of the agent's pod on MINE, ``other`` that of the agent on OTHER; ``root`` may do all."""

    def __init__(self, root: Kubectl) -> None:
        self.root = root
        self.stolen, self.other = self._token(MINE), self._token(OTHER)

    def _token(self, node: str) -> Kubectl:
        bound = ("--bound-object-kind=Pod", f"--bound-object-name=agent-{node}")
        return self.root.with_token(self.root("create", "token", AGENT, "-n", SYSTEM, *bound).strip())

    def pod(self, node: str = "", *, mounts: int = 0, containers: int = 1, **metadata: Any) -> str:
        """A pod of a tenant on that node."""
        name = f"p-{next(_names)}"
        some = [{"name": "v", "mountPath": f"/etc/a/folder/of/the/application/{i}"} for i in range(mounts)]
        spec: dict[str, Any] = {
            "schedulerName": "nobody",
            "containers": [{"name": f"c{n}", "image": "i", "volumeMounts": some} for n in range(containers)],
            "volumes": [{"name": "v", "emptyDir": {}}],
        }
        made = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": TEAM, **metadata},
            "spec": {**spec, **({"nodeName": node} if node else {})},
        }
        self.root("create", "-f", "-", stdin=made)
        return name

    def read(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.root("-n", TEAM, "get", "pod", name, "-o", "json"))
        return found


@pytest.fixture(scope="module")
def thief(kubectl: Kubectl) -> Generator[Thief]:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": AGENT, "namespace": SYSTEM}}
    given = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": "stolen"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "fractile:agent"},
        "subjects": [{"kind": "ServiceAccount", "name": AGENT, "namespace": SYSTEM}],
    }
    nodes = [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}} for name in (MINE, OTHER)]
    team = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
    agents = [agent_pod(name) for name in (MINE, OTHER)]
    items = [team, account, given, *nodes, *agents]
    kubectl.apply({"apiVersion": "v1", "kind": "List", "items": items})
    found = Thief(kubectl)
    probe = found.pod(OTHER)
    deadline = time.monotonic() + 30
    while ITS_NODE not in (said := found.stolen.tell(*labelled(probe)).stderr):
        assert time.monotonic() < deadline, said
        time.sleep(0.2)
    yield found
    for agent in agents:
        kubectl("delete", "pod", agent["metadata"]["name"], "-n", SYSTEM, "--grace-period=0", "--force")


def patched(name: str, body: object, *more: str) -> tuple[str, ...]:
    return ("-n", TEAM, "patch", "pod", name, "--type=merge", "-p", json.dumps(body, ensure_ascii=False), *more)


def annotated(name: str, **annotations: str | None) -> tuple[str, ...]:
    return patched(name, {"metadata": {"annotations": annotations}})


def labelled(name: str) -> tuple[str, ...]:
    return patched(name, {"metadata": {"labels": {"stolen": "yes"}}})


def refusal(who: Kubectl, *args: str, stdin: object = "") -> str:
    done = who.tell(*args, stdin=stdin)
    assert done.returncode != 0, f"it was taken: {done.stdout}"
    return done.stderr


# ── what the agent itself needs ──────────────────────────────────────────────────────────────────────────────────────


def test_it_writes_the_annotations_of_the_agent_on_pods_of_its_node(thief: Thief) -> None:
    name = thief.pod(MINE, annotations={"mine": "yes"})
    for key in (*OWN, *COURTESY):
        thief.stolen(*annotated(name, **{key: "x"}))
        thief.stolen(*annotated(name, **{key: "y"}))
        assert thief.read(name)["metadata"]["annotations"] == {"mine": "yes", key: "y"}
        thief.stolen(*annotated(name, **{key: None}))
    thief.root("-n", TEAM, "annotate", "pod", name, "mine-")
    thief.stolen(*annotated(name, **{isolation.STATE: "off: x"}))  # the first one of a pod
    assert thief.read(name)["metadata"]["annotations"] == {isolation.STATE: "off: x"}


def test_it_does_so_for_very_large_pods_too(thief: Thief) -> None:
    """What an expression may cost is limited."""
    many = {f"example.com/key-{n}": "x" * 500 for n in range(200)}
    name = thief.pod(MINE, mounts=200, containers=10, annotations=many, labels={f"l{n}": "y" for n in range(100)})
    thief.stolen(*annotated(name, **{isolation.STATE: "off: x"}))
    assert NOTHING_ELSE in refusal(thief.stolen, *labelled(name))


def test_the_policy_names_the_annotations_that_agents_write() -> None:
    everything = list(yaml.safe_load_all(objects.manifests()))
    (policy,) = [d for d in everything if d["kind"].endswith("Policy") and d["metadata"]["name"] == POLICY]
    (named,) = [v["expression"] for v in policy["spec"]["variables"] if v["name"] == "own"]
    assert set(re.findall(r"'([^']+)'", named)) == {*OWN, *COURTESY}
    written: set[str] = set()
    for limits in ({"aliyun.com/gpu-mem": 1}, {"tencent.com/vcuda-core": 100}, {"nvidia.com/gpu": 1}):
        request = table.parse_pod(pod("p", container(limits={k: str(v) for k, v in limits.items()})), MemoryUnit.MiB)
        assert isinstance(request, PodRequest)
        written |= table.assigned_annotations(request).keys()
    assert written == set(COURTESY)


def test_it_deletes_pods_of_its_node(thief: Thief) -> None:
    """With ``--outside-ledger evict``."""
    thief.stolen("-n", TEAM, "delete", "pod", thief.pod(MINE), "--wait=false")


# ── pods of its node ─────────────────────────────────────────────────────────────────────────────────────────────────


CHANGES = {
    "an image": {"spec": {"containers": [{"name": "c0", "image": "evil"}]}},
    "a deadline": {"spec": {"activeDeadlineSeconds": 1}},
    "a label": {"metadata": {"labels": {"app": "evil"}}},
    "a label that goes": {"metadata": {"labels": {"app": None}}},
    "an annotation": {"metadata": {"annotations": {"evil": "yes"}}},
    "an annotation that changes": {"metadata": {"annotations": {"mine": "no"}}},
    "an annotation that goes": {"metadata": {"annotations": {"mine": None}}},
    "all annotations": {"metadata": {"annotations": None}},
    "an annotation beside its own": {"metadata": {"annotations": {isolation.STATE: "off: x", "evil": "yes"}}},
    "a finalizer": {"metadata": {"finalizers": ["example.com/never"]}},
    "a prefix of names": {"metadata": {"generateName": "evil-"}},
    "an owner": {
        "metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "x", "uid": "1"}]},
    },
}


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in CHANGES.items()])
def test_of_a_pod_of_its_node_it_changes_nothing_else(thief: Thief, change: dict[str, Any]) -> None:
    name = thief.pod(MINE, annotations={"mine": "yes"}, labels={"app": "x"})
    before = thief.read(name)
    assert NOTHING_ELSE in refusal(thief.stolen, *patched(name, change))
    assert thief.read(name) == before


def test_nor_what_keeps_a_pod_of_its_node_from_ending(thief: Thief) -> None:
    name = thief.pod(MINE, finalizers=["example.com/kept"])
    assert NOTHING_ELSE in refusal(thief.stolen, *patched(name, {"metadata": {"finalizers": None}}))
    thief.root(*patched(name, {"metadata": {"finalizers": None}}))


LONGEST = {placement.CHOICE_ANNOTATION: 65536, isolation.STATE: 1024, **dict.fromkeys(COURTESY, 64)}


def control(thief: Thief) -> Kubectl:
    return thief.root.as_user("fractile-control-plane", "fractile:control-plane", "system:masters")


def choice(containers: int, cards: int) -> str:
    """A placement of containers with long names on that many cards each."""
    slices = tuple(Slice(CardUUID(f"GPU-{UUID(int=n)}"), MiB(2**20), Percent(100), slots=1) for n in range(cards))
    names = [ContainerName(f"{n:03}".ljust(63, "c")) for n in range(containers)]
    some = tuple(ContainerPlacement(name, Role.APP, slices) for name in names)
    return placement.encode(Placement(NodeName("n" * 63), some))


@pytest.mark.parametrize(("containers", "cards"), [(placement.MAX_CONTAINERS, 1), (16, 16), (1, placement.MAX_SLICES)])
def test_it_reports_the_largest_choice_of_cards_that_a_pod_can_have(thief: Thief, containers: int, cards: int) -> None:
    text = choice(containers, cards)
    print(f"containers={containers} cards={cards} bytes={len(text)}")
    thief.stolen(*annotated(thief.pod(MINE), **{placement.CHOICE_ANNOTATION: text}))


def test_a_choice_may_always_be_as_long_as_the_placement(thief: Thief) -> None:
    text = choice(64, 16)  # nobody has such a pod
    assert len(text) > LONGEST[placement.CHOICE_ANNOTATION]
    name = thief.pod(MINE)
    control(thief)(*annotated(name, **{placement.ANNOTATION: text}))
    thief.stolen(*annotated(name, **{placement.CHOICE_ANNOTATION: text}))


@pytest.mark.parametrize("key", LONGEST)
@pytest.mark.parametrize("letter", ["x", "\U0001f600"], ids=["plain", "four bytes each"])
def test_it_writes_no_annotation_that_is_longer_than_it_can_need_to_be(thief: Thief, key: str, letter: str) -> None:
    name, most = thief.pod(MINE), LONGEST[key] // len(letter.encode())
    said = refusal(thief.stolen, *annotated(name, **{key: letter * (most + 1)}))
    assert "longer than its contents need" in said
    thief.stolen(*annotated(name, **{key: letter * most}))
    control(thief)(*annotated(name, **{key: "x" * 70_000}))  # as an agent before this policy may have
    thief.stolen(*annotated(name, **{next(k for k in OWN if k != key): "x"}))


def test_what_the_agent_says_of_isolation_fits() -> None:
    asking = pod("p", container(), annotations={ISOLATION: "off"})
    for labels in ({ISOLATION: "off"}, {CGPU: "true"}, {OPTIONAL: "true"}):
        verdict = judge(asking, labels, {})
        assert verdict.off
        assert 2 * len(isolation.encode(verdict.reason)) < LONGEST[isolation.STATE]


# ── pods of other nodes ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("node", [OTHER, ""], ids=["of another node", "of no node yet"])
def test_of_other_pods_it_changes_and_deletes_nothing(thief: Thief, node: str) -> None:
    name = thief.pod(node)
    before = thief.read(name)
    for change in CHANGES.values():
        said = refusal(thief.stolen, *patched(name, change))
        assert ITS_NODE in said or "written by Fractile alone" in said, said
    for key in COURTESY:
        assert ITS_NODE in refusal(thief.stolen, *annotated(name, **{key: "true"}))
    for key in (*OWN, placement.ANNOTATION):
        refusal(thief.stolen, *annotated(name, **{key: "{}"}))
    assert ITS_NODE in refusal(thief.stolen, "-n", TEAM, "delete", "pod", name, "--wait=false")
    assert thief.read(name) == before


def test_nor_pods_of_its_own_namespace_on_other_nodes(thief: Thief) -> None:
    """Such as the control plane, or the agents of other nodes."""
    name = f"agent-{OTHER}"
    assert ITS_NODE in refusal(thief.stolen, "-n", SYSTEM, "delete", "pod", name, "--wait=false")
    assert ITS_NODE in refusal(
        thief.stolen, "-n", SYSTEM, "patch", "pod", name, "--type=merge", "-p", '{"metadata":{"labels":{"a":"b"}}}'
    )


def test_a_token_without_a_node_changes_and_deletes_no_pod(thief: Thief) -> None:
    unbound = thief.root.with_token(thief.root("create", "token", AGENT, "-n", SYSTEM).strip())
    name = thief.pod(MINE)
    for args in (annotated(name, **{COURTESY[0]: "true"}), ("-n", TEAM, "delete", "pod", name, "--wait=false")):
        assert "this agent does not say which node it is on" in refusal(unbound, *args)


def test_an_agent_with_a_certificate_is_held_to_its_node_too(thief: Thief) -> None:
    """As on local clusters."""
    agent = thief.root.as_user(f"fractile:agent:{MINE}", "fractile:agents")
    mine, other = thief.pod(MINE), thief.pod(OTHER)
    agent(*annotated(mine, **{COURTESY[0]: "true"}))
    assert NOTHING_ELSE in refusal(agent, *labelled(mine))
    assert ITS_NODE in refusal(agent, *annotated(other, **{COURTESY[0]: "true"}))
    assert ITS_NODE in refusal(agent, "-n", TEAM, "delete", "pod", other, "--wait=false")
    agent("-n", TEAM, "delete", "pod", mine, "--wait=false")


def test_others_change_pods_as_before(thief: Thief) -> None:
    name = thief.pod(OTHER)
    thief.root(*labelled(name))
    thief.root("-n", TEAM, "delete", "pod", name, "--wait=false")


# ── everything else ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_it_evicts_nobody_by_the_eviction_api(thief: Thief) -> None:
    """Which does not say where the pod is, so that no policy could limit it to a node."""
    for node in (MINE, OTHER):
        name = thief.pod(node)
        path = f"/api/v1/namespaces/{TEAM}/pods/{name}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": TEAM}}
        assert "(Forbidden)" in refusal(thief.stolen, "create", "--raw", path, "-f", "-", stdin=body)


@pytest.mark.parametrize("subresource", ["status", "resize"])
def test_no_subresource_of_a_pod_is_a_way_around(thief: Thief, subresource: str) -> None:
    name = thief.pod(MINE)
    said = refusal(thief.stolen, *patched(name, {"metadata": {"labels": {"a": "b"}}}, f"--subresource={subresource}"))
    assert "(Forbidden)" in said


# Beside the agent's own right to list them: test_device_policy.py lets everybody read, on the same server.
READER = {(verb, f"extendedresources{part}") for verb in ("get", "list", "watch") for part in ("", "/status")}


def test_it_has_the_rights_of_the_manifest_and_no_others(thief: Thief) -> None:
    """As the API server counts them up, for the namespace of a tenant and for our own; those that all have aside."""
    review = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1"}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    for namespace in (TEAM, SYSTEM, "kube-system"):
        body = {**review, "spec": {"namespace": namespace}}
        told = json.loads(thief.stolen("create", "--raw", path, "-f", "-", stdin=body))["status"]
        assert not told["incomplete"]
        given = {
            (verb, resource)
            for rule in told["resourceRules"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
            if not {"authorization.k8s.io", "authentication.k8s.io"} & set(rule["apiGroups"])
        }
        given -= READER
        assert given == {
            *((verb, "pods") for verb in ("get", "list", "watch", "patch", "delete")),
            *(("get", what) for what in ("nodes", "namespaces", "runtimeclasses", "resourceclaims")),
            *((verb, "events") for verb in ("create", "patch")),
            *((verb, "extendedresources") for verb in ("create", "patch", "delete")),
            ("patch", "extendedresources/status"),
        }


WRITES: dict[str, Callable[[Thief], tuple[str, ...]]] = {
    "a label of its node": lambda _: ("label", "node", MINE, "pool=mine"),
    "a label of a namespace": lambda _: ("label", "namespace", TEAM, "fractile.dev/visible-devices=allow"),
    "the quota": lambda _: ("-n", SYSTEM, "create", "configmap", "fractile-quota", "--from-literal=a=b"),
    "the lease": lambda _: ("-n", SYSTEM, "delete", "lease", "fractile-control-plane"),
    "a secret": lambda _: ("-n", SYSTEM, "get", "secret", "fractile-webhook"),
    "a token": lambda _: ("-n", SYSTEM, "create", "token", "fractile-control-plane"),
    "a class": lambda _: ("delete", "resourceclasses.fractile.dev", "--all"),
    "a policy": lambda _: ("delete", "validatingadmissionpolicy", "agents.fractile.dev"),
    "the webhook": lambda _: ("delete", "mutatingwebhookconfiguration", "fractile"),
    "somebody else": lambda _: ("--as=system:admin", "get", "pods"),
    "all pods at once": lambda _: ("-n", TEAM, "delete", "--raw", f"/api/v1/namespaces/{TEAM}/pods"),
}


@pytest.mark.parametrize("what", WRITES)
def test_it_gets_hold_of_nothing_else(thief: Thief, what: str) -> None:
    assert "orbidden" in refusal(thief.stolen, *WRITES[what](thief))
