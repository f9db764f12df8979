"""The manifests agree with the formats that the code writes; the real API server judges them in tests/e2e."""

import re
from pathlib import Path
from typing import cast

import msgspec
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fractile.cluster import objects
from fractile.cluster.controlplane import AGENTS_GROUP, CONTROL_PLANE_GROUP
from fractile.model.card import Card
from fractile.model.device_class import Operator
from fractile.model.interconnect import Interconnect
from fractile.model.sharing import FREE
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire import extended_resource, placement, resource_class, sharing_file
from fractile.wire.measure import PATTERN, measure

Tree = dict[str, object]

JOINED = Interconnect("X NV12", nvlink=3, pcie=4, lanes=16, numa=0)


def documents() -> list[Tree]:
    return [cast(Tree, d) for d in yaml.safe_load_all(objects.manifests())]


def one(kind: str, name: str) -> Tree:
    (found,) = [d for d in documents() if d["kind"] == kind and at(d, "metadata", "name") == name]
    return found


def at(tree: object, *path: str | int) -> object:
    for step in path:
        tree = cast(list[object], tree)[step] if isinstance(step, int) else cast(Tree, tree)[step]
    return tree


def test_the_crd_has_exactly_the_fields_that_the_agent_writes() -> None:
    crd = one("CustomResourceDefinition", f"{extended_resource.PLURAL}.{extended_resource.GROUP}")
    schema = at(crd, "spec", "versions", 0, "schema", "openAPIV3Schema", "properties")
    card = Card(CardUUID("GPU-a"), 1, "Tesla-V100", MiB(16276), "00000000:01:00.0", interconnect=JOINED)
    other = Card(CardUUID("hca"), 1, "ConnectX-7", MiB(0), type="infiniband", shares=4)
    written, device = (
        cast(Tree, msgspec.to_builtins(extended_resource.from_card(c, NodeName("n1")))) for c in (card, other)
    )
    fields = cast(Tree, written["spec"]).keys() | cast(Tree, device["spec"]).keys()
    assert cast(Tree, at(schema, "spec", "properties")).keys() == fields
    joined = cast(Tree, at(schema, "spec", "properties", "interconnect", "properties"))
    assert joined.keys() == cast(Tree, at(written, "spec", "interconnect")).keys()
    assert at(crd, "spec", "versions", 0, "name") == extended_resource.VERSION
    assert at(crd, "spec", "names", "kind") == extended_resource.KIND
    assert at(schema, "status", "properties", "phase", "default") == extended_resource.ExtendedResourceStatus().phase


def fields_of(struct: type[msgspec.Struct]) -> set[str]:
    return {f.encode_name for f in msgspec.structs.fields(struct)}


def test_the_statuses_and_classes_have_exactly_the_fields_of_their_schemas() -> None:
    card = one("CustomResourceDefinition", f"{extended_resource.PLURAL}.{extended_resource.GROUP}")
    kind = one("CustomResourceDefinition", f"{resource_class.PLURAL}.{extended_resource.GROUP}")
    resource, cls = (at(d, "spec", "versions", 0, "schema", "openAPIV3Schema", "properties") for d in (card, kind))
    expression = at(cls, "spec", "properties", "selector", "properties", "matchExpressions", "items")
    status = at(resource, "status", "properties")
    for schema, struct in (
        (status, extended_resource.ExtendedResourceStatus),
        (at(status, "boundTo", "items", "properties"), extended_resource.BoundTo),
        (at(status, "used", "properties"), extended_resource.Used),
        (at(cls, "spec", "properties"), resource_class.ResourceClassSpec),
        (at(cls, "spec", "properties", "selector", "properties"), resource_class.DeviceSelector),
        (at(expression, "properties"), resource_class.MatchExpression),
        (at(cls, "status", "properties"), resource_class.ResourceClassStatus),
        (at(cls, "status", "properties", "devices", "properties"), resource_class.DeviceCounts),
        (at(cls, "status", "properties", "units", "properties"), resource_class.UnitCounts),
    ):
        assert set(cast(Tree, schema)) == fields_of(struct)
    assert at(expression, "properties", "operator", "enum") == list(Operator)


def rules_of_quantities() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """What the schema of a class takes for a quantity, and for one that is too large."""
    cls = one("CustomResourceDefinition", f"{resource_class.PLURAL}.{extended_resource.GROUP}")
    path = ("schema", "openAPIV3Schema", "properties", "spec", "properties", "selector", "properties")
    rules = at(cls, "spec", "versions", 0, *path, "matchExpressions", "items", "x-kubernetes-validations")
    found = re.findall(r"matches\('([^']+)'\)", " ".join(cast(str, at(r, "rule")) for r in cast(list[Tree], rules)))
    form, large = found
    return re.compile(form), re.compile(large)


FORM, LARGE = rules_of_quantities()


def test_the_schema_and_the_code_have_one_grammar_of_quantities() -> None:
    assert FORM.pattern == f"^{PATTERN}$"


@settings(max_examples=500)
@given(st.from_regex(rf"\A{PATTERN}\Z"))
@example("9999999999Ti")
@example("8Ei")
@example("1e18")
def test_a_quantity_that_the_schema_takes_is_one_for_the_code(text: str) -> None:
    if not LARGE.match(text) and not text.endswith(("B/s", "Bps")):
        assert measure(text) is not None


def test_the_policy_guards_the_placement_and_lets_both_groups_pass() -> None:
    policy = yaml.safe_dump(one("ValidatingAdmissionPolicy", "placement.fractile.dev"), width=10_000)
    for word in (placement.ANNOTATION, "fractile.dev/kubelet-choice", CONTROL_PLANE_GROUP, AGENTS_GROUP):
        assert f"'{word}'" in policy.replace("''", "'")


def test_no_role_of_ours_has_a_wildcard_or_reads_secrets() -> None:
    for role in (d for d in documents() if d["kind"] in ("Role", "ClusterRole")):
        for rule in cast(list[Tree], role["rules"]):
            words = [*cast(list[str], rule["verbs"]), *cast(list[str], rule["resources"])]
            assert not {"*", "secrets", "escalate", "impersonate", "bind"} & set(words)


def test_the_deploy_folder_shows_the_same_files() -> None:
    root = Path(__file__).parents[2]
    assert (root / "deploy" / "manifests").resolve() == root / "src" / "fractile" / "cluster" / "manifests"


def test_the_sharing_rules_of_the_manifests_are_understood_with_and_without_their_examples() -> None:
    text = cast(str, at(one("ConfigMap", "fractile-sharing"), "data", "sharing.yaml"))
    assert sharing_file.decode(text, "f").rule("training", "Tesla T4") == FREE
    assert sharing_file.decode(text.replace("# ", ""), "f").rule("training", "Tesla T4").max_slices == 2
