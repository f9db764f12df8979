"""What RBAC gives, and what a program asks for, in the words of the API server's authorizer.

    rules(documents, GROUP)      what the roles give that are bound to a subject
    asked(server.requests)       what was asked of a fake API server
    unused(rules, asked), refused(rules, asked)

Facts: RequestInfo and the RBAC authorizer of kube-apiserver 1.36. A name limits get, update, patch and delete; lists
and watches too, as long as they select by ``metadata.name``; a creation only by server-side apply, which is a patch and
needs the right to create, too (tests/contract/policies/test_webhook_secret.py). A Role gives nothing outside its
namespace.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from tests.fakes.apiserver import Recorded

Document = dict[str, Any]
_ROLES = ("Role", "ClusterRole")
_VERBS = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}


class Rule(msgspec.Struct, frozen=True, order=True):
    """One verb on one resource. ``namespace``: of the Role; "": everywhere. ``name``: "": any."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def gives(self, asked: "Asked") -> bool:
        return (
            (self.verb, self.group, self.resource) == (asked.verb, asked.group, asked.resource)
            and self.namespace in ("", asked.namespace)
            and self.name in ("", asked.name)
        )


class Asked(msgspec.Struct, frozen=True, order=True):
    """One request; ``resource`` is followed by the subresource, if any."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""


def rules(documents: Iterable[Document], *subject: str) -> list[Rule]:
    """What is given to the subject, which is named by its kind and name."""
    documents = [d for d in documents if d]
    roles = {_key(d["kind"], d): d for d in documents if d["kind"] in _ROLES}
    found: set[Rule] = set()
    for binding in (d for d in documents if d["kind"].endswith("RoleBinding")):
        if not any((s["kind"], s["name"]) == subject for s in binding.get("subjects", ())):
            continue
        space = binding["metadata"].get("namespace", "")
        kind = binding["roleRef"]["kind"]
        role = roles[kind, space if kind == "Role" else "", binding["roleRef"]["name"]]
        found.update(rule for given in role["rules"] for rule in _of(given, space))
    return sorted(found)


def _key(kind: str, document: Document) -> tuple[str, str, str]:
    return kind, document["metadata"].get("namespace", ""), document["metadata"]["name"]


def _of(given: Document, space: str) -> list[Rule]:
    return [
        Rule(verb, group, resource, space, name)
        for verb in given["verbs"]
        for group in given["apiGroups"]
        for resource in given["resources"]
        for name in given.get("resourceNames", [""])
    ]


def asked(requests: Iterable[Recorded]) -> set[Asked]:
    return {one for request in requests for one in _asked(request)}


def _asked(request: Recorded) -> list[Asked]:
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    space = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        space, rest = rest[1], rest[2:]
    name = rest[1] if len(rest) > 1 else _selected(request.query)
    verbs = [_verb(request, named=len(rest) > 1)]
    if request.method == "PATCH" and request.status == 201:
        verbs.append("create")
    return [Asked(verb, group, "/".join([rest[0], *rest[2:3]]), space, name) for verb in verbs]


def _verb(request: Recorded, *, named: bool) -> str:
    if request.method != "GET":
        return _VERBS[request.method]
    if request.query.get("watch") in ("1", "true"):
        return "watch"
    return "get" if named else "list"


def _selected(query: dict[str, str]) -> str:
    """The one object that the selector leaves; "" when it leaves more."""
    words = query.get("fieldSelector", "").split(",")
    return next((w.partition("=")[2] for w in words if w.startswith("metadata.name=")), "")


def unused(given: Sequence[Rule], wanted: Iterable[Asked]) -> list[Rule]:
    wanted = list(wanted)
    return [rule for rule in given if not any(rule.gives(one) for one in wanted)]


def refused(given: Sequence[Rule], wanted: Iterable[Asked]) -> list[Asked]:
    return sorted(one for one in wanted if not any(rule.gives(one) for rule in given))
