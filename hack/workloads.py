"""Writes 37-workloads.yaml of src/fractile/lab/cluster/manifests: the policies for pods, applied to workload templates.

A policy refuses a pod when a controller creates it, and only the workload's events report that. The same expressions on
the template warn the user who applies the workload. They are derived from the policies for pods by two replacements:
``object`` is the template, which has metadata and spec like a pod, and ``oldObject`` is null, because every pod of a
template is new. tests/lab checks that the file is up to date.
"""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

MANIFESTS = Path(__file__).parents[1] / "src" / "fractile" / "lab" / "cluster" / "manifests"
WRITTEN = MANIFESTS / "37-workloads.yaml"
SUFFIX = ".fractile.dev"
INSIDE = f".workloads{SUFFIX}"

# Without class.fractile.dev: the webhook adds slots to pods but not to templates, so all templates would get a warning.
SOURCES = {
    "30-admission.yaml": ("placement", "node-name"),
    "35-containers.yaml": ("mounts", "visible-devices"),
}
# Rules about containers that lack a resource: the webhook adds the resource to the pod, by class or for HAMi's amounts.
_WITHOUT_COMPLETED = {"size(variables.old) == 0"}

_TEMPLATE = (
    "request.resource.resource == 'cronjobs' ? dyn(object.spec).jobTemplate.spec.template : dyn(object.spec).template"
)
_COMPLETED = (
    "[dyn(variables.template.spec.containers), has(variables.template.spec.initContainers) ? "
    "dyn(variables.template.spec.initContainers) : []].exists(list, list.exists(c, has(c.resources) && "
    "has(c.resources.limits) && (size(c.resources.limits) > 256 || "
    "['nvidia.com/gpumem', 'nvidia.com/gpumem-percentage', 'nvidia.com/gpucores'].exists(name, "
    "name in c.resources.limits) || c.resources.limits.exists(name, name.startsWith('class.fractile.dev/')))))"
)
# The policy leaves pods to the webhook where the webhook receives them: everywhere except in kube-system and
# fractile-system. The policy itself excludes fractile-system.
_TOLD = {("node-name", "unseen"): "object.metadata.namespace != 'kube-system' || "}
# Controllers do not read warnings, and they write workloads themselves.
_BY_A_PERSON = (
    "request.userInfo.username != 'system:kube-controller-manager' && "
    "!('system:serviceaccounts:kube-system' in request.userInfo.groups) && "
    "!(has(object.metadata.ownerReferences) && object.metadata.ownerReferences.exists(o, has(o.controller) && "
    "o.controller))"
)
_SAYS = "the pods of this template will be refused: "
_HEAD = """\
# Written by hack/workloads.py from {sources}; change those, then run make chart.
# These policies warn the user who applies a workload if other policies will refuse its pods; otherwise only the events
# of the workload would report it. They refuse nothing, and a policy that fails gives no warning. class.fractile.dev is
# left out: the webhook adds to pods what that policy requires.
"""


def written() -> str:
    """The text of the manifest."""
    found = [_of_workloads(policy) for file, names in SOURCES.items() for policy in _policies(file, names)]
    return _HEAD.format(sources=" and ".join(SOURCES)) + "---\n".join(
        f"{_policy(one)}---\n{_binding(one['metadata']['name'])}" for one in found
    )


def _policies(file: str, names: tuple[str, ...]) -> list[dict[str, Any]]:
    documents = yaml.safe_load_all((MANIFESTS / file).read_text())
    found = {d["metadata"]["name"]: d for d in documents if d["kind"] == "ValidatingAdmissionPolicy"}
    return [found[f"{name}{SUFFIX}"] for name in names]


def _of_workloads(policy: dict[str, Any]) -> dict[str, Any]:
    spec = policy["spec"]
    name = policy["metadata"]["name"].removesuffix(SUFFIX)
    own = [("template", _TEMPLATE), ("nothing", "dyn(null)")]
    if any(v["expression"] in _WITHOUT_COMPLETED for v in spec["validations"]):
        own.append(("completed", _COMPLETED))
    if taken := {called for called, _ in own} & {v["name"] for v in spec["variables"]}:
        raise ValueError(f"{policy['metadata']['name']} has variables of its own that are called {taken}")
    variables = [
        *({"name": called, "expression": expression} for called, expression in own),
        *(
            {"name": v["name"], "expression": _TOLD.get((name, v["name"]), "") + _of_template(v)}
            for v in spec["variables"]
        ),
    ]
    return {
        "metadata": {"name": f"{name}{INSIDE}"},
        "namespaces": spec["matchConstraints"].get("namespaceSelector"),
        "conditions": [{"name": c["name"], "expression": _condition(c)} for c in spec["matchConditions"]],
        "variables": variables,
        "validations": [_validation(v) for v in spec["validations"]],
    }


