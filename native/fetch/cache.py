"""What tests need and the repository does not have, in directories of the user's cache: fetched once, whole or not at
all.

Each program of this folder is run by make as `NAME.py DIRECTORY`. Where something cannot be had it says so in one line
and ends with status 1; the tests that need it are skipped then.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Missing(Exception):
    """It cannot be had on this machine; the text says why."""


@contextmanager
def made_whole(target: Path) -> Generator[tuple[Path, Path]]:
    """A scratch directory, and within it the directory to fill, which takes its place only when all went well."""
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        ready = Path(name) / "ready"
        ready.mkdir()
        yield Path(name), ready
        ready.rename(target)


def pip(*arguments: object) -> None:
    """Raises CalledProcessError; pip has then said why."""
    subprocess.run([sys.executable, "-m", "pip", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def environment(directory: Path, packages: Sequence[str], *installs: Sequence[str]) -> None:
    """``directory``/venv with what these calls of `pip install` put there; made again when it was for other
    packages."""
    venv, done = directory / "venv", directory / "installed"
    wanted = "\n".join(packages)
    if done.is_file() and done.read_text() == wanted:
        return
    done.unlink(missing_ok=True)
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    for words in installs:
        pip("--python", venv / "bin/python", "install", "--quiet", *words)
    done.write_text(wanted)


def main(what: str, fetch: Callable[[Path], None]) -> int:
    """Fetch into the directory that the command line names."""
    if len(sys.argv) != 2:
        print(f"usage: {Path(sys.argv[0]).name} DIRECTORY", file=sys.stderr)
        return 2
    directory = Path(sys.argv[1])
    try:
        directory.mkdir(parents=True, exist_ok=True)
        fetch(directory)
    except (subprocess.SubprocessError, OSError, Missing) as error:
        print(f"{what} cannot be had here: {error}", file=sys.stderr)
        return 1
    return 0
