"""Collect changes to the amounts of one container and write them as the smallest JSON patch.

``limits`` and ``requests`` are two maps, each of which may be missing. A change that leaves a map as it was adds no
step, so an object that was already mutated is not patched again.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from fractile.wire.kubernetes.admission import Op, pointer

MAPS = ("limits", "requests")


class ContainerAmounts:
    """The amounts of the container whose ``resources`` these are."""

    def __init__(self, resources: Mapping[str, Any] | None) -> None:
        given = resources or {}
        self._before: dict[str, dict[str, Any] | None] = {name: given.get(name) for name in MAPS}
        self._there = resources is not None
        self._now: dict[str, dict[str, Any]] = {name: dict(self._before[name] or {}) for name in MAPS}

    def names(self) -> list[str]:
        """All resources, each once, in the order of the maps."""
        return list(dict.fromkeys(resource for name in MAPS for resource in self._now[name]))

    def value(self, resource: str) -> Any:
        """The resource's limit, or else its request; None when it has neither."""
        return next((self._now[name][resource] for name in MAPS if resource in self._now[name]), None)

    def rename(self, resource: str, to: str) -> Any:
        """Rename a resource. Returns the previous amount of ``to``, if that was different."""
        before = self.value(to)
        after = self.value(resource)
        for name in MAPS:
            self._now[name].pop(to, None)
            if resource in self._now[name]:
                self._now[name][to] = self._now[name].pop(resource)
        return before if before is not None and before != after else None

    def beside(self, resource: str, added: str, value: str) -> Any:
        """Add ``added`` to the maps that hold ``resource``. Returns its previous amount, if that was different."""
        before = self.value(added)
        for name in MAPS:
            self._now[name].pop(added, None)
            if resource in self._now[name]:
                self._now[name][added] = before if same(before, value) else value
        return None if before is None or same(before, value) else before

    def request_what_is_limited(self, resource: str) -> None:
        """Set a missing request to the limit, as the API server does for pods."""
        if resource in self._now["limits"]:
            self._now["requests"].setdefault(resource, self._now["limits"][resource])

    def ops(self, *path: str | int) -> Iterator[Op]:
        """The patch steps for the collected changes; ``path`` leads to the container's ``resources``."""
        changed = {name: after for name, after in self._now.items() if after != (self._before[name] or {})}
        if changed and not self._there:
            yield Op("add", pointer(*path), {})
        for name, after in changed.items():
            before = self._before[name]
            if before is None:
                yield Op("add", pointer(*path, name), after)
                continue
            yield from (Op("remove", pointer(*path, name, r)) for r in before if r not in after)
            yield from (Op("add", pointer(*path, name, r), v) for r, v in after.items() if before.get(r) != v)


def same(written: object, value: str) -> bool:
    """Whether an amount is that whole number; 2 and "2" are equal."""
    return str(written) == value
