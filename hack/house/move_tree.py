"""Moves the modules of src/fractile and their tests to where docs/develop/tree.md puts them. Run once, in a clean working tree:

    hack/house/apply.sh

What it cannot decide it prints, and goes on.
"""

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "fractile"


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout


def table() -> dict[str, str]:
    rows = re.findall(r"^\| `([\w.]+)` \| `([\w.]+)` \|$", (ROOT / "docs/develop/tree.md").read_text(), re.M)
    return dict(rows)


def tests_table(modules: dict[str, str]) -> dict[str, str]:
    """Test modules, as tests.agent.test_allocate, to their new place: each beside what it tests."""
    moved: dict[str, str] = {}
    extra = (ROOT / "hack/house/move_tests.txt").read_text() if (ROOT / "hack/house/move_tests.txt").exists() else ""
    by_hand = dict(line.split() for line in extra.splitlines() if line.strip() and not line.startswith("#"))
    for path in git("ls-files", "tests").splitlines():
        if not path.endswith(".py"):
            continue
        old = path[:-3].replace("/", ".")
        area, _, name = old.removeprefix("tests.").rpartition(".")
        if old in by_hand:
            moved[old] = by_hand[old]
            continue
        if not name.startswith("test_"):
            continue
        words = name.removeprefix("test_").split("_")
        for end in range(len(words), 0, -1):
            module, rest = f"{area}.{'_'.join(words[:end])}", words[end:]
            if module in modules:
                place, _, last = modules[module].rpartition(".")
                moved[old] = f"tests.{place}.test_{'_'.join([last, *rest])}"
                break
            if (ROOT / "src" / PACKAGE / (module.replace(".", "/") + ".py")).exists():
                break
    return {a: b for a, b in moved.items() if a != b}


class File:
    """One Python file whose imports and names of modules are rewritten."""

    def __init__(self, path: Path, moves: dict[str, str]) -> None:
        self.path, self.moves = path, moves
        self.text = path.read_text()
        self.edits: list[tuple[int, int, str]] = []
        self.starts = [0]
        for line in self.text.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line.encode()))

    def at(self, line: int, column: int) -> int:
        return self.starts[line - 1] + column

    def rewrite(self) -> str:
        tree = ast.parse(self.text)
        renamed: dict[str, str] = {}
        self.used = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name)} | {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
        self.used |= {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
                self.import_from(node, renamed)
        if renamed:
            self.names(tree, renamed)
        data = self.text.encode()
        for start, end, new in sorted(self.edits, reverse=True):
            data = data[:start] + new.encode() + data[end:]
        return data.decode()

    def import_from(self, node: ast.ImportFrom, renamed: dict[str, str]) -> None:
        groups: dict[str, list[str]] = {}
        changed = False
        for alias in node.names:
            full = f"{node.module}.{alias.name}"
            if full in self.moves:
                place, _, last = self.moves[full].rpartition(".")
                local = alias.asname
                if local is None and last != alias.name:
                    if last in self.used:
                        local = alias.name
                    else:
                        renamed[alias.name] = last
                word = f"{last} as {local}" if local and local != last else last
                groups.setdefault(place, []).append(word)
                changed = True
            else:
                module = self.moves.get(node.module or "", node.module or "")
                changed |= module != node.module
                groups.setdefault(module, []).append(f"{alias.name} as {alias.asname}" if alias.asname else alias.name)
        if not changed:
            return
        indent = " " * node.col_offset
        new = f"\n{indent}".join(f"from {m} import {', '.join(names)}" for m, names in groups.items())
        assert node.end_lineno is not None and node.end_col_offset is not None
        self.edits.append((self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset), new))

    def names(self, tree: ast.Module, renamed: dict[str, str]) -> None:
        self.scope(tree, renamed)

    def scope(self, node: ast.AST, renamed: dict[str, str]) -> None:
        """Names bound in a function are its own."""
        inner = dict(renamed)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            a = node.args
            bound = {x.arg for x in [*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg] if x}
            bound |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
            for name in bound & inner.keys():
                print(f"{self.path.relative_to(ROOT)}:{node.lineno}: {name} is bound here")
                del inner[name]
        if isinstance(node, ast.Name) and node.id in inner:
            self.edits.append((self.at(node.lineno, node.col_offset), self.at(node.lineno, node.col_offset) + len(node.id), inner[node.id]))
        for child in ast.iter_child_nodes(node):
            self.scope(child, inner)


def in_texts(text: str, moves: dict[str, str], paths: dict[str, str], dotted: re.Pattern[str], slashed: re.Pattern[str]) -> str:
    def name(m: re.Match[str]) -> str:
        if text[m.end() :].startswith(" import ") and text[: m.start()].endswith("from "):
            return m[0]  # done already
        further = re.match(r"\.\w+", text[m.end() :])
        return m[0] if further and m[0] + further[0] in packages else moves[m[0]]

    packages = set(moves.values())
    text = dotted.sub(name, text)
    return slashed.sub(lambda m: paths[m[0]], text)


def main() -> int:
    modules = table()
    tests = tests_table(modules)
    moves = {f"{PACKAGE}.{a}": f"{PACKAGE}.{b}" for a, b in modules.items()} | tests
    paths: dict[str, str] = {}
    for old, new in moves.items():
        a, b = (x.replace(".", "/") + ".py" for x in (old, new))
        prefix = "src/" if old.startswith(PACKAGE) else ""
        if not (ROOT / (prefix + a)).exists():
            print(f"{prefix + a} is not there")
            continue
        paths[prefix + a] = prefix + b
    python = [ROOT / p for p in git("ls-files", "*.py", "*.pyi").splitlines() if not p.startswith("hack/house/")]
    for path in python:
        new = File(path, moves).rewrite()
        if new != path.read_text():
            path.write_text(new)
    short = {a.removeprefix(f"src/{PACKAGE}/"): b.removeprefix(f"src/{PACKAGE}/") for a, b in paths.items() if a.startswith("src/")}
    both = paths | {a.removeprefix("src/"): b.removeprefix("src/") for a, b in paths.items() if a.startswith("src/")} | short
    dotted = re.compile(r"(?<![\w.])(" + "|".join(sorted(map(re.escape, moves), key=len, reverse=True)) + r")(?![\w])")
    slashed = re.compile(r"(?<![\w/.])(" + "|".join(sorted(map(re.escape, both), key=len, reverse=True)) + r")(?!\w)")
    skip = {"docs/develop/tree.md", "CHANGELOG.md"}
    for name in git("ls-files").splitlines():
        path = ROOT / name
        if name in skip or name.startswith("hack/house/") or path.is_symlink() or path.suffix in (".png", ".gz", ".svg", ".c", ".h") or not path.exists():
            continue
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        new = in_texts(text, moves, both, dotted, slashed)
        if new != text:
            path.write_text(new)
    for a, b in paths.items():
        (ROOT / b).parent.mkdir(parents=True, exist_ok=True)
    for a, b in paths.items():  # in two steps: a module may take the name of a package
        git("mv", a, a + ".moving")
    for a, b in paths.items():
        (ROOT / b).parent.mkdir(parents=True, exist_ok=True)
        git("mv", a + ".moving", b)
    return 0


if __name__ == "__main__":
    sys.exit(main())
