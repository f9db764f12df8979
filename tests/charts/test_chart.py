"""The chart renders for every Kubernetes that it promises, and says what the manifests and the programs say."""

import base64
import functools
import json
import re
from pathlib import Path
from typing import Any, cast

import click
import helm_python
import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]  # it has no types
import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind
from fractile.lab.cluster import objects
from fractile.lab.programs.simulated_cards import command as simulated_command
from fractile.main.agent import command as agent_command
from fractile.main.control_plane import command as control_plane_command
from fractile.main.term.webhook import NAMESPACE as PROGRAMS_NAMESPACE
from fractile.wire.files import sharing_file
from fractile.wire.kubernetes.scheduler_config import ExtenderConfig, Tls, extender_of
from tests.charts.rendering import (
    CHART,
    NAMESPACE,
    ROOT,
    Document,
    container,
    documents,
    generator,
    kinds,
    named,
    render,
)
from tests.rights import rules

SCHEMA = functools.lru_cache(maxsize=64)(kubernetes_validate.utils.schema_contents)
VERSIONS = [f"1.{minor}" for minor in range(25, 38)]
EVERYTHING: dict[str, Any] = {
    "image": {"digest": f"sha256:{'a' * 64}"},
    "imagePullSecrets": [{"name": "registry"}],
    "kubernetes": {"host": "10.0.0.1"},
    "controlPlane": {
        "hostNetwork": True,
        "defaultClasses": "{vendor}.{model}",
        "globalPlacement": {"everywhere": True, "gate": True},
        "service": {"type": "NodePort", "nodePort": 30443, "clusterIP": "10.96.0.77", "names": ["node.example"]},
        "podDisruptionBudget": {"enabled": True},
        "tls": {"mode": "certManager"},
        "nodeSelector": {"a": "b"},
        "podAnnotations": {"a": "b"},
        "extraArgs": ["--lease-seconds=10"],
    },
    "webhook": {
        "tls": {"mode": "certManager"},
        "url": "https://10.0.0.2:9443",
        "failurePolicy": "Fail",
        "scheduler": "x",
    },
    "agent": {
        "outsideLedger": "evict",
        "sharedFiles": "disk",
        "tls": {"mode": "certManager"},
        "runtimeClassName": "nvidia",
        "virtualManager": False,
        "podAnnotations": {"a": "b"},
        "extraEnv": [{"name": "A", "value": "b"}],
        "extraArgs": ["--label-refresh=2"],
    },
    "sharing": {"default": {"maxSlices": 4}},
    "simulated": {"enabled": True},
    "scheduler": {"enabled": True, "percentageOfNodesToScore": 100},
    "metrics": {"serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}}},
}


CLOSED = {"controlPlane": {"clients": {"configMap": "kube-root-ca.crt"}, "nodePolicy": "fgd-plus+2*bestfit"}}


def _dict(fields: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(fields)


# What a switch of the chart can be, each beside the others.
SWITCHES = _dict(
    {
        "dialects": _dict({"aliyun": st.just(True), "class": st.booleans(), "nvidia": st.booleans()}),
        "webhook": _dict(
            {
                "enabled": st.booleans(),
                "url": st.sampled_from(["", "https://h:1"]),
                "tls": _dict({"mode": st.sampled_from(["own", "certManager"])}),
            }
        ),
        "controlPlane": _dict(
            {
                "replicas": st.integers(1, 7),
                "hostNetwork": st.booleans(),
                "defaultClasses": st.sampled_from(["", "{vendor}.{model}"]),
                "tls": st.sampled_from(
                    [{"mode": "generated"}, {"mode": "certManager"}, {"mode": "secret", "secretName": "s"}]
                ),
                "podDisruptionBudget": _dict({"enabled": st.booleans()}),
                "priorityClass": st.sampled_from([{"create": True}, {"create": False}, {"create": False, "name": "p"}]),
                "quota": _dict({"configMap": st.sampled_from(["", "fractile-system/q"])}),
            }
        ),
        "agent": _dict(
            {
                "enabled": st.booleans(),
                "outsideLedger": st.sampled_from(["", "warn", "evict", "evict-all"]),
                "sharedFiles": st.sampled_from(["memory", "disk"]),
                "tls": st.sampled_from(
                    [{"mode": m} for m in ("none", "generated", "certManager")]
                    + [{"mode": "secret", "secretName": "s"}]
                ),
            }
        ),
        "simulated": _dict({"enabled": st.booleans()}),
        "scheduler": _dict({"enabled": st.booleans()}),
        "networkPolicy": _dict({"enabled": st.booleans()}),
        "admissionPolicies": _dict({"enabled": st.booleans()}),
        "crds": _dict({"install": st.booleans()}),
        "metrics": _dict({"serviceMonitor": _dict({"enabled": st.booleans()})}),
    }
)


def validate(found: list[Document], version: str) -> None:
    """Against the schema of that Kubernetes, unknown fields refused; objects of operators have no schema there."""
    for document in found:
        if not document["apiVersion"].startswith(("cert-manager.io/", "monitoring.coreos.com/")):
            kubernetes_validate.validate(document, version, strict=True)  # pyright: ignore[reportUnknownMemberType]  # untyped


@pytest.fixture(autouse=True)
def _schemas_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are megabytes for each version, and read again for each object."""
    monkeypatch.setattr(kubernetes_validate.utils, "schema_contents", SCHEMA)


def test_helm_finds_nothing_to_warn_of() -> None:
    report = helm_python.lint(str(CHART), strict=True, namespace=NAMESPACE)
    assert [m for m in report["messages"] if m["severity"] > 1] == []
    assert report["errors"] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_rendered_fits_the_schemas_of_that_kubernetes(version: str) -> None:
    for values in ({}, EVERYTHING):
        validate(documents(values, version=f"v{version}.0"), version)


@settings(max_examples=15, deadline=None)
@given(values=SWITCHES)
def test_every_mixture_of_switches_renders_and_names_its_accounts(values: Document) -> None:
    if values["dialects"].get("class") and not values["webhook"]["enabled"]:
        values["dialects"]["nvidia"] = True
    found = documents(values)
    assert len(kinds(found)) == len(found), "two objects of one name"
    accounts = {name for kind, name in kinds(found) if kind == "ServiceAccount"}
    subjects = {s["name"] for d in found for s in d.get("subjects", [])}
    assert subjects <= accounts
    configs = {name for kind, name in kinds(found) if kind == "ConfigMap"}
    for template in (d["spec"]["template"]["spec"] for d in found if d["kind"] in ("Deployment", "DaemonSet")):
        mounted = {m["name"] for c in template["containers"] for m in c["volumeMounts"]}
        assert mounted == {v["name"] for v in template["volumes"]}
        assert {v["configMap"]["name"] for v in template["volumes"] if "configMap" in v} <= configs
        assert template["serviceAccountName"] in accounts


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"controlPlane": {"replicas": "3"}}, "at '/controlPlane/replicas': got string, want integer"),
        ({"controlPlane": {"replicas": 0}}, "at '/controlPlane/replicas'"),
        ({"replicas": 2}, "additional properties 'replicas' not allowed"),
        ({"memoryUnit": "GB"}, "at '/memoryUnit': value must be one of 'MiB', 'GiB'"),
        (
            {"controlPlane": {"tls": {"mode": "secret"}}},
            "controlPlane.tls.secretName: controlPlane.tls.mode is secret, so",
        ),
        ({"controlPlane": {"tls": {"secretName": "x"}}}, "controlPlane.tls.secretName: nothing uses it while"),
        ({"agent": {"tls": {"mode": "secret"}}}, "agent.tls.secretName: agent.tls.mode is secret, so name the Secret"),
        ({"agent": {"tls": {"secretName": "x"}}}, "agent.tls.mode is none; set agent.tls.mode to secret, or"),
        ({"agent": {"tls": {"mode": "own"}}}, "at '/agent/tls/mode'"),
        ({"controlPlane": {"service": {"nodePort": 30000}}}, "controlPlane.service.nodePort: needs"),
        ({"controlPlane": {"priorityClass": {"name": "x"}}}, "create and name exclude each other"),
        ({"webhook": {"url": "http://x"}}, "at '/webhook/url'"),
        ({"webhook": {"timeoutSeconds": 31}}, "at '/webhook/timeoutSeconds': maximum"),
        ({"dialects": {"aliyun": False, "tencent": False, "nvidia": False, "class": False}}, "switch at least one on"),
        (
            {"dialects": {"aliyun": False, "tencent": False, "nvidia": False}, "webhook": {"enabled": False}},
            "pods that ask by class need the webhook",
        ),
        ({"simulated": {"enabled": True}, "agent": {"library": False}}, "agent.library: simulated cards"),
        ({"certManager": {"issuerRef": {"name": "x"}}}, "certManager.issuerRef: nothing uses it"),
        ({"scheduler": {"name": "default-scheduler"}}, "at '/scheduler/name'"),
        ({"agent": {"stateDir": "relative"}}, "at '/agent/stateDir'"),
        ({"image": {"digest": "latest"}}, "at '/image/digest'"),
        ({"sharing": {"default": {"maxSlices": "4"}}}, "at '/sharing/default/maxSlices': got string, want integer"),
        ({"sharing": {"nodes": {"n1": {}}}}, "at '/sharing': additional properties 'nodes' not allowed"),
        ({"sharing": {"models": {"T4": {"fractions": ["half"]}}}}, "at '/sharing/models/T4/fractions/0'"),
        ({"controlPlane": {"nodePolicy": "Best Fit"}}, "at '/controlPlane/nodePolicy'"),
        ({"controlPlane": {"quota": {"configMap": "quota"}}}, "at '/controlPlane/quota/configMap'"),
        ({"controlPlane": {"quota": {"others": "none"}}}, "at '/controlPlane/quota/others'"),
        ({"controlPlane": {"clients": {"names": []}}}, "at '/controlPlane/clients/names'"),
        ({"controlPlane": {"port": 443}}, "at '/controlPlane/port'"),
        ({"controlPlane": {"podDisruptionBudget": {"maxUnavailable": 0}}}, "maxUnavailable': minimum"),
        (
            {"agent": {"outsideLedger": "kill"}},
            "at '/agent/outsideLedger': value must be one of '', 'warn', 'evict', 'evict-all'",
        ),
        ({"agent": {"tolerations": ["all"]}}, "at '/agent/tolerations/0': got string, want object"),
        ({"agent": {"resources": {"limits": {"memory": "lots"}}}}, "at '/agent/resources/limits/memory'"),
        ({"networkPolicy": {"apiServerPorts": ["443"]}}, "at '/networkPolicy/apiServerPorts/0'"),
        ({"dialects": {"amd": True}}, "additional properties 'amd' not allowed"),
        ({"webhook": {"port": 8443}}, "webhook.port: equal to controlPlane.port"),
        (
            {"controlPlane": {"clients": {"configMap": "kube-root-ca.crt", "insecureOpen": True}}},
            "controlPlane.clients.insecureOpen: an open extender asks for no certificate",
        ),
        ({"agent": {"sharedFiles": None}}, "agent.sharedFiles: the value is missing"),
        ({"agent": {"outsideLedgerGraceSeconds": None}}, "use --reset-then-reuse-values"),
        ({"controlPlane": {"globalPlacement": {"onRequest": None}}}, "controlPlane.globalPlacement.onRequest: the"),
        ({"scheduler": {"extender": "https://10.0.0.1:8443"}}, "scheduler.extender: nothing uses it"),
        (
            {"controlPlane": {"globalPlacement": {"gate": True}}, "webhook": {"enabled": False}},
            "controlPlane.globalPlacement.gate: the webhook sets the gates",
        ),
        (
            {"controlPlane": {"globalPlacement": {"gate": True, "onRequest": False}}},
            "controlPlane.globalPlacement.gate: no node is chosen over all nodes",
        ),
        (
            {"controlPlane": {"hostNetwork": True}, "scheduler": {"enabled": True, "hostNetwork": True, "port": 8443}},
            "scheduler.port: equal to controlPlane.port",
        ),
    ],
)
def test_values_of_a_wrong_type_or_in_conflict_are_refused_by_name(values: Document, said: str) -> None:
    with pytest.raises(helm_python.HelmError) as refused:
        render(values)
    assert said in str(refused.value)


def test_another_namespace_is_refused_since_rights_and_programs_name_one() -> None:
    assert PROGRAMS_NAMESPACE == NAMESPACE
    with pytest.raises(helm_python.HelmError, match="use --namespace fractile-system") as refused:
        render(namespace="team")
    assert "pod-security.kubernetes.io/enforce=privileged" in str(refused.value), (
        "as docs/operate/install.md, 2, has it"
    )


@pytest.mark.parametrize(
    ("version", "enabled", "told"),
    [("v1.28.0", True, True), ("v1.29.9", True, True), ("v1.30.0", True, False), ("v1.29.9", False, False)],
)
def test_the_notes_say_that_a_kubernetes_is_too_old_for_the_policies(version: str, enabled: bool, told: bool) -> None:
    values = {"admissionPolicies": {"enabled": enabled}}
    said = f"The admission policies are not installed: they need Kubernetes 1.30 or newer, and this is {version}."
    assert (said in render(values, version=version)["NOTES.txt"]) is told


def test_every_value_stands_in_the_schema_and_is_explained() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    def check(value: object, described: Document, path: str) -> None:
        assert described, path
        if isinstance(value, dict) and "properties" in described:
            value = cast(Document, value)
            assert described["additionalProperties"] is False, path
            if not path.endswith("/resources"):  # of which a limit of processor time is better left out
                assert value.keys() == described["properties"].keys() - {"global"}, path
            for key, inner in value.items():
                if inner != {}:
                    check(inner, described["properties"][key], f"{path}/{key}")

    check(values, schema, "")


def test_every_value_has_a_comment_or_belongs_to_one_that_has() -> None:
    """Beside it or right above."""
    bare: list[str] = []
    above: list[tuple[int, str, bool]] = []  # the values around this line: indent, name, whether explained
    comment = False
    for line in (CHART / "values.yaml").read_text().splitlines():
        found = re.fullmatch(r"( *)(\w+):(.*)", line)
        if found is None:
            comment = line.lstrip().startswith("# ") and not line.startswith("# ----")
            continue
        indent, name, rest = len(found[1]), found[2], found[3]
        above = [each for each in above if each[0] < indent]
        explained = comment or " # " in rest or any(each[2] for each in above)
        above.append((indent, name, explained))
        comment = False
        if rest.partition(" #")[0].strip() and not explained:
            bare.append(".".join(each[1] for each in above))
    assert bare == []


def test_the_command_of_the_page_has_cert_manager_make_all_three_certificates() -> None:
    page = (ROOT / "docs" / "operate" / "install.md").read_text()
    (given,) = re.findall(r"--set (\S+=certManager)\b", page[page.index("\n## cert-manager") :])
    found = documents(helm_python.parse_set_string(given))
    made = {name for kind, name in kinds(found) if kind == "Certificate"}
    assert made == {"fractile-root", "fractile-extender", "fractile-webhook", "fractile-agent"}
    assert not [d for d in found if d["kind"] == "Secret" and d["metadata"]["name"].endswith("-tls")]


def test_templates_are_those_that_the_manifests_make(tmp_path: Path) -> None:
    made = generator()
    written = made.write(tmp_path)
    assert {p.name for p in written} == {p.name for p in made.OBJECTS.glob("*.yaml")}, "run make chart"
    assert [p.name for p in written if p.read_text() != (made.OBJECTS / p.name).read_text()] == [], "run make chart"
    assert made.resources() == made.RESOURCES.read_text(), "run make chart"


def test_the_policies_of_workloads_are_those_that_the_policies_of_pods_make() -> None:
    made = generator("workloads")
    assert made.written() == made.WRITTEN.read_text(), "run make chart"


def test_all_that_a_local_cluster_applies_is_in_the_chart_and_says_the_same() -> None:
    """But for whom the rights are given to, and the rights that one option alone needs."""
    found = documents({"controlPlane": {"defaultClasses": "{model}"}, "agent": {"outsideLedger": "evict"}})
    for manifest in cast(list[Document], list(yaml.safe_load_all(objects.manifests()))):
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        if kind == "Namespace" or name == "fractile-sharing":
            continue
        ours = named(found, kind, name)
        for one in (ours, manifest):
            one["metadata"].pop("annotations", None)
            one.pop("subjects", None)
            if kind == "Service":
                one["spec"]["ports"][0].pop("targetPort")  # by name in the chart
        assert ours == manifest, (kind, name)


CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
WEBHOOK = {
    *((verb, what) for verb in ("get", "update") for what in (*CONFIGURATIONS, "secrets")),
    *((verb, "secrets") for verb in ("create", "patch")),
}


def gives(values: Document, account: str) -> set[tuple[str, str]]:
    """Verb and resource of each right of the account."""
    return {(r.verb, r.resource) for r in rules(documents(values), "ServiceAccount", f"fractile-{account}")}


ON: Document = {"controlPlane": {"defaultClasses": "{model}"}, "agent": {"outsideLedger": "evict"}}


@pytest.mark.parametrize(
    ("account", "rights", "values"),
    [
        pytest.param(
            "control-plane",
            {(verb, "resourceclasses") for verb in ("create", "patch", "delete")},
            {"controlPlane": {"defaultClasses": ""}},
            id="no default classes",
        ),
        pytest.param(
            "control-plane",
            {
                *((verb, "resourceclasses") for verb in ("list", "watch", "create", "patch", "delete")),
                ("patch", "resourceclasses/status"),
                ("patch", "nodes/status"),
            },
            {"dialects": {"class": False}},
            id="no classes",
        ),
        pytest.param(
            "control-plane",
            {("patch", "pods/status")},
            {"controlPlane": {"globalPlacement": {"onRequest": False}}},
            id="no node is chosen over all nodes",
        ),
        pytest.param(
            "control-plane",
            WEBHOOK,
            {"webhook": {"enabled": False}},
            id="no webhook",
        ),
        pytest.param(
            "control-plane",
            WEBHOOK,
            {"webhook": {"tls": {"mode": "certManager"}}},
            id="cert-manager writes the authorities",
        ),
        pytest.param(
            "control-plane",
            {(verb, "configmaps") for verb in ("get", "patch", "list", "watch")},
            {"controlPlane": {"quota": {"configMap": ""}}},
            id="no quotas",
        ),
        pytest.param(
            "agent",
            {("delete", "pods"), ("get", "resourceclaims")},
            {"agent": {"outsideLedger": "warn"}},
            id="nobody is evicted",
        ),
    ],
)
def test_rights_that_an_option_alone_needs_are_given_with_it_alone(
    account: str, rights: set[tuple[str, str]], values: Document
) -> None:
    both = {key: {**ON.get(key, {}), **values.get(key, {})} for key in ON.keys() | values.keys()}
    assert gives(ON, account) - gives(both, account) == rights


def test_everywhere_is_enough_for_the_right_to_propose_nodes() -> None:
    everywhere = {"controlPlane": {"globalPlacement": {"everywhere": True, "onRequest": False}}}
    assert ("patch", "pods/status") in gives(everywhere, "control-plane")
    for said, values in (
        ("--global-placement", everywhere),
        ("--no-global-placement", {"controlPlane": {"globalPlacement": {"onRequest": False}}}),
    ):
        args = container(documents(values), "Deployment", "fractile")["args"]
        assert [a for a in args if a.endswith("-global-placement")] == [said]
    assert not [a for a in container(documents(), "Deployment", "fractile")["args"] if a.endswith("-global-placement")]


def test_cert_manager_is_told_to_write_the_authorities_where_it_makes_the_certificate() -> None:
    found = documents({"webhook": {"tls": {"mode": "certManager"}}})
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        annotations = named(found, kind, "fractile")["metadata"]["annotations"]
        assert annotations == {"cert-manager.io/inject-ca-from": "fractile-system/fractile-webhook"}
        assert ("Certificate", "fractile-webhook") in kinds(found)
        assert "annotations" not in named(documents(), kind, "fractile")["metadata"]
    assert not [a for a in container(found, "Deployment", "fractile")["args"] if a.startswith("--webhook-ca")]


def test_quotas_are_read_where_the_value_says() -> None:
    found = documents({"controlPlane": {"quota": {"configMap": "team/mine"}}})
    given = [r for r in rules(found, "ServiceAccount", "fractile-control-plane") if r.resource == "configmaps"]
    assert {(r.verb, r.namespace, r.name) for r in given} == {
        ("list", "team", "mine"),
        ("watch", "team", "mine"),
        ("get", "fractile-system", "fractile-quota-kept"),
        ("patch", "fractile-system", "fractile-quota-kept"),
    }


def test_no_rights_are_given_to_any_account_but_those_of_the_manifests() -> None:
    """The second kube-scheduler has those of kube-scheduler, from Kubernetes itself."""
    found = documents({**ON, "scheduler": {"enabled": True}})
    own = [d for d in found if d["kind"] in ("Role", "ClusterRole") and d["metadata"]["name"] != "fractile:scheduler"]
    names = {(m["kind"], m["metadata"]["name"]) for m in yaml.safe_load_all(objects.manifests())}
    assert {(d["kind"], d["metadata"]["name"]) for d in own} <= names


@pytest.mark.parametrize("value", ["", "warn", "evict", "evict-all"])
def test_agents_are_told_what_to_do_about_use_outside_the_ledger(value: str) -> None:
    """Without a cluster nobody knows whether this is an upgrade: then nobody is evicted."""
    agent = container(documents({"agent": {"outsideLedger": value}}), "DaemonSet", "fractile-agent")
    assert f"--outside-ledger={value or 'warn'}" in agent["args"]


def test_the_agent_has_on_its_node_what_the_plain_daemonset_has_and_no_more() -> None:
    plain = named(list(yaml.safe_load_all((ROOT / "deploy" / "agent.yaml").read_text())), "DaemonSet", "fractile-agent")
    ours = named(documents(), "DaemonSet", "fractile-agent")
    for daemonset in (plain, ours):
        (agent,) = daemonset["spec"]["template"]["spec"]["containers"]
        for key in ("args", "image", "imagePullPolicy"):
            agent.pop(key, None)
        agent["env"] = [e for e in agent["env"] if e["name"] != "HOST_IP"]
    assert ours["spec"] == plain["spec"]


def test_pods_but_the_agents_have_no_rights_on_their_node() -> None:
    found = documents({"scheduler": {"enabled": True}})
    for kind, name in (("Deployment", "fractile"), ("Deployment", "fractile-scheduler")):
        context = container(found, kind, name)["securityContext"]
        assert context["runAsNonRoot"]
        assert context["readOnlyRootFilesystem"]
        assert not context["allowPrivilegeEscalation"]
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        pod = named(found, kind, name)["spec"]["template"]["spec"]
        assert not any("hostPath" in v for v in pod["volumes"])
        assert not pod.keys() & {"hostPID", "hostIPC", "hostNetwork"}


def test_a_file_of_rules_that_the_schema_takes_is_one_that_the_programs_take() -> None:
    rules: Document = {
        "default": {"maxSlices": 4, "fractions": ["1/4", "1/2", 1]},
        "pools": {"training": {"fractions": ["1"]}},
        "models": {"Tesla T4": {"maxSlices": 0, "fractions": []}},
    }
    text = named(documents({"sharing": rules}), "ConfigMap", "fractile-sharing")["data"]["sharing.yaml"]
    assert sharing_file.decode(text, "values").default.max_slices == 4


def test_kube_scheduler_alone_may_call_the_extender_and_the_chart_makes_its_certificate() -> None:
    found = documents({"scheduler": {"enabled": True}})
    args = container(found, "Deployment", "fractile")["args"]
    assert [a for a in args if a.startswith(("--client-", "--insecure"))] == [
        "--client-ca=/etc/fractile-callers/ca.crt",
        "--client-name=system:kube-scheduler",
    ]
    made = named(found, "Secret", "fractile-extender-client")["data"]
    authority, shown = (x509.load_pem_x509_certificate(base64.b64decode(made[f"{part}.crt"])) for part in ("ca", "tls"))
    shown.verify_directly_issued_by(authority)
    assert [n.value for n in shown.subject.get_attributes_for_oid(NameOID.COMMON_NAME)] == ["system:kube-scheduler"]
    usage = shown.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert ExtendedKeyUsageOID.CLIENT_AUTH in usage
    for name, parts in (("fractile", ["ca.crt"]), ("fractile-scheduler", ["tls.crt", "tls.key"])):
        volumes = named(found, "Deployment", name)["spec"]["template"]["spec"]["volumes"]
        (items,) = [
            [item["key"] for item in v["secret"]["items"]]
            for v in volumes
            if v.get("secret", {}).get("secretName") == "fractile-extender-client"
        ]
        assert items == parts


def test_an_open_extender_is_called_insecure_and_the_certificate_is_made_all_the_same() -> None:
    found = documents({"controlPlane": {"clients": {"insecureOpen": True}}})
    args = container(found, "Deployment", "fractile")["args"]
    assert [a for a in args if a.startswith(("--client-", "--insecure"))] == ["--insecure-open-extender"]
    assert ("Secret", "fractile-extender-client") in kinds(found), (
        "for a kube-scheduler that is told before it is closed"
    )


def test_a_certificate_of_ones_own_is_used_instead() -> None:
    found = documents({"controlPlane": {"clients": {"secretName": "mine"}}, "scheduler": {"enabled": True}})
    assert ("Secret", "fractile-extender-client") not in kinds(found)
    for name in ("fractile", "fractile-scheduler"):
        volumes = named(found, "Deployment", name)["spec"]["template"]["spec"]["volumes"]
        assert "mine" in [v.get("secret", {}).get("secretName") for v in volumes]


def test_a_second_authority_may_be_named() -> None:
    found = documents(CLOSED)
    args = container(found, "Deployment", "fractile")["args"]
    assert [a for a in args if a.startswith("--client-")] == [
        "--client-ca=/etc/fractile-callers/ca.crt",
        "--client-ca=/etc/fractile-clients/ca.crt",
        "--client-name=system:kube-scheduler",
    ]
    volumes = named(found, "Deployment", "fractile")["spec"]["template"]["spec"]["volumes"]
    (clients,) = [v["configMap"] for v in volumes if v["name"] == "clients"]
    assert clients == {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}


@pytest.mark.parametrize(
    ("tls", "secret"),
    [
        ({"mode": "none"}, ""),
        ({"mode": "generated"}, "fractile-agent-tls"),
        ({"mode": "certManager"}, "fractile-agent-tls"),
        ({"mode": "secret", "secretName": "mine"}, "mine"),
    ],
)
def test_the_page_of_the_agents_is_answered_and_scraped_the_same_way_and_the_probe_does_not_use_it(
    tls: Document, secret: str
) -> None:
    found = documents({"agent": {"tls": tls}, "metrics": {"serviceMonitor": {"enabled": True}}})
    agent = container(found, "DaemonSet", "fractile-agent")
    assert [a for a in agent["args"] if "tls" in a] == [
        f"--metrics-tls-{part}=/etc/fractile/tls/tls.{file}"
        for part, file in (("cert", "crt"), ("key", "key"))
        if secret
    ]
    volumes = named(found, "DaemonSet", "fractile-agent")["spec"]["template"]["spec"]["volumes"]
    assert [v["secret"]["secretName"] for v in volumes if v["name"] == "tls"] == [secret] * bool(secret)
    assert agent["livenessProbe"]["exec"]["command"] == ["fractile", "alive", "--state-dir=/var/lib/fractile"]
    (endpoint,) = named(found, "ServiceMonitor", "fractile-agent")["spec"]["endpoints"]
    assert endpoint.get("scheme") == ("https" if secret else None)
    assert endpoint.get("tlsConfig", {}).get("ca", {}).get("secret", {}).get("name") == (secret or None)
    made = [d for d in found if d["metadata"]["name"] == "fractile-agent-tls"]
    assert [d["kind"] for d in made] == ["Secret"] * (tls["mode"] == "generated")
    for one in made:
        served = x509.load_pem_x509_certificate(base64.b64decode(one["data"]["tls.crt"]))
        names = served.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        assert names.get_values_for_type(x509.DNSName) == [endpoint["tlsConfig"]["serverName"]]


@pytest.mark.parametrize(
    "values",
    [
        pytest.param({}, id="defaults"),
        pytest.param(EVERYTHING, id="everything"),
        pytest.param(CLOSED, id="a closed extender and a sum of policies"),
    ],
)
def test_programs_take_the_arguments_that_they_are_given(values: Document, tmp_path: Path) -> None:
    found = documents(values)
    commands: list[tuple[Document, click.Command]] = [
        (container(found, "Deployment", "fractile"), control_plane_command),
        (container(found, "DaemonSet", "fractile-agent"), agent_command),
    ]
    init = named(found, "DaemonSet", "fractile-agent")["spec"]["template"]["spec"].get("initContainers", [])
    commands += [(one, simulated_command) for one in init]
    for one, command in commands:
        name, *args = one["args"]
        assert name == command.name
        env = {"$(POD_IP)": "10.0.0.1", "$(HOST_IP)": "10.0.0.1", "$(NODE_NAME)": "node"}
        for key, value in env.items():
            args = [a.replace(key, value) for a in args]
        command.make_context(name, args)  # click's own errors name the option


def test_the_second_kube_scheduler_calls_the_extender_as_the_first_one_is_told_to() -> None:
    config = named(documents({"scheduler": {"enabled": True}}), "ConfigMap", "fractile-scheduler")["data"][
        "config.yaml"
    ]
    (extender,) = yaml.safe_load(config)["extenders"]
    managed = {name: kind is ResourceKind.AMOUNT for name, kind in sorted(table.managed().items())}
    tls = Tls("/etc/fractile-tls/ca.crt", "/etc/fractile-client/tls.crt", "/etc/fractile-client/tls.key")
    wanted = ExtenderConfig("https://fractile.fractile-system.svc/scheduler", managed, tls)
    assert extender == extender_of(wanted)


def test_the_second_kube_scheduler_is_told_where_to_reach_the_extender_where_it_knows_no_services() -> None:
    values = {"enabled": True, "extender": "https://10.0.0.1:8443", "hostNetwork": True, "port": 12000}
    found = documents({"scheduler": values})
    config = named(found, "ConfigMap", "fractile-scheduler")["data"]["config.yaml"]
    assert yaml.safe_load(config)["extenders"][0]["urlPrefix"] == "https://10.0.0.1:8443/scheduler"
    one = container(found, "Deployment", "fractile-scheduler")
    assert "--secure-port=12000" in one["args"]
    assert {one[probe]["httpGet"]["port"] for probe in ("livenessProbe", "readinessProbe")} == {12000}
    assert named(found, "Deployment", "fractile-scheduler")["spec"]["template"]["spec"]["hostNetwork"] is True


def test_the_lease_of_the_second_kube_scheduler_goes_with_the_release() -> None:
    """kube-scheduler makes one that is not there, which would stay."""
    found = documents({"scheduler": {"enabled": True, "name": "gpu-scheduler"}})
    election = yaml.safe_load(named(found, "ConfigMap", "fractile-scheduler")["data"]["config.yaml"])["leaderElection"]
    assert election["leaderElect"]
    assert named(found, "Lease", election["resourceName"])["metadata"]["namespace"] == election["resourceNamespace"]


def test_an_upgrade_never_waits_for_a_second_leader() -> None:
    """Only the leader is ready: with fewer pods allowed to be unready no new pod could ever take the lead."""
    for replicas in (1, 2, 3):
        spec = named(documents({"controlPlane": {"replicas": replicas}}), "Deployment", "fractile")["spec"]
        assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == replicas


def test_definitions_stay_when_the_release_goes() -> None:
    definitions = [d for d in documents() if d["kind"] == "CustomResourceDefinition"]
    assert len(definitions) == 2
    assert all(d["metadata"]["annotations"] == {"helm.sh/resource-policy": "keep"} for d in definitions)
