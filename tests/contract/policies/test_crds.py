"""The custom resources as the real API server takes and refuses them: `kubectl apply` with the manifests of deploy/."""

import json
import time
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import yaml

from fractile.lab.cluster import objects
from fractile.model.card import Card
from fractile.model.interconnect import Interconnect
from fractile.model.properties import Properties
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.fractile import extended_resource, resource_class
from fractile.wire.fractile.extended_resource import BoundTo, ExtendedResource, ExtendedResourceStatus, Used
from fractile.wire.fractile.resource_class import DeviceCounts, ResourceClass, ResourceClassStatus, UnitCounts
from tests.contract.kubectl import CRDS, Kubectl

NODE = NodeName("n1")
SAID = Properties({"architecture": "Volta", "clock": "1530MHz", "computeCapability": "7.0", "pcieLanes": "16"})
CARD = Card(
    CardUUID("GPU-4f2b4d9e-0000-4000-8000-000000000001"),
    1,
    "Tesla V100-SXM2-16GB",
    MiB(16276),
    "00000000:01:00.0",
    interconnect=Interconnect("NV2 X", nvlink=2, pcie=3, lanes=16, numa=0),
    properties=SAID,
    node=NODE,
)
HCA = Card(
    CardUUID("mlx5_0.n1"),
    0,
    "ConnectX-7",
    MiB(0),
    type="infiniband",
    shares=4,
    properties=Properties({"rate": "400Gb/s"}),
    node=NODE,
)
EXAMPLES = """
apiVersion: fractile.dev/v1alpha1
kind: ResourceClass
metadata: {name: nvidia.tesla.k80}
spec: {selector: {matchLabels: {model: "NVIDIA Tesla K80"}}}
---
apiVersion: fractile.dev/v1alpha1
kind: ResourceClass
metadata: {name: nvidia.high.mem}
spec: {selector: {matchExpressions: [{key: memory, operator: Gt, values: ["10GiB"]}]}}
"""


def a_class(name: str = "c", **spec: Any) -> dict[str, object]:
    return {
        "apiVersion": extended_resource.API_VERSION,
        "kind": resource_class.KIND,
        "metadata": {"name": name},
        "spec": spec,
    }


def choosing(key: object, operator: object, *values: object) -> dict[str, object]:
    return a_class(selector={"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]})


def a_card(card: Card = CARD, **spec: object) -> dict[str, Any]:
    written = cast(dict[str, Any], msgspec.to_builtins(extended_resource.from_card(card, NODE)))
    written["spec"] |= spec
    return written


def test_all_manifests_pass_a_dry_run_on_the_server(kubectl: Kubectl) -> None:
    kubectl("apply", "--server-side", "--dry-run=server", "--force-conflicts", "-f", "-", stdin=objects.manifests())


@pytest.mark.parametrize("crd", CRDS)
def test_the_schema_is_structural_and_all_its_names_are_accepted(kubectl: Kubectl, crd: str) -> None:
    conditions = json.loads(kubectl("get", "crd", crd, "-o", "json"))["status"]["conditions"]
    found = {c["type"]: c["status"] for c in conditions}
    assert found["Established"] == found["NamesAccepted"] == "True"
    assert found.get("NonStructuralSchema", "False") == "False"


def test_the_two_examples_of_the_design_it_continues_apply_unchanged(kubectl: Kubectl) -> None:
    kubectl.apply(EXAMPLES)
    listed = kubectl("get", "rcl")
    kubectl("delete", "-f", "-", stdin=EXAMPLES)
    assert listed.split("\n")[0].split() == [
        "NAME", "TYPE", "MEMORY", "CORES", "DEVICES", "FREE", "UNITS", "FREE", "UNITS", "REASON", "AGE",
    ]  # fmt: skip
    assert "nvidia.high.mem" in listed


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param({}, id="all GPUs"),
        pytest.param({"memory": "4Gi", "cores": 30}, id="a part of a card"),
        pytest.param({"memory": "4GiB"}, id="GiB"),
        pytest.param({"memory": "8138Mi"}, id="MiB"),
        pytest.param({"memory": 4294967296}, id="bytes"),
        pytest.param({"count": 8}, id="eight cards"),
        pytest.param({"deviceType": "infiniband", "count": 2}, id="other devices"),
        pytest.param({"selector": {"matchLabels": {"index": 0, "computeCapability": "8.0"}}}, id="a number"),
        pytest.param(
            {
                "selector": {
                    "matchExpressions": [
                        {"key": "memory", "operator": "Gt", "values": ["10GiB"]},
                        {"key": "memory", "operator": "Le", "values": ["80Gi"]},
                        {"key": "clock", "operator": "Ge", "values": ["1.5GHz"]},
                        {"key": "clock", "operator": "Lt", "values": ["2 ghz"]},
                        {"key": "index", "operator": "Lt", "values": [4]},
                        {"key": "rate", "operator": "Ge", "values": ["200Gb/s"]},
                        {"key": "nvlinkGeneration", "operator": "Exists"},
                        {"key": "mig", "operator": "DoesNotExist"},
                        {"key": "model", "operator": "NotIn", "values": ["a", "b"]},
                    ]
                }
            },
            id="all operators",
        ),
    ],
)
def test_a_class_that_makes_sense_is_taken_and_read(kubectl: Kubectl, spec: dict[str, Any]) -> None:
    taken = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=a_class(**spec))
    found = resource_class.decode(resource_class.decoder.decode(taken))
    assert isinstance(found, resource_class.DeviceClass), found


