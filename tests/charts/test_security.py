"""docs/operate/security.md says what the manifests do: containers, policies, and who is known to them."""

import re
from typing import Any, cast

import pytest
import yaml

from fractile.lab.cluster import objects
from tests.charts.rendering import ROOT, Document, documents

PAGE = (ROOT / "docs" / "operate" / "security.md").read_text()
HEAD = "| container | user | non-root |"
EVERYTHING = {"simulated": {"enabled": True}, "scheduler": {"enabled": True}}
HOST = ("hostNetwork", "hostPID", "hostIPC")

Row = tuple[str, ...]


def table(head: str) -> list[Row]:
    """The rows below the table's head and its line."""
    lines = PAGE[PAGE.index(head) :].splitlines()[2:]
    rows = [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines if line.startswith("|")]
    return rows[: next((n for n, line in enumerate(lines) if not line.startswith("|")), len(rows))]


def said(container: Document, pod: Document) -> Row:
    """What the page should say of the container."""
    context = cast(Document, container["securityContext"])
    host = ", ".join(sorted(name.removeprefix("host").lower() for name in HOST if pod.get(name))) or "none"
    first = (cast(str, container["name"]), str(context["runAsUser"]), _yes(context.get("runAsNonRoot", False)))
    read_only = _yes(context["readOnlyRootFilesystem"])
    if context["privileged"]:
        return (*first, "yes", read_only, "none", "all: privileged", host)
    capabilities = cast(Document, context["capabilities"])
    assert capabilities["drop"] == ["ALL"]
    return (
        *first,
        _yes(context["allowPrivilegeEscalation"]),
        read_only,
        cast(str, context["seccompProfile"]["type"]),
        ", ".join(sorted(capabilities.get("add", []))) or "none",
        host,
    )


def _yes(value: object) -> str:
    return "yes" if value else "no"


def pods(found: list[Document]) -> list[Document]:
    return [cast(Document, d["spec"]["template"]["spec"]) for d in found if d["kind"] in ("Deployment", "DaemonSet")]


def rows(found: list[Document]) -> list[Row]:
    return [said(c, pod) for pod in pods(found) for c in (*pod.get("initContainers", ()), *pod["containers"])]


def test_the_page_says_what_each_container_of_the_chart_may_do() -> None:
    assert sorted(table(HEAD)) == sorted(rows(documents(EVERYTHING)))


def test_deploy_gives_the_agent_the_same() -> None:
    deployed = [d for d in yaml.safe_load_all((ROOT / "deploy" / "agent.yaml").read_text()) if d]
    assert rows(deployed) == [row for row in table(HEAD) if row[0] == "agent"]


@pytest.mark.parametrize(
    ("policy", "capabilities"),
    [
        ("warn", "DAC_OVERRIDE, SYS_PTRACE"),
        ("evict", "DAC_OVERRIDE, KILL, SYS_PTRACE"),
        ("evict-all", "DAC_OVERRIDE, KILL, SYS_PTRACE"),
    ],
)
def test_without_file_systems_of_their_own_for_containers_the_agent_is_not_privileged(
    policy: str, capabilities: str
) -> None:
    """It may end processes of others only where it evicts their pods."""
    found = documents({"agent": {"sharedFiles": "disk", "outsideLedger": policy}})
    (agent,) = (row for row in rows(found) if row[0] == "agent")
    assert agent == ("agent", "0", "no", "no", "yes", "RuntimeDefault", capabilities, "network, pid")
    assert agent[-2] in PAGE


def test_the_key_of_the_extenders_authority_is_mounted_nowhere() -> None:
    """It signs another certificate at an upgrade to other names; no program needs it."""
    found = documents(EVERYTHING)
    (made,) = (d for d in found if (d["kind"], d["metadata"]["name"]) == ("Secret", "fractile-extender-tls"))
    assert "ca.key" in made["data"]
    secrets = [v["secret"] for pod in pods(found) for v in pod["volumes"] if "secret" in v]
    mounted = [s for s in secrets if s["secretName"] == "fractile-extender-tls"]
    assert len(mounted) == 2
    assert "ca.key" not in {item["key"] for s in mounted for item in s["items"]}


def test_the_page_would_differ_if_a_container_could_do_more() -> None:
    found = documents(EVERYTHING)
    pods(found)[0]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = False
    assert sorted(table(HEAD)) != sorted(rows(found))


def policies() -> dict[str, dict[str, Any]]:
    found = [d for d in yaml.safe_load_all(objects.manifests()) if d]
    return {f"{d['kind']} {d['metadata']['name']}": d["spec"] for d in found if "AdmissionPolicy" in d["kind"]}


def test_every_policy_denies_and_fails_closed() -> None:
    found = {key: spec for key, spec in policies().items() if not key.endswith(".workloads.fractile.dev")}
    names = {key.split(" ")[1] for key in found}
    own = (
        "placement",
        "class",
        "devices",
        "leader",
        "mounts",
        "visible-devices",
        "agents",
        "node-name",
        "webhook-secret",
    )
    assert names == {f"{name}.fractile.dev" for name in own}
    for name in names:
        assert found[f"ValidatingAdmissionPolicy {name}"]["failurePolicy"] == "Fail"
        assert found[f"ValidatingAdmissionPolicyBinding {name}"]["validationActions"] == ["Deny"]
        assert f"`{name}`" in PAGE


def test_policies_of_workloads_warn_and_never_refuse() -> None:
    found = {key: spec for key, spec in policies().items() if key.endswith(".workloads.fractile.dev")}
    names = {key.split(" ")[1] for key in found}
    assert names == {f"{n}.workloads.fractile.dev" for n in ("placement", "node-name", "mounts", "visible-devices")}
    for name in names:
        assert found[f"ValidatingAdmissionPolicy {name}"]["failurePolicy"] == "Ignore"
        assert found[f"ValidatingAdmissionPolicyBinding {name}"]["validationActions"] == ["Warn"]


@pytest.mark.parametrize("name", ["fractile-control-plane", "fractile-agent"])
def test_the_accounts_that_policies_know_are_those_of_the_chart(name: str) -> None:
    assert any(d["kind"] == "ServiceAccount" and d["metadata"]["name"] == name for d in documents())
    user = f"'system:serviceaccount:fractile-system:{name}'"
    for policy in ("placement.fractile.dev", "devices.fractile.dev"):
        assert user in str(policies()[f"ValidatingAdmissionPolicy {policy}"]).replace('"', "")


def test_every_test_that_the_page_names_is_there() -> None:
    for path in set(re.findall(r"`(tests/[a-z_/]+(?:\.py)?)`", PAGE)):
        assert (ROOT / path).exists(), path
