"""What a pod's own specification cannot do to the library around it, on the real API server (35-containers.yaml)."""

import itertools
import json
import re
import time
from typing import Any

import pytest
import yaml

from fractile.dialects import table
from fractile.lab.cluster import objects
from fractile.wire.fractile.resource_class import RESOURCE_PREFIX
from tests import mount_places
from tests.contract.kubectl import Kubectl

TEAM = "container-team"
OPERATORS = "container-operators"  # an administrator's label lets its pods name the cards
MOUNTS = "nothing may be mounted there"
VISIBLE = "names GPUs itself, by the variable NVIDIA_VISIBLE_DEVICES"
EMPTY = "has the variable NVIDIA_VISIBLE_DEVICES without a value"
MOUNTED = "names GPUs itself, by a mount at a path that begins with /var/run/nvidia-container-devices"
NO_DEVICES = frozenset({"nvidia.com/priority"})  # asks for nothing by itself
CONTAINERS = ("containers", "initContainers")
_names = itertools.count()


def pod(
    container: dict[str, Any],
    *,
    kind: str = "containers",
    gpu: bool = True,
    resource: str = "aliyun.com/gpu-mem",
    amount: str = "1",
) -> dict[str, Any]:
    """A pod with one GPU container, and the given fields in a container of the given kind."""
    limits = {resource: amount} if gpu else {}
    main: dict[str, Any] = {"name": "main", "image": "i", "resources": {"limits": limits}}
    spec: dict[str, Any] = {
        "schedulerName": "nobody",
        "containers": [main],
        "volumes": [
            {"name": "v", "emptyDir": {}},
            {"name": "block", "persistentVolumeClaim": {"claimName": "c"}},
        ],
    }
    if kind == "containers":
        main |= container
    else:
        spec[kind] = [{"name": "other", "image": "i", **container}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"p-{next(_names)}", "namespace": TEAM},
        "spec": spec,
    }


def mount(path: str, **more: str) -> dict[str, Any]:
    return {"volumeMounts": [{"name": "v", "mountPath": path, **more}]}


def visible(**entry: Any) -> dict[str, Any]:
    return {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", **entry}]}


def manifests(kind: str) -> list[dict[str, Any]]:
    return [o for o in yaml.safe_load_all(objects.manifests()) if o["kind"] == kind]


FROM_A_FIELD = {"valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}


@pytest.fixture(scope="module")
def tina(kubectl: Kubectl) -> Kubectl:
    """An administrator of all that RBAC gives, but not of ``system:masters``: no right is what refuses here."""
    admins = "container-admins"
    items = [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}},
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {"name": OPERATORS, "labels": {"fractile.dev/visible-devices": "allow"}},
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "container-admins"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": admins}],
        },
    ]
    kubectl.apply({"apiVersion": "v1", "kind": "List", "items": items})
    who = kubectl.as_user("tina", admins)
    for refused, sentence in ((pod(mount("/etc")), MOUNTS), (pod(visible(value="all"), gpu=False), VISIBLE)):
        deadline = time.monotonic() + 30
        while sentence not in (said := create(who, refused)):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
    return who


def create(who: Kubectl, thing: dict[str, Any], *, keep: bool = False) -> str:
    """What the server says against it; "" for nothing."""
    done = who.tell("create", *(() if keep else ("--dry-run=server",)), "-f", "-", stdin=thing)
    return done.stderr if done.returncode else ""


def refused(who: Kubectl, things: list[dict[str, Any]], sentence: str) -> bool:
    """Whether the server says that of each of them."""
    return create(who, {"apiVersion": "v1", "kind": "List", "items": things}).count(sentence) == len(things)


@pytest.mark.parametrize("path", mount_places.OURS)
def test_nothing_is_mounted_where_the_library_and_its_limits_are(tina: Kubectl, path: str) -> None:
    device = {"volumeDevices": [{"name": "block", "devicePath": path}]}
    ways = (mount(path), mount(path, subPath="a"), device, {"terminationMessagePath": path})
    assert refused(tina, [pod(way, kind=kind) for kind in CONTAINERS for way in ways], MOUNTS)


@pytest.mark.parametrize("path", mount_places.OTHER_SPELLINGS)
def test_nor_by_another_spelling_of_the_place(tina: Kubectl, path: str) -> None:
    said = create(tina, pod(mount(path)))
    assert said, "it was taken"
    assert MOUNTS in said or "must not contain '..'" in said or "Invalid value" in said, said


