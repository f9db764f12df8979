"""The objects of a fake API server: versions, history, selectors, patches and the Binding.

What it answers was recorded from kube-apiserver 1.36.3; tests/contract runs the same tests against both.
"""

import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, cast

from tests.fakes.ownership import Leaf, Owners, without

Json = dict[str, Any]

_KINDS = {
    "pods": "Pod",
    "nodes": "Node",
    "namespaces": "Namespace",
    "events": "Event",
    "configmaps": "ConfigMap",
    "leases": "Lease",
    "extendedresources": "ExtendedResource",
    "resourceclasses": "ResourceClass",
    # Besides those, what kube-scheduler watches.
    "csidrivers": "CSIDriver",
    "csinodes": "CSINode",
    "csistoragecapacities": "CSIStorageCapacity",
    "deviceclasses": "DeviceClass",
    "devicetaintrules": "DeviceTaintRule",
    "persistentvolumeclaims": "PersistentVolumeClaim",
    "persistentvolumes": "PersistentVolume",
    "poddisruptionbudgets": "PodDisruptionBudget",
    "podgroups": "PodGroup",
    "replicasets": "ReplicaSet",
    "replicationcontrollers": "ReplicationController",
    "resourceclaims": "ResourceClaim",
    "resourceslices": "ResourceSlice",
    "statefulsets": "StatefulSet",
    "storageclasses": "StorageClass",
    "volumeattachments": "VolumeAttachment",
    "workloads": "Workload",
}
_OURS = ("extendedresources", "resourceclasses")  # status is a subresource of its own
_FIELDS: dict[str, tuple[str, ...]] = {
    "pods": ("spec.nodeName", "spec.schedulerName", "status.phase"),
    "events": ("involvedObject.kind", "involvedObject.name", "involvedObject.uid", "reason"),
}
_FIRST_VERSION = 200  # a fresh server has used some


