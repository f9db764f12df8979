"""Writes charts/fractile/templates/objects from src/fractile/lab/cluster/manifests, the only source of rights,
policies, definitions and webhooks. tests/charts checks that the files are up to date.

It also writes the table of resources, and the alert rules and dashboard of deploy/, to charts/fractile/files. The text
is kept, including comments; only the lines that depend on the chart's values are wrapped or replaced.
"""

import re
import subprocess
import sys
from pathlib import Path

from fractile.dialects import table
from fractile.dialects.dialect import ResourceKind

ROOT = Path(__file__).parents[1]
MANIFESTS = ROOT / "src" / "fractile" / "lab" / "cluster" / "manifests"
OBJECTS = ROOT / "charts" / "fractile" / "templates" / "objects"
RESOURCES = ROOT / "charts" / "fractile" / "files" / "resources.yaml"
COPIES = tuple(ROOT / "deploy" / p for p in ("prometheus/fractile-rules.yaml", "grafana/fractile.json"))

_OWN_CERTIFICATES = '.Values.webhook.enabled (eq .Values.webhook.tls.mode "own")'
# The condition under which a file is rendered. A file without an entry is an error.
_WHEN = {
    "10-extendedresource.yaml": ".Values.crds.install",
    "11-resourceclass.yaml": ".Values.crds.install",
    "20-rbac-control-plane.yaml": "",
    "21-rbac-agent.yaml": ".Values.agent.enabled",
    "22-rbac-quota.yaml": ".Values.controlPlane.quota.configMap",
    "22-rbac-webhook.yaml": f"and {_OWN_CERTIFICATES}",
    "23-rbac-debug.yaml": "",
    "30-admission.yaml": 'include "fractile.policies" .',
    "31-webhook.yaml": ".Values.webhook.enabled",
    "32-class-policy.yaml": 'and (include "fractile.policies" .) .Values.webhook.enabled .Values.dialects.class',
    "33-devices.yaml": 'include "fractile.policies" .',
    "34-leader.yaml": 'include "fractile.policies" .',
    "35-containers.yaml": 'include "fractile.policies" .',
    "36-agents.yaml": 'include "fractile.policies" .',
    "37-workloads.yaml": 'include "fractile.policies" .',
    "38-webhook-secret.yaml": f'and (include "fractile.policies" .) {_OWN_CERTIFICATES}',
}
# Helm itself creates the first; the second is written by hand, because its content depends on values.
_LEFT_OUT = frozenset({"00-namespace.yaml", "40-sharing.yaml"})

_RULES = {  # rights that only one option needs
    "only with --default-classes": "and .Values.dialects.class .Values.controlPlane.defaultClasses",
    "only with the family class": ".Values.dialects.class",
    "not with --no-global-placement": 'include "fractile.globalPlacement" .',
    "only with --outside-ledger evict": 'ne (include "fractile.outsideLedger" .) "warn"',
}
_GROUP = re.compile(r"  - apiGroup: rbac\.authorization\.k8s\.io\n    kind: Group\n    name: fractile:(\S+)\n")
_ACCOUNTS = {"control-plane": "fractile-control-plane", "agents": "fractile-agent"}
_INJECTED = r"""\1{{- if eq .Values.webhook.tls.mode "certManager" }}
  annotations: {cert-manager.io/inject-ca-from: fractile-system/fractile-webhook}
{{- end }}
"""
_KEEP = "  annotations: {helm.sh/resource-policy: keep}\n"


def render(name: str, text: str) -> str:
    """The template for the manifest ``name``."""
    text = _GROUP.sub(_account, text if text.endswith("\n") else f"{text}\n")
    text = _rules(text)
    if name == "31-webhook.yaml":
        text = _webhook(text)
    if name == "22-rbac-quota.yaml":
        text = _quota(text)
    text = _newer(text, "selectableFields", "1.31")
    if ".Values.crds" in _WHEN[name]:
        text = re.sub(r"^(metadata:\n)", rf"\1{_KEEP}", text, count=1, flags=re.MULTILINE)
    head = f"{{{{- /* Written by hack/chart.py from {name}; change that, then run make chart. */}}}}\n"
    if when := _WHEN[name]:
        return f"{head}{{{{- if {when} }}}}\n{text}{{{{- end }}}}\n"
    return head + text


