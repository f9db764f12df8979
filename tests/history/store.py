"""What the API server holds: objects as plain JSON, one revision for each write, and what watches tell of them.

The store is the truth that the judge looks at. It knows the rules of the API server that the control plane rests on
(UID, resourceVersion, a pod is bound once) and nothing of Fractile.
"""

from collections.abc import Callable
from typing import Any

import msgspec

PODS = "/api/v1/pods"
CARDS = "/apis/fractile.dev/v1alpha1/extendedresources"
CLASSES = "/apis/fractile.dev/v1alpha1/resourceclasses"
LEASE = "/apis/coordination.k8s.io/v1/namespaces/fractile-system/leases/fractile-control-plane"

Object = dict[str, Any]
_KEPT = 400  # events of a collection; who asks for older ones gets a 410

_encode = msgspec.json.Encoder().encode


class Refused(Exception):
    """What the API server answers instead."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message


class Event(msgspec.Struct, frozen=True):
    """One line of a watch."""

    revision: int
    line: bytes


class Store:
    """``wrote`` is told of each write: the collection, and the object before and after."""

    def __init__(self, wrote: Callable[[str, Object | None, Object | None], None]) -> None:
        self.revision = 1
        self.collections: dict[str, dict[str, Object]] = {PODS: {}, CARDS: {}, CLASSES: {}}
        self.lease: Object | None = None
        self.events: dict[str, list[Event]] = {path: [] for path in self.collections}
        self.floor = dict.fromkeys(self.collections, 0)  # a watch from before that revision is refused
        self.told: Callable[[str, Event], None] = lambda path, event: None
        self._wrote = wrote

    # ── writes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def create(self, path: str, name: str, body: Object) -> None:
        if name in self.collections[path]:
            raise Refused(409, "AlreadyExists", f"{name} exists")
        self._put(path, name, body, "ADDED")

    def update(
        self, path: str, name: str, change: Callable[[Object], None], *, uid: str = "", version: str = ""
    ) -> Object:
        """``change`` gets a copy, as deep as anybody changes it."""
        before = self.read(path, name)
        if uid and before["metadata"]["uid"] != uid:
            raise Refused(409, "Conflict", "the UID in the precondition differs")
        if version and before["metadata"]["resourceVersion"] != version:
            raise Refused(409, "Conflict", "the object has been modified")
        after = {**before, "metadata": dict(before["metadata"])}
        for part in ("spec", "status"):
            after[part] = dict(before.get(part) or {})
        after["metadata"]["annotations"] = dict(before["metadata"].get("annotations") or {})
        change(after)
        return self._put(path, name, after, "MODIFIED")

    def delete(self, path: str, name: str) -> None:
        before = self.collections[path].pop(name, None)
        if before is None:
            return
        self.revision += 1
        last = {**before, "metadata": {**before["metadata"], "resourceVersion": str(self.revision)}}
        self._tell(path, "DELETED", last)
        self._wrote(path, before, None)

    def bind(self, name: str, binding: Object) -> None:
        """The subresource of pods (kubernetes: pkg/registry/core/pod/storage, setPodNodeAndMetadata)."""
        meta = binding["metadata"]

        def change(pod: Object) -> None:
            if pod["metadata"].get("deletionTimestamp"):
                raise Refused(409, "Conflict", "pod is being deleted, cannot be assigned to a host")
            if pod["spec"].get("nodeName"):
                raise Refused(409, "Conflict", f"pod is already assigned to node {pod['spec']['nodeName']!r}")
            pod["spec"]["nodeName"] = binding["target"]["name"]
            pod["metadata"]["annotations"].update(meta.get("annotations") or {})

        self.update(PODS, name, change, uid=meta.get("uid", ""))

    def put_lease(self, body: Object, *, create: bool) -> None:
        version = body["metadata"].get("resourceVersion", "")
        if create and self.lease is not None:
            raise Refused(409, "AlreadyExists", "the lease exists")
        if not create and (self.lease is None or self.lease["metadata"]["resourceVersion"] != version):
            raise Refused(409, "Conflict", "the object has been modified")
        self.revision += 1
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.revision)}}

    # ── reads ────────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, path: str, name: str) -> Object:
        found = self.collections[path].get(name)
        if found is None:
            raise Refused(404, "NotFound", f"{name} not found")
        return found

    def since(self, path: str, revision: int) -> list[Event]:
        if revision < self.floor[path]:
            raise Refused(410, "Expired", "too old resource version")
        return [event for event in self.events[path] if event.revision > revision]

    def compact(self) -> None:
        """Watches can go on from now only."""
        for path in self.floor:
            self.floor[path] = self.revision

    def _put(self, path: str, name: str, body: Object, kind: str) -> Object:
        self.revision += 1
        before = self.collections[path].get(name)
        body = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.revision)}}
        self.collections[path][name] = body
        self._tell(path, kind, body)
        self._wrote(path, before, body)
        return body

    def _tell(self, path: str, kind: str, body: Object) -> None:
        event = Event(self.revision, _encode({"type": kind, "object": body}) + b"\n")
        kept = self.events[path]
        kept.append(event)
        if len(kept) > _KEPT:
            self.floor[path] = max(self.floor[path], kept.pop(0).revision)
        self.told(path, event)
