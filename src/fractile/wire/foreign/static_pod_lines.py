"""Entries of lists in a YAML text, put in and taken out by whole lines, so that every other byte stays.

Where an entry begins and ends is asked of the YAML parser, which keeps line and column of every node.
"""

from collections.abc import Sequence
from typing import Any

import yaml

Path = Sequence[str | int]


def check(text: str) -> None:
    """ValueError for what has no clear meaning: keys that stand twice, or parts that stand for others."""
    root = _root(text)
    seen: set[int] = set()
    todo: list[yaml.Node] = [root]
    while todo:
        node = todo.pop()
        if id(node) in seen:
            raise ValueError("a part of it stands for another one (an alias)")
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            pairs: list[tuple[yaml.Node, yaml.Node]] = node.value
            keys = [key.value for key, _ in pairs]
            if len(keys) != len({str(key) for key in keys}):
                raise ValueError("a key stands in it twice")
            todo += [value for _, value in pairs]
        elif isinstance(node, yaml.SequenceNode):
            todo += node.value


def appended(text: str, entries: Sequence[tuple[Path, Sequence[str]]]) -> str:
    """With an entry of these lines at the end of each of these lists."""
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
    """Without these entries of these lists."""
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
    """The column of the dash before an entry; whoever calls finds out from the result when there is none."""
    return max(rows[item.start_mark.line].find("-"), 0)


def _last(node: yaml.Node) -> int:
    """The line on which it ends. A collection ends for the parser where the next thing begins, comments included, so
    the last of its leaves is asked."""
    if isinstance(node, yaml.MappingNode) and node.value:
        return _last(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value:
        return _last(node.value[-1])
    return node.end_mark.line
