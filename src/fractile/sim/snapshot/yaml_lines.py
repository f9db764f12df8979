"""YAML with line numbers: the parser in C, and the line of a field."""

import re
from typing import Any, cast

import yaml

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # all wheels include libyaml, other builds may not

_DEEPEST = 500  # levels; manifests have about ten, and only the stack limits the parser in C
_BRACKETS = re.compile(r"[\[\]{}]")
_INDENTED = re.compile(rf"^[ \t?:-]{{{2 * _DEEPEST},}}", re.MULTILINE)


class Loader(_Base):
    """A loader that keeps times as text, as in the API."""


# Copied before they are changed: the lists belong to the base.
Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != _TIMESTAMP]
    for first, forms in cast(dict[str, list[tuple[str, Any]]], _Base.yaml_implicit_resolvers).items()
}


def too_deep(text: str) -> bool:
    """Whether the text may be nested too deeply for the parser, by its brackets or its indentation."""
    depth = 0
    for found in _BRACKETS.finditer(text):
        depth = depth + 1 if found[0] in "[{" else max(0, depth - 1)
        if depth > _DEEPEST:
            return True
    return _INDENTED.search(text) is not None


def line_of(node: yaml.Node, field: tuple[str | int, ...]) -> int:
    """The line of the field, counted from 1, or of the last existing step of its path."""
    mark = node.start_mark
    for step in field:
        found = _step(node, step)
        if found is None:
            break
        node, mark = found, found.start_mark
    return mark.line + 1


def _step(node: yaml.Node, step: str | int) -> yaml.Node | None:
    if isinstance(step, int):
        items = cast(list[yaml.Node], node.value) if isinstance(node, yaml.SequenceNode) else []
        return items[step] if step < len(items) else None
    pairs = cast(list[tuple[yaml.Node, yaml.Node]], node.value) if isinstance(node, yaml.MappingNode) else []
    return next((value for key, value in pairs if key.value == step), None)
