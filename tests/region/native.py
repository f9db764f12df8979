"""The C side of the two files: the generated header, and small programs that include it."""

import subprocess
import sys
from pathlib import Path
from shutil import which

import pytest

REGION = Path(__file__).parents[2] / "native" / "region"


def generate(kind: str, out: Path) -> None:
    subprocess.run([sys.executable, str(REGION / "generate.py"), kind, str(out)], check=True, timeout=60)


def compiled(source: str, folder: Path) -> Path:
    """The program, built against the header; the test is skipped where there is no C compiler."""
    if which("gcc") is None:
        pytest.skip("there is no gcc")
    generate("c", folder / "region.h")
    (folder / "program.c").write_text(source)
    out = folder / "program"
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", f"-I{folder}"]
    subprocess.run(["gcc", *flags, str(folder / "program.c"), "-o", str(out)], check=True, timeout=60)
    return out
