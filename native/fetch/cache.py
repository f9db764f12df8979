"""Fetches files that tests need and that are not in the repository into the user's cache: once, completely or not at
all.

Make runs each program of this folder as `NAME.py DIRECTORY`. If something is not available, the program says so in one
line and ends with status 1, and the tests that need it are skipped.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path


class Missing(Exception):
    """The files are not available on this machine; the text says why."""


@contextmanager
def made_whole(target: Path) -> Generator[tuple[Path, Path]]:
    """A scratch directory, and in it the directory to fill, which is moved to `target` only if everything succeeds."""
    with tempfile.TemporaryDirectory(dir=target.parent) as name:
        ready = Path(name) / "ready"
        ready.mkdir()
        yield Path(name), ready
        ready.rename(target)


def pip(*arguments: object) -> None:
    """Raises CalledProcessError after pip has printed the reason."""
    subprocess.run([sys.executable, "-m", "pip", *map(str, arguments)], check=True, stdout=subprocess.DEVNULL)


def environment(directory: Path, packages: Sequence[str], *installs: Sequence[str], size: str = "") -> None:
    """``directory``/venv with the packages that these calls of `pip install` put there; made again if it contains
    other packages."""
    venv, done = directory / "venv", directory / "installed"
    wanted = "\n".join(packages)
    if done.is_file() and done.read_text() == wanted:
        return
    done.unlink(missing_ok=True)
    print(f"fetching {', '.join(packages)} into {venv}{size}: once, a minute or more", flush=True)
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
