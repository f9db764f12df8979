"""The manifests agree with the formats that the code writes; the real API server judges them in tests/e2e."""

import re
from pathlib import Path
from typing import cast

import msgspec
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fractile.admission import configuration, names
from fractile.dialects import table
from fractile.lab.cluster import objects
from fractile.lab.cluster.controlplane import AGENTS_GROUP, CONTROL_PLANE_GROUP
from fractile.main.term import webhook
from fractile.model.card import Card
from fractile.model.device_class import Operator
from fractile.model.interconnect import Interconnect
from fractile.model.sharing import FREE
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.wire.files import sharing_file
from fractile.wire.fractile import extended_resource, placement, resource_class
from fractile.wire.fractile.resource_class import DEVICE_SLOT, GPU_SLOT, RESOURCE_PREFIX
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
@example(f"+{'0' * 19}.{'0' * 18} Kibit/s")
def test_a_quantity_that_the_schema_takes_is_one_for_the_code(text: str) -> None:
    if not LARGE.match(text) and not text.endswith(("B/s", "Bps")):
        assert measure(text) is not None


def test_the_policy_guards_the_placement_and_lets_both_groups_pass() -> None:
    policy = yaml.safe_dump(one("ValidatingAdmissionPolicy", "placement.fractile.dev"), width=10_000)
    for word in (placement.ANNOTATION, "fractile.dev/kubelet-choice", CONTROL_PLANE_GROUP, AGENTS_GROUP):
        assert f"'{word}'" in policy.replace("''", "'")


def test_no_role_of_ours_has_a_wildcard_or_reads_secrets_that_are_not_ours() -> None:
    for role in (d for d in documents() if d["kind"] in ("Role", "ClusterRole")):
        for rule in cast(list[Tree], role["rules"]):
            what = rule["resources"] if "resources" in rule else rule["nonResourceURLs"]
            words = [*cast(list[str], rule["verbs"]), *cast(list[str], what)]
            assert not {"*", "escalate", "impersonate", "bind"} & set(words)
            assert not any(word.endswith("*") for word in words)
            if "secrets" in words:
                assert (role["kind"], at(role, "metadata", "namespace")) == ("Role", "fractile-system")
                assert rule["resourceNames"] == [webhook.SECRET]
                assert rule["verbs"] == ["get", "update", "create", "patch"]  # none to delete, list or watch


def expressions(kind: str, hook: str) -> str:
    hooks = cast(list[Tree], one(kind, configuration.NAME)["webhooks"])
    (found,) = [h for h in hooks if h["name"] == hook]
    return cast(str, at(found, "matchConditions", 0, "expression"))


def test_the_webhook_is_called_for_every_resource_of_ours_and_never_stands_in_the_way() -> None:
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        expression = expressions(kind, "pods.fractile.dev")
        assert set(re.findall(r"'([a-z.]+/[a-z-]+)'", expression)) == set(table.managed())
        assert f"startsWith('{RESOURCE_PREFIX}')" in expression
        for hook in cast(list[Tree], one(kind, configuration.NAME)["webhooks"]):
            assert (hook["failurePolicy"], hook["sideEffects"]) == ("Ignore", "None")
            assert cast(int, hook["timeoutSeconds"]) <= 3
            assert hook["admissionReviewVersions"] == ["v1"]
            assert at(hook, "clientConfig", "service", "name") == webhook.SERVICE


def test_what_kubernetes_knows_without_a_domain_is_the_same_in_code_and_manifests() -> None:
    for hook in ("pods.fractile.dev", "templates.fractile.dev"):
        expression = expressions("MutatingWebhookConfiguration", hook)
        listed = re.search(r"name in \[('cpu'[^]]*)\]", expression)
        assert listed is not None
        assert set(re.findall(r"'([^']+)'", listed[1])) == names.KUBERNETES


def test_a_class_without_its_slot_is_refused_by_policy() -> None:
    policy = yaml.safe_dump(one("ValidatingAdmissionPolicy", "class.fractile.dev"), width=10_000).replace("''", "'")
    for word in (RESOURCE_PREFIX, GPU_SLOT, DEVICE_SLOT):
        assert f"'{word}'" in policy


def test_a_local_cluster_calls_the_webhook_by_url_and_one_without_has_neither_configuration_nor_rights() -> None:
    local = list(yaml.safe_load_all(objects.manifests_for("https://127.0.0.1:7")))
    clients = [at(h, "clientConfig") for d in local if "webhooks" in d for h in d["webhooks"]]
    assert len(clients) == 4
    assert {cast(str, at(c, "url")) for c in clients} == {
        "https://127.0.0.1:7/admission/mutate",
        "https://127.0.0.1:7/admission/validate",
    }
    without = list(yaml.safe_load_all(objects.manifests_for("")))
    assert not [d for d in without if "webhooks" in d]
    rights = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
    gone = [(d["kind"], d["metadata"]["name"]) for d in local if d not in without and "webhooks" not in d]
    assert sorted(gone) == sorted((kind, "fractile:webhook") for kind in rights)
    assert len(local) == len(documents())


def test_the_deploy_folder_shows_the_same_files() -> None:
    root = Path(__file__).parents[3]
    assert (root / "deploy" / "manifests").resolve() == root / "src" / "fractile" / "lab" / "cluster" / "manifests"


def test_the_sharing_rules_of_the_manifests_are_understood_with_and_without_their_examples() -> None:
    text = cast(str, at(one("ConfigMap", "fractile-sharing"), "data", "sharing.yaml"))
    assert sharing_file.decode(text, "f").rule("training", "Tesla T4") == FREE
    assert sharing_file.decode(text.replace("# ", ""), "f").rule("training", "Tesla T4").max_slices == 2