@pytest.mark.parametrize("path", mount_places.BY_LINKS_OF_THE_KERNEL)
def test_nor_by_a_path_that_the_kernel_leads_to_the_place(tina: Kubectl, path: str) -> None:
    device = {"volumeDevices": [{"name": "block", "devicePath": path}]}
    ways = (mount(path), mount(path, subPath="a"), device, {"terminationMessagePath": path})
    assert refused(tina, [pod(way, kind=kind) for kind in CONTAINERS for way in ways], MOUNTS)


def test_the_message_names_the_container(tina: Kubectl) -> None:
    for way in (mount("/etc"), {"terminationMessagePath": "/etc"}):
        assert "container main of a pod with GPUs has a mount" in create(tina, pod(way))
        assert "container other of a pod with GPUs has a mount" in create(tina, pod(way, kind="initContainers"))


@pytest.mark.parametrize("path", mount_places.ELSEWHERE)
def test_elsewhere_a_pod_mounts_what_it_likes(tina: Kubectl, path: str) -> None:
    assert create(tina, pod(mount(path))) == ""


def test_a_pod_without_devices_mounts_what_it_likes(tina: Kubectl) -> None:
    assert create(tina, pod(mount("/etc"), gpu=False)) == ""


@pytest.mark.parametrize("amount", ["0", "0k", "0.0", "0e3"])
@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "aliyun.com/gpu-mem", "class.fractile.dev/small"])
def test_a_pod_that_asks_for_none_of_them_is_a_pod_without_devices(tina: Kubectl, resource: str, amount: str) -> None:
    both = {"fractile.dev/gpu": "0"} if resource.startswith("class.") else {}  # as the policy of classes demands
    asks = pod(mount("/etc"), resource=resource, amount=amount)
    asks["spec"]["containers"][0]["resources"]["limits"] |= both
    assert create(tina, asks) == ""


def test_one_container_that_asks_is_enough(tina: Kubectl) -> None:
    asks = pod(mount("/etc"), resource="nvidia.com/gpu", amount="0")
    asks["spec"]["containers"].append({"name": "b", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}})
    assert MOUNTS in create(tina, asks)


def large(path: str, *, kind: str = "containers", number: int = 10, mounts: int = 200) -> dict[str, Any]:
    """A pod of ten containers with 200 mounts each, as some do that mount each key of a Secret."""
    made = pod({}, kind="containers")
    paths = [path.format(i) for i in range(mounts)]
    some = [{"name": "v", "mountPath": p} for p in paths]
    made["spec"]["containers"][0]["volumeMounts"] = some
    more = [{"name": f"c{n}", "image": "i", "volumeMounts": some} for n in range(1, number)]
    made["spec"][kind] = [*made["spec"].get(kind, []), *more]
    return made


LARGE = {
    "short": "/a{}",
    "below etc": "/etc/my-application/conf.d/some-rather-long-name-of-a-file-{}.conf",
    "below usr": "/usr/local/lib/python3.11/site-packages/my_application/plugins/plugin_{}",
    "below proc": "/processes/proc/self/root/dev/fd/some-rather-long-name-of-a-folder-{}",
    "oddly spelt": "//./srv//./a-name-of-a-folder-{}//./",
}


@pytest.mark.parametrize("path", LARGE.values(), ids=LARGE.keys())
@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_very_large_pod_is_judged_like_any_other(tina: Kubectl, path: str, kind: str) -> None:
    assert create(tina, large(path, kind=kind)) == ""
    refused_one = large(path, kind=kind)
    refused_one["spec"][kind][-1]["volumeMounts"] = [
        *refused_one["spec"][kind][-1]["volumeMounts"][:-1],
        {"name": "v", "mountPath": "/etc/ld.so.preload"},
    ]
    said = create(tina, refused_one)
    assert MOUNTS in said
    assert "container c9 of" in said


@pytest.mark.parametrize("path", ["below etc", "below proc"])
def test_so_is_one_of_six_thousand_mounts(tina: Kubectl, path: str) -> None:
    assert create(tina, large(LARGE[path], mounts=600)) == ""


def test_a_very_large_pod_can_be_labelled(tina: Kubectl) -> None:
    made = large(LARGE["below etc"])
    assert create(tina, made, keep=True) == ""
    tina("-n", TEAM, "label", "pod", made["metadata"]["name"], "mine=yes")


def test_every_resource_of_the_table_counts_as_a_device(tina: Kubectl) -> None:
    resources = sorted(table.RESOURCES - NO_DEVICES)
    assert refused(tina, [pod(mount("/etc"), resource=r) for r in resources], MOUNTS)