class Refusal(Exception):
    """An error answer: a metav1.Status."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status: Json = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": code,
        }


@dataclass(frozen=True)
class Place:
    """What a URL path names: a collection, perhaps narrowed to a namespace, an object, a subresource."""

    group: str  # "/api/v1" or "/apis/<group>/<version>"
    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def kind(self) -> str:
        return _KINDS.get(self.plural, self.plural.removesuffix("s").title())

    @property
    def api_version(self) -> str:
        return self.group.removeprefix("/apis/").removeprefix("/api/")

    @property
    def resource(self) -> str:
        """The resource as error messages name it: ``pods``, ``leases.coordination.k8s.io``."""
        group, slash, _ = self.api_version.rpartition("/")
        return f"{self.plural}.{group}" if slash else self.plural


_PATH = re.compile(
    r"(?P<group>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+)(?=/[^/]+))?/(?P<plural>[^/]+)"
    r"(?:/(?P<name>[^/]+)(?:/(?P<subresource>[^/]+))?)?"
)


def place(path: str) -> Place:
    found = _PATH.fullmatch(path)
    if found is None:
        raise Refusal(404, "NotFound", "the server could not find the requested resource")
    return Place(**{name: value or "" for name, value in found.groupdict().items()})


@dataclass(frozen=True)
class Change:
    """One write: ``before`` and ``after`` are None where the object did not exist."""

    version: int
    place: Place
    before: Json | None
    after: Json | None


Key = tuple[str, str, str, str]  # group, plural, namespace, name


@dataclass
class Store:
    """Objects are never changed in place, so a reference to one is a snapshot."""

    version: int = _FIRST_VERSION
    oldest: int = 0  # versions up to this one are compacted away
    objects: dict[Key, Json] = field(default_factory=dict[Key, Json])
    history: list[Change] = field(default_factory=list[Change])
    changed: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])
    owners: dict[str, Owners] = field(default_factory=dict[str, Owners])  # of the fields of objects, by UID
    _created: int = 0

    def compact(self) -> None:
        """Forget the history up to now: watches from an older version get 410."""
        self.oldest = self.version
        self.history.clear()

    def get(self, at: Place) -> Json:
        found = self.objects.get(_key(at))
        if found is None:
            raise Refusal(404, "NotFound", f'{at.resource} "{at.name}" not found')
        return found

    def select(self, at: Place, matches: Callable[[Json], bool]) -> list[Json]:
        """The objects of the collection in the order in which the server lists them."""
        found = sorted((key, o) for key, o in self.objects.items() if _within(at, key) and matches(o))
        return [o for _, o in found]

    def create(self, at: Place, body: Json) -> Json:
        made = copy.deepcopy(body)
        meta: Json = made.setdefault("metadata", {})
        if meta.get("resourceVersion"):
            raise Refusal(500, "", "resourceVersion should not be set on objects to be created")
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = f"{meta['generateName']}{self.version:05x}"
        name = str(meta.get("name") or at.name)
        if not re.fullmatch(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?", name):
            raise Refusal(422, "Invalid", f'{at.kind} "{name}" is invalid: metadata.name: Invalid value: "{name}"')
        at = Place(at.group, at.plural, at.namespace or str(meta.get("namespace", "")), name)
        if _key(at) in self.objects:
            raise Refusal(409, "AlreadyExists", f'{at.resource} "{name}" already exists')
        self._created += 1
        meta.update(name=name, uid=f"{self._created:08x}-0000-4000-8000-000000000000", creationTimestamp=_now())
        if at.namespace:
            meta["namespace"] = at.namespace
        if at.plural == "pods":
            made["status"] = {"phase": "Pending"}
        elif at.plural in _OURS:
            made.pop("status", None)
        return self._write(at, None, made)

    def replace(self, at: Place, body: Json) -> Json:
        before = self.get(at)
        return self._update(at, before, copy.deepcopy(body))

    def merge(self, at: Place, patch: Json) -> Json:
        """JSON merge patch (RFC 7386)."""
        before = self.get(at)
        return self._update(at, before, _merged(before, patch))

    def strategic(self, at: Place, patch: Json) -> Json:
        """Strategic merge patch: scheduling gates are taken away one by one; other lists are replaced, as by a merge
        patch."""
        spec = dict(as_dict(patch.get("spec")))
        directives = cast("list[Json]", spec.pop("schedulingGates", []))
        before = self.get(at)
        after = _merged(before, _without_directives({**patch, "spec": spec}))
        gone = {item["name"] for item in directives if item.get("$patch") == "delete"}
        held = cast("list[Json]", as_dict(before.get("spec")).get("schedulingGates") or [])
        gates = [g for g in held if g["name"] not in gone]
        after["spec"].pop("schedulingGates", None)
        if gates:
            after["spec"]["schedulingGates"] = gates
        return self._update(at, before, after)

    def apply(self, at: Place, body: Json, *, manager: str = "", force: bool = True) -> tuple[Json, bool]:
        """Server-side apply: create the object, or make the manager's fields those of the body."""
        if body.get("kind") != at.kind or body.get("apiVersion") != at.api_version:
            raise Refusal(400, "BadRequest", "the apiVersion and kind of the patch do not match the resource")
        there = _key(at) in self.objects
        if not there and at.subresource:
            raise Refusal(404, "NotFound", f'{at.resource} "{at.name}" not found')
        made = self.objects[_key(at)] if there else self.create(at, body)
        owners = self.owners.setdefault(made["metadata"]["uid"], Owners())
        if not there:
            owners.applied(manager, body, fields=_of_object)
            return made, True
        found = owners.conflicts(manager, made, body)
        if found and not force:
            told = ", ".join(f'conflict with "{who}": .{".".join(leaf)}' for who, leaf in found)
            raise Refusal(409, "Conflict", f"Apply failed with {len(found)} conflicts: {told}")
        gone = owners.applied(manager, body, fields=_of_status if at.subresource else _of_object)
        after = without(_merged(made, body), gone)
        return self._update(at, made, after, manager=manager, by_apply=True), False

    def delete(self, at: Place, *, uid: str = "", version: str = "") -> Json:
        before = self.get(at)
        held = before["metadata"]["uid"]
        if version and version != before["metadata"]["resourceVersion"]:
            raise _conflict(
                f'{at.kind} "{at.name}"',
                f"the ResourceVersion in the precondition ({version}) does not match the ResourceVersion in record "
                f"({before['metadata']['resourceVersion']}). The object might have been modified",
            )
        if uid and uid != held:
            raise Refusal(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {at.kind} "{at.name}": the UID in the precondition ({uid}) does not '
                f"match the UID in record ({held}). The object might have been deleted and then recreated",
            )
        if before["metadata"].get("finalizers"):  # it goes when the last of them is removed
            return self._write(at, before, _merged(before, {"metadata": {"deletionTimestamp": _now()}}))
        return self._write(at, before, None)

    def bind(self, at: Place, binding: Json) -> None:
        """The Binding subresource: nodeName and annotations in one write (evidence/api-server.md#binding)."""
        meta = as_dict(binding.get("metadata"))
        target = str(as_dict(binding.get("target")).get("name") or "")
        if meta.get("name", at.name) != at.name:
            raise Refusal(400, "BadRequest", "name in URL does not match name in Binding object")
        if not target:
            raise Refusal(500, "", "target.name: Required value")
        pod = self.get(at)
        held, uid = pod["metadata"]["uid"], meta.get("uid")
        if uid and uid != held:
            raise _conflict(
                f'pods "{at.name}"', f"Precondition failed: UID in precondition: {uid}, UID in object meta: {held}"
            )
        if pod["metadata"].get("deletionTimestamp"):
            raise _conflict(
                f'pods/binding "{at.name}"', f"pod {at.name} is being deleted, cannot be assigned to a host"
            )
        if as_dict(pod.get("spec")).get("schedulingGates"):
            raise _conflict(f'pods/binding "{at.name}"', f"pod {at.name} has non-empty .spec.schedulingGates")
        taken = as_dict(pod.get("spec")).get("nodeName")
        if taken:
            raise _conflict(f'pods/binding "{at.name}"', f'pod {at.name} is already assigned to node "{taken}"')
        bound = _merged(pod, {"spec": {"nodeName": target}})
        for kept in ("annotations", "labels"):
            if meta.get(kept):
                bound["metadata"][kept] = {**(bound["metadata"].get(kept) or {}), **meta[kept]}
        said = {"type": "PodScheduled", "status": "True", "lastTransitionTime": _now()}
        others = [c for c in as_dict(bound.get("status")).get("conditions") or () if c.get("type") != "PodScheduled"]
        bound["status"] = {**as_dict(bound.get("status")), "conditions": [*others, said]}
        self._write(at, pod, bound)

    def _update(self, at: Place, before: Json, after: Json, *, manager: str = "update", by_apply: bool = False) -> Json:
        meta: Json = after.setdefault("metadata", {})
        held: Json = before["metadata"]
        if meta.get("resourceVersion") not in (None, "", held["resourceVersion"]):
            raise _conflict(
                f'{at.resource} "{at.name}"',
                "the object has been modified; please apply your changes to the latest version and try again",
            )
        if meta.get("uid", held["uid"]) != held["uid"]:
            raise Refusal(
                422, "Invalid", f'{at.kind} "{at.name}" is invalid: metadata.uid: Invalid value: field is immutable'
            )
        for name in ("name", "namespace", "uid", "creationTimestamp", "resourceVersion"):
            if name in held:
                meta[name] = held[name]
        if at.subresource == "status":
            kept = {**before, "status": after.get("status", {})}
            if at.plural == "pods":  # whose labels and annotations may be written that way too
                kept["metadata"] = {**held, **{k: meta[k] for k in ("labels", "annotations") if k in meta}}
            after = kept
        elif at.plural in ("pods", "nodes", *_OURS):
            after.pop("status", None)
            if "status" in before:
                after["status"] = before["status"]
        if held.get("deletionTimestamp") and held.get("finalizers") and not meta.get("finalizers"):
            return self._write(at, before, None)
        if after == before:
            return before
        self.owners.setdefault(held["uid"], Owners()).changed(manager, before, after, by_apply=by_apply)
        return self._write(at, before, copy.deepcopy(after))

    def _write(self, at: Place, before: Json | None, after: Json | None) -> Json:
        self.version += 1
        version = str(self.version)
        at = Place(at.group, at.plural, at.namespace, at.name)
        if after is None:
            assert before is not None
            del self.objects[_key(at)]
            result = {**before, "metadata": {**before["metadata"], "resourceVersion": version}}
            self.history.append(Change(self.version, at, result, None))
        else:
            after["kind"], after["apiVersion"] = at.kind, at.api_version
            after["metadata"]["resourceVersion"] = version
            self.objects[_key(at)] = result = after
            self.history.append(Change(self.version, at, before, after))
        for notify in self.changed:
            notify()
        return result

    def since(self, version: int, at: Place) -> Iterator[Change]:
        """The changes of the collection after ``version``, oldest first."""
        first = len(self.history)
        while first and self.history[first - 1].version > version:
            first -= 1
        return (c for c in self.history[first:] if _within(at, _key(c.place)))