REFUSED = [
    (choosing("memory", "Greater", "1Gi"), 'supported values: "In", "NotIn", "Exists", "DoesNotExist", "Gt"'),
    (choosing("memory", "Gt"), "Gt of memory takes exactly one value"),
    (choosing("memory", "Lt", "1Gi", "2Gi"), "Lt of memory takes exactly one value"),
    (choosing("memory", "Ge", "ten"), "Ge of memory compares quantities, such as 10GiB, 1.5GHz or 8.0"),
    (choosing("memory", "Ge", "10XiB"), "Ge of memory compares quantities"),
    (choosing("memory", "Ge", "535.104.05"), "Ge of memory compares quantities"),
    (choosing("memory", "Le", "1e999"), "Le of memory has a value that is larger than a quantity can be"),
    (choosing("memory", "Le", "99999999999Ti"), "larger than a quantity can be"),
    (choosing("memory", "Le", "9223372036854775808"), "larger than a quantity can be"),
    (choosing("memory", "Le", "8Ei"), "larger than a quantity can be"),
    (choosing("memory", "Gt", ""), "should be at least 1 chars long"),
    (choosing("model", "In"), "In of model needs at least one value"),
    (choosing("model", "NotIn"), "NotIn of model needs at least one value"),
    (choosing("model", "In", ""), "should be at least 1 chars long"),
    (choosing("model", "In", *map(str, range(65))), "must have at most 64 items"),
    (choosing("model", "Exists", "x"), "Exists of model takes no values"),
    (choosing("", "Exists"), "spec.selector.matchExpressions[0].key"),
    (choosing("a b", "Exists"), "spec.selector.matchExpressions[0].key"),
    (a_class(selector={"matchLabels": {"a b": "x"}}), "a key has 1 to 63 letters, digits, '-', '_' and '.'"),
    (a_class(selector={"matchLabels": {"model": ""}}), "should be at least 1 chars long"),
    (a_class(selector={"matchLabel": {"model": "x"}}), "matchLabel"),
    (a_class(memory="lots"), "memory is a quantity of at least 1Mi, such as 4Gi or 512MiB"),
    (a_class(memory="4096"), "memory is a quantity of at least 1Mi"),
    (a_class(memory="0Gi"), "memory is a quantity of at least 1Mi"),
    (a_class(memory="-4Gi"), "memory is a quantity of at least 1Mi"),
    (a_class(memory="2GHz"), "memory is a quantity of at least 1Mi"),
    (a_class(memory="9999999999Ti"), "memory is a quantity of at least 1Mi"),
    (a_class(cores=0), "greater than or equal to 1"),
    (a_class(cores=101), "less than or equal to 100"),
    (a_class(count=0), "greater than or equal to 1"),
    (a_class(count=65), "less than or equal to 64"),
    (a_class(deviceType="infiniband", memory="1Gi"), "memory and cores are for deviceType gpu"),
    (a_class(deviceType="infiniband", cores=10), "memory and cores are for deviceType gpu"),
    (a_class(deviceType="Infini Band"), "spec.deviceType"),
    (a_class("x" * 64), "the name becomes a part of a resource name, so it has at most 63 characters"),
]