def _of_template(rule: dict[str, str], key: str = "expression") -> str:
    """The expression, applied to a new pod of the template in the workload's namespace. String literals are kept."""
    parts = re.split(r"('[^']*')", rule[key])
    return "".join(part if part.startswith("'") else _asked(part) for part in parts)


def _condition(rule: dict[str, str]) -> str:
    """A match condition, which cannot use variables: it rejects most workloads at little cost to the API server."""
    asked = _of_template(rule).replace("variables.template", "template").replace("variables.nothing", "nothing")
    nothing = "[dyn(null)].exists(nothing, {})" if "nothing" in asked else "{}"
    return nothing.format(f"[{_TEMPLATE}].exists(template, {asked})")


def _asked(code: str) -> str:
    found = re.sub(r"\boldObject\b", "variables.nothing", code)
    return re.sub(r"(?<![\w.])object\b(?!\.metadata\.namespace)", "variables.template", found)


def _validation(rule: dict[str, str]) -> dict[str, str]:
    passes = _of_template(rule)
    if rule["expression"] in _WITHOUT_COMPLETED:
        passes = f"variables.completed || ({passes})"
    if "message" in rule:
        return {"expression": passes, "message": _SAYS + rule["message"]}
    return {"expression": passes, "messageExpression": f"'{_SAYS}' + {_of_template(rule, 'messageExpression')}"}


def _policy(one: dict[str, Any]) -> str:
    lines = [
        "apiVersion: admissionregistration.k8s.io/v1",
        "kind: ValidatingAdmissionPolicy",
        "metadata:",
        f"  name: {one['metadata']['name']}",
        "spec:",
        "  failurePolicy: Ignore",
        "  matchConstraints:",
        *_selector(one["namespaces"]),
        "    resourceRules:",
        "      - apiGroups: [apps]",
        "        apiVersions: [v1]",
        "        operations: [CREATE, UPDATE]",
        "        resources: [deployments, replicasets, statefulsets, daemonsets]",
        "      - apiGroups: [batch]",
        "        apiVersions: [v1]",
        "        operations: [CREATE, UPDATE]",
        "        resources: [jobs, cronjobs]",
        "  matchConditions:",
        *(line for c in [{"name": "by-a-person", "expression": _BY_A_PERSON}, *one["conditions"]] for line in _rule(c)),
        "  variables:",
        *(line for variable in one["variables"] for line in _rule(variable)),
        "  validations:",
        *(line for validation in one["validations"] for line in _rule(validation)),
    ]
    return "\n".join([*lines, ""])


def _selector(selector: dict[str, Any] | None) -> Iterator[str]:
    if selector is not None:
        yield "    namespaceSelector:"
        yield from textwrap.indent(yaml.safe_dump(selector, width=110), " " * 6).splitlines()


def _rule(fields: dict[str, str]) -> Iterator[str]:
    """A list item; long texts are folded at spaces, which YAML restores."""
    for number, (key, value) in enumerate(fields.items()):
        lead = "    - " if number == 0 else "      "
        if key == "name":
            yield f"{lead}{key}: {value}"
            continue
        if "  " in value or "\n" in value:
            raise ValueError(f"cannot be folded: {value!r}")
        yield f"{lead}{key}: >-"
        yield from textwrap.wrap(value, 112, break_long_words=False, break_on_hyphens=False, initial_indent=" " * 8,
                                 subsequent_indent=" " * 8)  # fmt: skip


def _binding(name: str) -> str:
    return (
        "apiVersion: admissionregistration.k8s.io/v1\nkind: ValidatingAdmissionPolicyBinding\nmetadata:\n"
        f"  name: {name}\nspec:\n  policyName: {name}\n  validationActions: [Warn]\n"
    )


if __name__ == "__main__":
    WRITTEN.write_text(written())