def selector(at: Place, query: dict[str, str]) -> Callable[[Json], bool]:
    """A predicate for ``fieldSelector`` and ``labelSelector`` (equality only)."""
    fields = list(_terms(query.get("fieldSelector", "")))
    labels = list(_terms(query.get("labelSelector", "")))
    for path, _, _ in fields:
        if path not in ("metadata.name", "metadata.namespace", *_FIELDS.get(at.plural, ())):
            raise Refusal(400, "BadRequest", f"field label not supported: {path}")

    def matches(o: Json) -> bool:
        held: Json = o["metadata"].get("labels") or {}
        return all((str(_at(o, path)) == want) is equal for path, equal, want in fields) and all(
            (held.get(name) == want) is equal for name, equal, want in labels
        )

    return matches


def _terms(text: str) -> Iterator[tuple[str, bool, str]]:
    for term in text.split(",") if text else []:
        found = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(\S*)\s*", term)
        if found is None:
            raise Refusal(400, "BadRequest", f"unable to parse requirement: {term}")
        yield found[1], found[2] != "!=", found[3]


def _at(o: Json, path: str) -> object:
    found: object = o
    for part in path.split("."):
        found = as_dict(found).get(part, "")
    return found


def as_dict(value: object) -> Json:
    """The JSON object; an empty one when the value is anything else."""
    return cast(Json, value) if isinstance(value, dict) else {}


def _merged(base: object, patch: Json) -> Json:
    result = dict(as_dict(base))
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif value == {} or as_dict(value):
            result[name] = _merged(result.get(name), as_dict(value))
        else:
            result[name] = copy.deepcopy(value)
    return result


def _without_directives(patch: Json) -> Json:
    """What tells how lists are to be merged is left out: here they are replaced."""
    return {
        name: _without_directives(as_dict(value)) if as_dict(value) else value
        for name, value in patch.items()
        if not name.startswith("$")
    }


def _of_status(leaf: Leaf) -> bool:
    return leaf[0] == "status"


def _of_object(leaf: Leaf) -> bool:
    return leaf[0] != "status"


def _conflict(what: str, why: str) -> Refusal:
    return Refusal(409, "Conflict", f"Operation cannot be fulfilled on {what}: {why}")


def _key(at: Place) -> Key:
    return at.group, at.plural, at.namespace, at.name


def _within(at: Place, key: Key) -> bool:
    return key[:2] == (at.group, at.plural) and at.namespace in ("", key[2])


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
