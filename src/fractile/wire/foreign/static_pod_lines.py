"""Insert and remove list entries of a YAML text by whole lines, so that every other byte is kept.

The YAML parser, which keeps line and column of every node, tells where an entry begins and ends.
"""

from collections.abc import Sequence
from typing import Any

import yaml

Path = Sequence[str | int]


def check(text: str) -> None:
    """Raise ValueError for ambiguous text: duplicate keys, or aliases."""
    root = _root(text)
    seen: set[int] = set()
    todo: list[yaml.Node] = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            raise ValueError("it uses a YAML alias")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
            keys = [key.value for key, _ in pairs]
            if len(keys) != len({str(key) for key in keys}):
                raise ValueError("a key appears twice")
            todo += [value for _, value in pairs]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value


def appended(text: str, entries: Sequence[tuple[Path, Sequence[str]]]) -> str:
    """The text with an entry of the given lines appended to each list."""
    rows = text.split("\n")
    root = _root(text)
    wanted: list[tuple[int, list[str]]] = []
    for path, entry in entries:
        items = _items(root, path)
        indent = " " * _dash(items[-1], rows)
        wanted.append((_last(items[-1]) + 1, [f"{indent}{'  ' if i else '- '}{line}" for i, line in enumerate(entry)]))
    for at, added in sorted(wanted, reverse=True):
        rows[at:at] = added
    return "\n".join(rows)


def removed(text: str, entries: Sequence[tuple[Path, Sequence[int]]]) -> str:
    """The text without the given entries of each list."""
    rows = text.split("\n")
    root = _root(text)
    gone: set[int] = set()
    for path, indices in entries:
        items = _items(root, path)
        for index in indices:
            _dash(items[index], rows)
            gone |= set(range(items[index].start_mark.line, _last(items[index]) + 1))
    return "\n".join(row for number, row in enumerate(rows) if number not in gone)


def _root(text: str) -> yaml.Node:
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is None:
        raise ValueError("it is empty")
    return root


def _items(root: yaml.Node, path: Path) -> list[yaml.Node]:
    node: Any = root
    for key in path:
        if isinstance(key, int):
            node = node.value[key]
        else:
            node = next(value for name, value in node.value if name.value == key)
    return node.value


def _dash(item: yaml.Node, rows: list[str]) -> int:
    """The column of the dash before an entry; without a dash, the caller finds the error in the result."""
    return max(rows[item.start_mark.line].find("-"), 0)


def _last(node: yaml.Node) -> int:
    """The last line of the node. For the parser a collection ends where the next node begins, comments included, so the
    end of its last leaf is used."""
    if isinstance(node, yaml.MappingNode) and node.value:
        return _last(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value:
        return _last(node.value[-1])
    return node.end_mark.line
