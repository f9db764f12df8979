"""Draws which file of the library calls which other file, from the built objects, and refuses circles.

    nm -A OBJECTS... | calls.py DOT     writes the graph, for `dot -Tsvg`
    exit status 1                       a circle of files, or a call against order.txt; each is printed

A file calls another if its object has an undefined symbol that the other's object defines. Functions that the driver
has, too (the hooks, and the thunks for the rest), belong to no file: every call of them goes through the table of
thunks.S.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent

Calls = dict[str, dict[str, list[str]]]  # caller, callee, by which symbols


def order() -> list[str]:
    lines = (line.split("#")[0].split() for line in (HERE / "order.txt").read_text().splitlines())
    return [words[0] for words in lines if words]


def file_of(object_path: str, folders: list[str]) -> str:
    """ "ledger/slot" for .../ledger/slot.o; empty for an object outside the library's folders."""
    path = Path(object_path)
    return f"{path.parent.name}/{path.stem}" if path.parent.name in folders else ""


def read_calls(listing: Iterable[str], folders: list[str]) -> Calls:
    defined: dict[str, str] = {}
    wanted: dict[str, list[str]] = {}
    for line in listing:
        place, rest = line.split(":", 1)
        words, name = rest.split(), file_of(place, folders)
        if not name or len(words) < 2:
            continue
        if words[-2] == "U":
            wanted.setdefault(name, []).append(words[-1])
        elif words[-2] in "TDBR":
            defined[words[-1]] = name
    calls: Calls = {name: {} for name in sorted({*defined.values(), *wanted})}
    for name, symbols in wanted.items():
        for symbol in symbols:
            if defined.get(symbol, name) != name:
                calls[name].setdefault(defined[symbol], []).append(symbol)
    return calls


def circles(calls: Calls) -> list[list[str]]:
    """For every file that is part of a circle, a shortest circle through it; each circle once."""
    found: dict[frozenset[str], list[str]] = {}
    for start in calls:
        came_from: dict[str, str] = {}
        waiting = [start]
        while waiting and start not in came_from:
            here = waiting.pop(0)
            for there in sorted(calls[here]):
                if there not in came_from:
                    came_from[there] = here
                    waiting.append(there)
        if start not in came_from:
            continue
        circle = [start]
        while (before := came_from[circle[0]]) != start:
            circle.insert(0, before)
        circle = [start, *circle[:-1]]
        found.setdefault(frozenset(circle), circle)
    return list(found.values())


def name_circle(circle: list[str], calls: Calls) -> str:
    steps = zip(circle, [*circle[1:], circle[0]], strict=True)
    lines = [f"    {caller} calls {callee}: {' '.join(sorted(calls[caller][callee]))}" for caller, callee in steps]
    return "\n".join([f"{len(circle)} files call each other in a circle:", *lines])


def against_order(calls: Calls, folders: list[str]) -> list[str]:
    """Calls into a folder that order.txt lists after the caller's folder."""
    place = {name: i for i, name in enumerate(folders)}
    return [
        f"{caller} calls {callee} ({' '.join(sorted(symbols))}), "
        f"but order.txt lists {callee.split('/')[0]} after {caller.split('/')[0]}"
        for caller, callees in calls.items()
        for callee, symbols in sorted(callees.items())
        if place[callee.split("/")[0]] > place[caller.split("/")[0]]
    ]


def dot(calls: Calls, folders: list[str]) -> str:
    lines = ["digraph calls {", "  rankdir=BT; node [shape=box];"]
    for folder in folders:
        lines.append(f'  subgraph "cluster_{folder}" {{ label="{folder}";')
        lines += [f'    "{name}";' for name in calls if name.split("/")[0] == folder]
        lines.append("  }")
    lines += [f'  "{caller}" -> "{callee}";' for caller, callees in calls.items() for callee in sorted(callees)]
    return "\n".join([*lines, "}", ""])


def main(arguments: list[str]) -> int:
    folders = order()
    calls = read_calls(sys.stdin, folders)
    Path(arguments[0]).write_text(dot(calls, folders))
    faults = [name_circle(circle, calls) for circle in circles(calls)] + against_order(calls, folders)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
