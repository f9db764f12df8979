"""Runs mutmut on one group of modules, in a copy of the repository, and reads what it found.

mutmut puts all mutants of a file into that file and forks a process for each, so a mutant costs the tests that reach
its function and no start of Python.
"""

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.mutants.modules import Modules
from tests.mutants.survivors import Change, change

ROOT = Path(__file__).parents[2]
LOG_CALL = r"^\s*log\.(debug|info|warning|error|exception)\("  # a person reads these lines, no program depends on them
_KILLED = "killed"
_TIMEOUT = "timeout"  # the mutant loops, or waits for what never comes: noticed, too, but shown apart
_MEANING = {  # exit statuses in mutmut's files
    0: "survived",
    1: _KILLED,
    3: _KILLED,
    5: "no test",
    33: "no test",
    34: "skipped",
    36: _TIMEOUT,
    24: _TIMEOUT,
    152: _TIMEOUT,
    255: _TIMEOUT,
    -24: _TIMEOUT,
    -11: _KILLED,
    -9: _KILLED,
}


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the mutants of one group."""

    name: str
    counts: dict[str, int]  # by meaning
    left: tuple[Change, ...]  # survived, or no test reaches them

    @property
    def total(self) -> int:
        return sum(self.counts.values()) - self.counts.get("skipped", 0)

    def killed(self, known: int = 0) -> float:
        """Percent of those that are not listed as equivalent."""
        judged = self.total - known
        return 100.0 * (judged - (len(self.left) - known)) / judged if judged else 100.0


class Unfinished(Exception):
    """mutmut did not get to its end; the text is the end of its output."""


class _Meta(msgspec.Struct):
    exit_code_by_key: dict[str, int | None]


def mutate(group: Modules, folder: Path, *, children: int) -> Found:
    """Run every mutant of the group; ``folder`` is emptied first. Raises Unfinished."""
    _copy(folder)
    _configure(group, folder)
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(children)]
    with (folder / "mutmut.log").open("wb") as log:
        outcome = subprocess.run(command, cwd=folder, stdout=log, stderr=log, env=_environment(), check=False)
    codes = _codes(folder)
    if not codes or None in codes.values():
        raise Unfinished(f"status {outcome.returncode}; {_end(folder / 'mutmut.log')}")
    counts = Counter(_MEANING.get(code or 0, "suspicious") for code in codes.values())
    left = [name for name, code in codes.items() if _MEANING.get(code or 0) in ("survived", "no test")]
    return Found(name=group.name, counts=dict(counts), left=tuple(_changes(left, folder)))


def _copy(folder: Path) -> None:
    """The files that git knows of, so that tests find all of the repository."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        if (ROOT / name).is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
    (folder / ".venv").symlink_to(ROOT / ".venv")


def _configure(group: Modules, folder: Path) -> None:
    sources = [str(path.relative_to(ROOT)) for pattern in group.sources for path in sorted(ROOT.glob(pattern))]
    others = sorted(p.name for p in folder.iterdir() if p.name not in ("src", "tests", "pyproject.toml", ".venv"))
    table = {
        "source_paths": ["src"],
        "only_mutate": sources,
        "do_not_mutate_patterns": [LOG_CALL],  # calls that begin on such a line, with all of their arguments
        "pytest_add_cli_args_test_selection": list(group.tests),
        "pytest_add_cli_args": ["-q", "-p", "no:cacheprovider"],
        "also_copy": others,
        "process_isolation": "forkserver",  # gRPC in some tests does not survive a fork
        "timeout_multiplier": 8.0,  # of the time without a mutant and 5 s: a busy machine must not look like a kill
        "timeout_constant": 5.0,
        "use_git_change_detection": False,
        "track_dependencies": False,
    }
    with (folder / "pyproject.toml").open("ab") as file:
        file.write(b"\n[tool.mutmut]\n")
        for key, value in table.items():
            file.write(key.encode() + b" = " + msgspec.json.encode(value) + b"\n")  # such JSON is TOML, too


def _environment() -> dict[str, str]:
    """With CI set, hypothesis tries the same examples each time: a mutant's fate does not change from run to run.
    FRACTILE_MUTANTS: see tests/conftest.py."""
    path = f"{ROOT / '.venv' / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, "PATH": path, "CI": "true", "FRACTILE_MUTANTS": "true"}


def _codes(folder: Path) -> dict[str, int | None]:
    found: dict[str, int | None] = {}
    for path in sorted((folder / "mutants" / "src").rglob("*.meta")):
        found |= msgspec.json.decode(path.read_bytes(), type=_Meta).exit_code_by_key
    return found


def _changes(names: list[str], folder: Path) -> Iterator[Change]:
    for name in names:
        shown = subprocess.run(
            [sys.executable, "-m", "mutmut", "show", name], cwd=folder, stdout=subprocess.PIPE, check=True
        )
        yield change(name, shown.stdout.decode())


def _end(path: Path, lines: int = 15) -> str:
    return "\n".join(path.read_text(errors="replace").replace("\r", "\n").splitlines()[-lines:])