def test_the_policy_names_the_resources_of_the_table() -> None:
    (policy,) = (o for o in manifests("ValidatingAdmissionPolicy") if o["metadata"]["name"] == "mounts.fractile.dev")
    (condition,) = policy["spec"]["matchConditions"]
    named = set(re.findall(r"'([a-z.]+/[a-z-]*)'", condition["expression"]))
    assert named == {*table.RESOURCES, RESOURCE_PREFIX} - NO_DEVICES


def ephemeral(tina: Kubectl, name: str, container: dict[str, Any]) -> str:
    path = f"/api/v1/namespaces/{TEAM}/pods/{name}/ephemeralcontainers"
    whole = json.loads(tina("-n", TEAM, "get", "pod", name, "-o", "json"))
    whole["spec"]["ephemeralContainers"] = [{"name": "debug", "image": "i", **container}]
    done = tina.tell("replace", "--raw", path, "-f", "-", stdin=whole)
    return done.stderr + done.stdout if done.returncode else ""


def test_an_ephemeral_container_is_judged_too(tina: Kubectl) -> None:
    made = pod({})
    name = made["metadata"]["name"]
    assert create(tina, made, keep=True) == ""
    assert MOUNTS in ephemeral(tina, name, mount("/etc/ld.so.preload"))
    assert VISIBLE in ephemeral(tina, name, visible(value="all"))
    assert ephemeral(tina, name, {}) == ""


@pytest.mark.parametrize("policy", ["mounts.fractile.dev", "visible-devices.fractile.dev"])
def test_a_pod_that_is_older_than_the_policy_can_be_labelled_and_deleted(
    kubectl: Kubectl, tina: Kubectl, policy: str
) -> None:
    old = pod({**mount("/etc"), **visible(value="all")})
    name = old["metadata"]["name"]
    bindings = ("mounts.fractile.dev", "visible-devices.fractile.dev")
    for binding in bindings:
        kubectl("delete", "validatingadmissionpolicybinding", binding)
    try:
        deadline = time.monotonic() + 30
        while said := create(tina, old, keep=True):
            assert time.monotonic() < deadline, said
            time.sleep(0.2)
    finally:
        for binding in manifests("ValidatingAdmissionPolicyBinding"):
            if binding["metadata"]["name"] in bindings:
                kubectl.apply(binding)
    wanted = {"mounts.fractile.dev": MOUNTS, "visible-devices.fractile.dev": VISIBLE}[policy]
    probe = pod(mount("/etc")) if wanted == MOUNTS else pod(visible(value="all"), gpu=False)
    deadline = time.monotonic() + 30
    while wanted not in create(tina, probe):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    tina("-n", TEAM, "label", "pod", name, "mine=yes")
    assert (said := ephemeral(tina, name, mount("/etc"))), "a new container was not judged"
    assert MOUNTS in said
    tina("-n", TEAM, "delete", "pod", name, "--grace-period=0", "--force")


@pytest.mark.parametrize("gpu", [True, False])
@pytest.mark.parametrize(
    "entry",
    [{"value": "all"}, {"value": "0"}, {"value": "GPU-1"}, {"value": "None"}, {"value": " "}, FROM_A_FIELD],
    ids=str,
)
def test_a_pod_does_not_name_its_cards_itself(tina: Kubectl, entry: dict[str, Any], gpu: bool) -> None:
    pods = [pod(visible(**entry), kind=kind, gpu=gpu) for kind in CONTAINERS]
    assert refused(tina, pods, VISIBLE)
    assert refused(tina, pods, f"kubectl label namespace {TEAM} fractile.dev/visible-devices=allow")


@pytest.mark.parametrize("entry", [{"value": ""}, {}], ids=str)
def test_nor_does_it_set_the_variable_to_nothing(tina: Kubectl, entry: dict[str, Any]) -> None:
    """It would win over what the agent says, and another runtime might take it for the variable of an old image."""
    asking = create(tina, pod(visible(**entry)))
    assert EMPTY in asking
    assert "remove the variable: Fractile sets it to the GPUs that the container gets" in asking
    for kind in CONTAINERS:
        said = create(tina, pod(visible(**entry), kind=kind, gpu=False))
        assert EMPTY in said
        assert "write none" in said
        assert f"kubectl label namespace {TEAM} fractile.dev/visible-devices=allow" in said


