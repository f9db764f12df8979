"""YAML with lines: the parser in C, and where a field stands in the text."""

from typing import Any, cast

import yaml

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # wheels of all platforms have libyaml, builds may not


class Loader(_Base):
    """Times stay text, as the API has them."""


# Copied before it is changed: the lists belong to the base.
Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != _TIMESTAMP]
    for first, forms in cast(dict[str, list[tuple[str, Any]]], _Base.yaml_implicit_resolvers).items()
}


def line_of(node: yaml.Node, field: tuple[str | int, ...]) -> int:
    """The line of the field, counted from 1, or of the last step on the way to it that is there."""
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