@pytest.mark.parametrize(
    ("wrong", "sentence"), REFUSED, ids=lambda v: json.dumps(v)[90:150] if isinstance(v, dict) else ""
)
def test_nonsense_is_refused_with_a_sentence(kubectl: Kubectl, wrong: dict[str, object], sentence: str) -> None:
    assert sentence in kubectl.refused(wrong)


def test_what_a_class_counts_cannot_be_changed(kubectl: Kubectl) -> None:
    kubectl.apply(a_class("fixed"))
    try:
        assert "count cannot be changed" in kubectl.refused(a_class("fixed", count=2))
        assert "deviceType cannot be changed" in kubectl.refused(a_class("fixed", deviceType="fpga"))
        kubectl.apply(a_class("fixed", memory="1Gi"))
    finally:
        kubectl("delete", "rcl", "fixed")


def test_explain_says_what_a_person_wants_to_know(kubectl: Kubectl) -> None:
    text = " ".join(kubectl("explain", "resourceclass.spec").split())
    for words in (
        "The devices that belong to the class, and how much of them one unit is.",
        "Conditions on the properties of the devices",
        "How much memory of each device one unit is, such as 4Gi",
        "How many devices one unit is. It cannot be changed.",
    ):
        assert words in text
    operators = " ".join(kubectl("explain", "resourceclass.spec.selector.matchExpressions.operator").split())
    assert "ENUM: In NotIn Exists DoesNotExist Gt Lt Ge Le" in operators
    assert "Whether the device may be allocated to pods" in " ".join(kubectl("explain", "er.status").split())


def test_a_card_and_what_it_says_of_itself_are_kept_as_its_agent_writes_them(kubectl: Kubectl) -> None:
    kubectl.apply(a_card())
    kubectl.apply(a_card(HCA))
    kept = [kubectl("get", "er", extended_resource.object_name(c.uuid), "-o", "json") for c in (CARD, HCA)]
    status = ExtendedResourceStatus(
        phase=extended_resource.PARTLY_BOUND,
        bound_to=[BoundTo(namespace="team", pod="p", container="main", memory="8138Mi", cores=30)],
        used=Used(memory="8138Mi", cores=30, slices=1),
    )
    patch = {"status": msgspec.to_builtins(status)}
    name = extended_resource.object_name(CARD.uuid)
    kubectl("patch", "er", name, "--subresource=status", "--type=merge", "-p", json.dumps(patch))
    listed, wide = kubectl("get", "extendedresources"), kubectl("get", "extendedresources", "-o", "wide")
    again = extended_resource.decoder.decode(kubectl("get", "er", name, "-o", "json"))
    kubectl("delete", "er", name, extended_resource.object_name(HCA.uuid))

    assert [extended_resource.to_card(extended_resource.decoder.decode(text)) for text in kept] == [
        (NODE, CARD),
        (NODE, HCA),
    ]
    assert again.status == status
    assert wide.split("\n")[0].split()[-4:] == ["ISOLATION", "HOLDER", "SHARES", "AGE"]
    assert next(line for line in wide.splitlines() if line.startswith(name)).split()[-3:-1] == ["p", "1"]
    row = next(line for line in listed.splitlines() if line.startswith(name)).split()
    assert row[1:] == [
        "n1",
        "gpu",
        "1",
        "Tesla",
        "V100-SXM2-16GB",
        "16276Mi",
        "8138Mi",
        "30",
        "1",
        "PartlyBound",
        row[-1],
    ]


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (a_card(type="Not A Type"), "spec.type"),
        (a_card(memory="a lot"), "spec.memory"),
        (a_card(shares=0), "spec.shares"),
        (a_card(shares=2), "a device of type gpu is shared by memory and cores, not by shares"),
        (a_card(HCA, type="gpu", shares=1), "a device of type gpu must say how much memory it has"),
        (a_card(properties={"a b": "x"}), "a key of properties has at most 63 letters"),
        (a_card(properties={f"k{i}": "x" for i in range(65)}), "must have at most 64 items"),
        (a_card(properties={"clock": "x" * 254}), "may not be more than 253 bytes"),
        (a_card(index=-1), "spec.index"),
        (a_card(properties={"clock": {"MHz": 1530}}), "spec.properties"),
    ],
)
def test_an_impossible_device_is_refused(kubectl: Kubectl, wrong: dict[str, Any], sentence: str) -> None:
    assert sentence in kubectl.refused(wrong)


