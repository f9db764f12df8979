"""The library for containers of any age: built for glibc 2.17 with the wheel ziglang, cached next to the other builds.

Failure rule: open. Without ziglang the image gets the library from this machine's compiler, which containers with an
older glibc cannot load.
"""

import importlib.util
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from fractile.errors import SetupError
from fractile.lab.machine import native

NAME = "libfractile.so"
_TIMEOUT = 600.0  # seconds; a build takes forty on two cores, once per state of the sources


def library(env: Mapping[str, str], root: Path) -> Path | None:
    """The library's file, built if needed; None without ziglang."""
    if importlib.util.find_spec("ziglang") is None:
        return None
    cache = native.cache_dir(env).with_name("portable")
    file = cache / f"{native.fingerprint(root)}-{NAME}"
    if not file.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=cache) as work:
            built = _build(root, Path(work), env)
            for old in cache.glob(f"*-{NAME}"):
                old.unlink(missing_ok=True)
            built.replace(file)
    return file


def _build(root: Path, work: Path, env: Mapping[str, str]) -> Path:
    copy, out = work / "native", work / "out"
    shutil.copytree(root / "native", copy, ignore=shutil.ignore_patterns("build", "__pycache__"))
    target = out / "portable" / platform.machine() / NAME
    argv = [
        "make",
        "-s",
        "-C",
        str(copy),
        f"OUT={out}",
        f"PYTHON={sys.executable}",
        "SANITIZE=",
        "POINTS=",
        str(target),
    ]
    plain = {k: v for k, v in env.items() if not k.startswith("MAKE") and k not in ("CFLAGS", "LDFLAGS")}
    done = subprocess.run(argv, env=plain, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise SetupError(f"the library does not compile for glibc 2.17: {said[:300]}; see make -C native portable")
    return target
