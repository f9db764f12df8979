"""A part of the matrix of shares, with a few cases of every group, meets its bars: the cases of make shares-quick."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "interposer"), str(HERE.parents[1] / "shares")]

import judge  # noqa: E402
import suite  # noqa: E402

OUT = Path(os.environ.get("OUT", "build")).resolve()


def test_the_quick_matrix_passes_its_bars() -> None:
    if os.environ.get("SANITIZE"):
        raise suite.Skip("its programs are too slow under a sanitizer")
    command = [sys.executable, HERE.parents[1] / "shares" / "run.py", "--build", OUT, "--quick"]
    ran = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    figures = json.loads(ran.stdout.splitlines()[-1])
    assert figures["cases"] >= 40 and not judge.missed(figures), ran.stdout
    assert ran.returncode == 0, ran.stdout


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