def until_it_is(kubectl: Kubectl, thing: object, *, taken: bool) -> None:
    """The server reads a definition that was changed within a second or two."""
    for _ in range(50):
        done = kubectl.tell("apply", "--server-side", "--dry-run=server", "-f", "-", stdin=thing)
        if (done.returncode == 0) is taken:
            return
        time.sleep(0.2)
    pytest.fail("the server still goes by the definition of before")


CONTROL = "\x1b]0;pwn\x07"


@pytest.mark.parametrize("field", ["model", "pciBusID"])
@pytest.mark.parametrize("text", [CONTROL, "a\nb"], ids=["escape", "line break"])
def test_a_text_that_a_terminal_would_obey_is_refused(kubectl: Kubectl, field: str, text: str) -> None:
    assert f"spec.{field}" in kubectl.refused(a_card(CARD, **{field: text}))


def test_nor_is_it_taken_as_the_reason_of_a_device(kubectl: Kubectl) -> None:
    name = extended_resource.object_name(CARD.uuid)
    kubectl.apply(a_card())
    for said in ({"reason": CONTROL}, {"message": CONTROL}, {"message": "K\u00fchlung \u6e29\u5ea6"}):
        patch = json.dumps({"status": {"phase": "Unhealthy", **said}})
        done = kubectl.tell("patch", "er", name, "--subresource=status", "--type=merge", "-p", patch)
        assert (done.returncode != 0) is (CONTROL in said.values()), done.stderr
    kubectl("delete", "er", name)


def test_a_device_that_has_such_a_text_from_before_can_still_be_updated(kubectl: Kubectl) -> None:
    name = extended_resource.object_name(CARD.uuid)
    old = a_card(model=CONTROL)
    crd = json.loads(kubectl("get", "crd", CRDS[0], "-o", "json"))
    crd["metadata"] = {"name": CRDS[0]}
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    pattern = spec["model"].pop("pattern")
    kubectl("replace", "-f", "-", stdin=crd)
    try:
        until_it_is(kubectl, old, taken=True)
        kubectl.apply(old)
    finally:
        spec["model"]["pattern"] = pattern
        kubectl("replace", "-f", "-", stdin=crd)
    until_it_is(kubectl, a_card(HCA, model=CONTROL), taken=False)
    patch = json.dumps({"status": {"phase": "Lost", "reason": "NodeGone"}})
    kubectl("patch", "er", name, "--subresource=status", "--type=merge", "-p", patch)
    kubectl("delete", "er", name)


def test_an_object_from_before_there_were_properties_is_still_a_card(kubectl: Kubectl) -> None:
    spec = {"nodeName": "n1", "deviceID": "GPU-old", "index": 0, "model": "Tesla V100", "memory": "16276Mi"}
    old = {"apiVersion": extended_resource.API_VERSION, "kind": extended_resource.KIND, "metadata": {"name": "gpu-old"}}
    kept = kubectl("create", "--dry-run=server", "-o", "json", "-f", "-", stdin={**old, "spec": spec})
    _, card = extended_resource.to_card(msgspec.json.decode(kept, type=ExtendedResource))
    assert (card.type, card.shares, card.healthy) == ("gpu", 1, True)


def test_the_status_of_a_class_has_its_fields(kubectl: Kubectl) -> None:
    status = ResourceClassStatus(
        devices=DeviceCounts(total=8, free=3, unhealthy=1),
        units=UnitCounts(total=28, free=12),
        reason="NoDevices",
        message="none",
        observed_generation=1,
        last_transition_time="2026-11-21T10:00:00Z",
    )
    kubectl.apply(a_class("counted"))
    patch = json.dumps({"status": msgspec.to_builtins(status)})
    kubectl("patch", "rcl", "counted", "--subresource=status", "--type=merge", "-p", patch)
    kept = msgspec.json.decode(kubectl("get", "rcl", "counted", "-o", "json"), type=ResourceClass)
    kubectl("delete", "rcl", "counted")
    assert kept.status == status


def test_the_examples_are_the_ones_that_the_page_shows() -> None:
    page = (Path(__file__).parents[3] / "docs" / "use" / "classes.md").read_text()
    shown = [yaml.safe_load(d) for d in EXAMPLES.split("---")]
    blocks = [list(yaml.safe_load_all(b.split("```")[0])) for b in page.split("```yaml\n")[1:]]
    assert shown in blocks
