"""The classes as the API shows them: their meaning, their status, and whether they are default classes of ours."""

import hashlib
from collections.abc import Iterator

import msgspec

from fractile.model.device_class import DeviceClass
from fractile.wire.fractile import resource_class
from fractile.wire.fractile.resource_class import (
    DeviceSelector,
    Invalid,
    ResourceClass,
    ResourceClassSpec,
    ResourceClassStatus,
)

DEFAULT_ANNOTATION = "fractile.dev/default-class"  # the digest of the spec that we wrote: while it matches, it is ours


class BookedClass(msgspec.Struct, frozen=True):
    """One class. ``ours``: the control plane created it for a model, and it has not been changed since."""

    meaning: DeviceClass | Invalid
    status: ResourceClassStatus
    uid: str
    version: str
    generation: int
    ours: bool


class ClassBook:
    """By name; written by the watch only."""

    def __init__(self) -> None:
        self.entries: dict[str, BookedClass] = {}  # read only
        self._sorted: list[str] | None = None

    def put(self, resource: ResourceClass) -> bool:
        """Handle a class that appeared or changed; returns whether its meaning changed."""
        meta = resource.metadata
        marked = (meta.annotations or {}).get(DEFAULT_ANNOTATION)
        before = self.entries.get(meta.name)
        now = BookedClass(
            meaning=resource_class.decode(resource),
            status=resource.status,
            uid=meta.uid,
            version=meta.resource_version,
            generation=meta.generation,
            ours=marked is not None and marked == digest(resource.spec),
        )
        self.entries[meta.name] = now
        if before is None:
            self._sorted = None
        return before is None or before.meaning != now.meaning

    def remove(self, name: str) -> bool:
        self._sorted = None
        return self.entries.pop(name, None) is not None

    def find(self, name: str) -> BookedClass | None:
        return self.entries.get(name)

    def names(self) -> list[str]:
        """All names in order."""
        if self._sorted is None:
            self._sorted = sorted(self.entries)
        return self._sorted

    def classes(self) -> Iterator[DeviceClass]:
        """The valid classes, by name."""
        for name in self.names():
            meaning = self.entries[name].meaning
            if isinstance(meaning, DeviceClass):
                yield meaning

    def __len__(self) -> int:
        return len(self.entries)


def digest(spec: ResourceClassSpec) -> str:
    """A digest that is equal for equal specs, even after the API server has filled in the defaults and written them as
    JSON: an encoder that omits defaults compares strings by identity, so every field is named here."""
    selector = spec.selector or DeviceSelector()
    expressions = [(e.key, e.operator, e.values or ()) for e in selector.match_expressions or ()]
    said = (spec.device_type, spec.memory, spec.cores, spec.count, selector.match_labels or {}, expressions)
    return hashlib.sha256(msgspec.json.encode(said, order="sorted")).hexdigest()[:16]
