"""Who owns which fields of an object: what server-side apply removes, and what it finds in conflict.

A field is a leaf: a value that is no object, or an empty object; a list is one leaf, as where a schema says nothing
else. Whoever changes a field otherwise than by apply owns it from then on.
"""

from collections.abc import Callable, Iterator
from typing import Any, cast

Json = dict[str, Any]
Leaf = tuple[str, ...]

_NOT_OWNED = {("apiVersion",), ("kind",)}
_IDENTITY = ("name", "namespace", "uid", "resourceVersion")


def leaves(value: Json, prefix: Leaf = ()) -> Iterator[tuple[Leaf, object]]:
    """The fields below, with their values."""
    for name, inner in value.items():
        at = (*prefix, name)
        if isinstance(inner, dict) and inner:
            yield from leaves(cast(Json, inner), at)
        elif at not in _NOT_OWNED and not (prefix == ("metadata",) and name in _IDENTITY):
            yield at, inner


class Owners:
    """Of one object: the fields of each manager."""

    def __init__(self) -> None:
        self._fields: dict[str, set[Leaf]] = {}

    def conflicts(self, manager: str, before: Json, body: Json) -> list[tuple[str, Leaf]]:
        """Fields that another manager owns, and of which the body says something else than they say now."""
        now = dict(leaves(before))
        wrong = {at for at, value in leaves(body) if at in now and now[at] != value}
        return sorted((who, at) for who, fields in self._fields.items() if who != manager for at in fields & wrong)

    def applied(self, manager: str, body: Json, *, fields: Callable[[Leaf], bool]) -> set[Leaf]:
        """The body is what the manager owns now; the fields that nobody wants any more. ``fields``: those that this
        request is about."""
        own = {at for at, _ in leaves(body) if fields(at)}
        before = {at for at in self._fields.get(manager, set()) if fields(at)}
        self._fields[manager] = (self._fields.get(manager, set()) - before) | own
        others = {at for who, held in self._fields.items() if who != manager for at in held}
        return before - own - others

    def changed(self, manager: str, before: Json, after: Json, *, by_apply: bool) -> None:
        """Values are others now: who owned them before does not any more."""
        was = dict(leaves(before))
        new = {at for at, value in leaves(after) if was.get(at) != value or at not in was}
        gone = was.keys() - dict(leaves(after)).keys()
        for who, fields in self._fields.items():
            if who != manager:
                fields -= new | gone
        if not by_apply:
            self._fields.setdefault(manager, set()).update(new)


def without(value: Json, gone: set[Leaf]) -> Json:
    """The object without these fields, and without objects that had nothing else."""
    result: Json = {}
    for name, inner in value.items():
        below = {at[1:] for at in gone if at[0] == name}
        if () in below:
            continue
        if not below or not isinstance(inner, dict):
            result[name] = inner
        elif rest := without(cast(Json, inner), below):
            result[name] = rest
    return result