def write(folder: Path) -> list[Path]:
    """Write all templates, and remove those whose manifests no longer exist."""
    folder.mkdir(parents=True, exist_ok=True)
    names = sorted(p.name for p in MANIFESTS.glob("*.yaml") if p.name not in _LEFT_OUT)
    if strange := [n for n in names if n not in _WHEN]:
        sys.exit(f"hack/chart.py does not say when to render {' and '.join(strange)}; add it to _WHEN")
    for old in folder.glob("*.yaml"):
        if old.name not in names:
            old.unlink()
    for name in names:
        (folder / name).write_text(render(name, (MANIFESTS / name).read_text()))
    return [folder / name for name in names]


def resources() -> str:
    """The resources for which the second kube-scheduler calls the extender, and whether it ignores their amounts."""
    lines = [f"{name}: {'true' if kind is ResourceKind.AMOUNT else 'false'}" for name, kind in table.managed().items()]
    return "\n".join(
        ["# Written by hack/chart.py from the table of resources: resource -> ignoredByScheduler", *lines, ""]
    )


def _account(found: re.Match[str]) -> str:
    return f"  - kind: ServiceAccount\n    name: {_ACCOUNTS[found[1]]}\n    namespace: fractile-system\n"


def _rules(text: str) -> str:
    """Wrap each rule marked with an option in the condition that the option's value is set."""
    for mark, value in _RULES.items():
        rule = re.compile(rf"^  - apiGroups: .*\n(?:    .*\n)*?    .*{re.escape(mark)}.*\n(?:    .*\n)*", re.MULTILINE)
        text = rule.sub(lambda found, value=value: f"{{{{- if {value} }}}}\n{found[0]}{{{{- end }}}}\n", text)
    return text


def _webhook(text: str) -> str:
    """Take address, timeout and failure policy from values, and use conditions if the API server supports them (1.28).
    If cert-manager issues the certificate, it also injects the CA; the control plane then has no right to do so."""
    text = text.replace("failurePolicy: Ignore\n", "failurePolicy: {{ .Values.webhook.failurePolicy }}\n")
    text = text.replace("timeoutSeconds: 3\n", "timeoutSeconds: {{ .Values.webhook.timeoutSeconds }}\n")
    text = text.replace("targetPort: 9443", "targetPort: webhook")
    text = re.sub(
        r"^(kind: \w+WebhookConfiguration\nmetadata:\n  name: fractile\n)", _INJECTED, text, flags=re.MULTILINE
    )
    text = re.sub(
        r"^      service: (\{.*path: (\S+), port: 443\})$",
        r"      {{- if .Values.webhook.url }}"
        "\n"
        r"      url: {{ .Values.webhook.url }}\2"
        "\n"
        r"      {{- else }}"
        "\n"
        r"      service: \1"
        "\n"
        r"      {{- end }}",
        text,
        flags=re.MULTILINE,
    )
    return _newer(text, "matchConditions", "1.28")


def _quota(text: str) -> str:
    """Take name and namespace of the quotas' ConfigMap from the value; the kept quotas stay in fractile-system."""
    parts = 'splitList "/" .Values.controlPlane.quota.configMap'
    namespace, name = f"{{{{ {parts} | first }}}}", f"{{{{ {parts} | last }}}}"
    text = text.replace("resourceNames: [fractile-quota]", f"resourceNames: [{name}]")
    return text.replace(
        "  name: fractile:quota\n  namespace: fractile-system", f"  name: fractile:quota\n  namespace: {namespace}"
    )


def _newer(text: str, field: str, version: str) -> str:
    """Wrap the field and everything nested in it in the condition that Kubernetes has at least ``version``."""
    block = re.compile(rf"^( *){field}:\n(?:\1 .*\n)+", re.MULTILINE)
    return block.sub(
        lambda found: f'{{{{- if include "fractile.atLeast" (list . "{version}") }}}}\n{found[0]}{{{{- end }}}}\n', text
    )


if __name__ == "__main__":
    subprocess.run([sys.executable, Path(__file__).with_name("workloads.py")], check=True)
    write(OBJECTS)
    RESOURCES.write_text(resources())
    for source in COPIES:
        (RESOURCES.parent / source.name).write_text(source.read_text())