@pytest.mark.parametrize("resource", ["aliyun.com/gpu-mem", "nvidia.com/gpu", "fractile.dev/gpu"])
def test_one_that_asks_for_gpus_is_told_to_remove_the_variable(tina: Kubectl, resource: str) -> None:
    said = create(tina, pod(visible(value="all"), resource=resource))
    assert "remove the variable: Fractile sets it to the GPUs that the container gets" in said
    assert "by a resource instead" not in said
    beside = create(tina, pod(visible(value="all"), kind="initContainers"))  # another container asks
    assert "container other names GPUs itself" in beside
    assert "ask for GPUs by a resource instead" in beside


OLD = "sets CUDA_VERSION without NVIDIA_VISIBLE_DEVICES"
GPU_RESOURCES = (
    "aliyun.com/gpu-mem",
    "aliyun.com/gpu-count",
    "tencent.com/vcuda-core",
    "nvidia.com/gpu",
    "fractile.dev/gpu",
)


def cuda(value: Any = "12.4", *, more: dict[str, str] | None = None) -> dict[str, Any]:
    said = {"value": value} if isinstance(value, str) else value
    others = [{"name": name, "value": text} for name, text in (more or {}).items()]
    return {"env": [{"name": "CUDA_VERSION", **said}, *others]}


@pytest.mark.parametrize("value", ["12.4", FROM_A_FIELD], ids=str)
def test_a_container_that_asks_for_no_gpu_is_not_taken_for_an_old_image(tina: Kubectl, value: Any) -> None:
    """Of those NVIDIA's runtime gives all cards to one with CUDA_VERSION and without NVIDIA_VISIBLE_DEVICES."""
    pods = [pod(cuda(value), kind=kind, gpu=False) for kind in CONTAINERS]
    beside = pod(cuda(value), kind="initContainers", gpu=True)  # the pod asks, this container does not
    zero = pod(cuda(value), resource="nvidia.com/gpu", amount="0")
    required = pod(cuda(value, more={"NVIDIA_REQUIRE_CUDA": ""}), gpu=False)
    device = pod(cuda(value), resource="fractile.dev/device")
    assert refused(tina, [*pods, beside, zero, required, device], OLD)
    assert refused(tina, pods, f"kubectl label namespace {TEAM} fractile.dev/visible-devices=allow")


@pytest.mark.parametrize(
    "container",
    [visible(value="all"), visible(value=""), mount("/run/nvidia-container-devices/all"), cuda()],
    ids=["named", "empty", "mounted", "old"],
)
def test_the_advice_says_what_else_the_label_allows(tina: Kubectl, container: dict[str, Any]) -> None:
    said = create(tina, pod(container, gpu=False))
    allows = "for all pods of this namespace, which may then also name their node (spec.nodeName) and are never evicted"
    assert allows in said
    assert f"for using cards: kubectl label namespace {TEAM} fractile.dev/visible-devices=allow" in said


def test_the_message_says_what_that_variable_does_and_what_helps(tina: Kubectl) -> None:
    said = create(tina, pod(cuda(), gpu=False))
    assert "would take it for an old image and give it all GPUs of its node" in said
    assert "set NVIDIA_VISIBLE_DEVICES to none beside it, or ask for GPUs by a resource" in said
    assert "names GPUs itself" not in said


def test_nor_is_an_ephemeral_one(tina: Kubectl) -> None:
    made = pod({})
    assert create(tina, made, keep=True) == ""
    assert OLD in ephemeral(tina, made["metadata"]["name"], cuda())


@pytest.mark.parametrize(
    ("container", "says"),
    [
        (visible(value="all"), "set the variable to none"),
        (visible(value=""), "write none"),
        (cuda(), "set NVIDIA_VISIBLE_DEVICES to none beside it"),
    ],
    ids=["named", "empty", "old"],
)
def test_an_ephemeral_one_is_not_told_to_ask_for_gpus_which_it_cannot(
    tina: Kubectl, container: dict[str, Any], says: str
) -> None:
    made = pod({})
    assert create(tina, made, keep=True) == ""
    said = ephemeral(tina, made["metadata"]["name"], container)
    assert says in said
    assert "by a resource" not in said


@pytest.mark.parametrize("resource", GPU_RESOURCES)
def test_one_that_asks_for_gpus_may_say_its_version_of_cuda(tina: Kubectl, resource: str) -> None:
    """The agent says which it has, which counts."""
    assert create(tina, pod(cuda(), resource=resource)) == ""


@pytest.mark.parametrize("resource", GPU_RESOURCES)
def test_nor_may_one_that_asks_a_node_of_its_own_choice_which_may_not_have_the_resource(
    tina: Kubectl, resource: str
) -> None:
    """kube-scheduler chooses a node with the resource; kubelet alone starts the container without it."""
    made = pod(cuda(), resource=resource)
    made["spec"]["nodeName"] = "policy-n1"
    said = create(tina, made)
    assert OLD in said
    assert "leave spec.nodeName out" in said
    made["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"}  # kubelet runs none that a user made
    assert OLD not in create(tina, made)


def test_one_that_names_its_node_and_wants_no_card_may(tina: Kubectl) -> None:
    made = pod(cuda(more={"NVIDIA_VISIBLE_DEVICES": "none"}), gpu=False)
    made["spec"]["nodeName"] = "policy-n1"
    assert create(tina, made) == ""


@pytest.mark.parametrize("value", ["none", "void"])
def test_so_may_one_that_wants_no_card(tina: Kubectl, value: str) -> None:
    assert create(tina, pod(cuda(more={"NVIDIA_VISIBLE_DEVICES": value}), gpu=False)) == ""
    assert VISIBLE in create(tina, pod(cuda(more={"NVIDIA_VISIBLE_DEVICES": "all"}), gpu=False))


def test_an_empty_version_of_cuda_means_nothing(tina: Kubectl) -> None:
    assert create(tina, pod(cuda(""), gpu=False)) == ""
    assert create(tina, pod(cuda({}), gpu=False)) == ""


def test_what_only_describes_the_cards_of_a_container_gives_it_none(tina: Kubectl) -> None:
    said = ("NVIDIA_DRIVER_CAPABILITIES", "NVIDIA_REQUIRE_CUDA", "NVIDIA_DISABLE_REQUIRE", "CUDA_VISIBLE_DEVICES")
    env = [{"name": name, "value": "all"} for name in said]
    assert create(tina, pod({"env": env}, gpu=False)) == ""


def test_nor_by_a_variable_that_is_said_twice(tina: Kubectl) -> None:
    twice = {"env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": v} for v in ("none", "all")]}
    assert VISIBLE in create(tina, pod(twice))


@pytest.mark.parametrize("path", mount_places.CARDS_BY_A_MOUNT)
def test_nor_by_a_mount_that_the_runtime_takes_for_it(tina: Kubectl, path: str) -> None:
    for kind in CONTAINERS:
        said = create(tina, pod(mount(path), kind=kind, gpu=False))
        assert MOUNTED in said
        assert f"kubectl label namespace {TEAM} fractile.dev/visible-devices=allow" in said
    assert create(tina, pod(mount(path))), "a pod with GPUs"


@pytest.mark.parametrize("path", mount_places.NO_CARDS_BY_A_MOUNT)
def test_a_mount_elsewhere_is_none_whatever_its_name(tina: Kubectl, path: str) -> None:
    for gpu in (True, False):
        assert create(tina, pod(mount(path), gpu=gpu)) == ""


def test_a_very_large_pod_with_such_names_is_judged_like_any_other(tina: Kubectl) -> None:
    path = "//srv//./a/nvidia-container-devices/some-rather-long-name-of-a-folder-{}//./"
    assert create(tina, large(path)) == ""
    refused_one = large(path)
    refused_one["spec"]["containers"][-1]["volumeMounts"][-1] = {
        "name": "v",
        "mountPath": "/run/nvidia-container-devices",
    }
    assert MOUNTED in create(tina, refused_one)


@pytest.mark.parametrize("value", ["none", "void"])
def test_a_pod_may_say_that_it_wants_no_card(tina: Kubectl, value: str) -> None:
    assert create(tina, pod(visible(value=value), gpu=False)) == ""


def test_an_administrator_allows_it_for_a_namespace(tina: Kubectl) -> None:
    monitor = pod(visible(value="all"), gpu=False)
    monitor["metadata"]["namespace"] = OPERATORS
    assert create(tina, monitor) == ""


def test_a_hostile_list_of_mounts_is_refused_soon(tina: Kubectl) -> None:
    """An expression that costs too much fails, and what fails is refused."""
    many = [{"name": "v", "mountPath": f"/a{i}" + "/." * 300} for i in range(400)]
    hostile = pod({"volumeMounts": [*many, {"name": "v", "mountPath": "/etc"}]})
    began = time.monotonic()
    assert create(tina, hostile)
    assert time.monotonic() - began < 5
