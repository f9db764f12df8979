"""``make test-versions``: builds the kube-schedulers that are missing, then holds what we print against all of them.

``python -m tests.versions 1.24 1.28`` takes some. A version that cannot be built is told, and the others are tested;
the exit status is 0 only if all were built and all tests pass.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence

from fractile.errors import FractileError
from tests.versions import build


def main(wanted: Sequence[str]) -> int:
    unknown = [minor for minor in wanted if minor not in build.RELEASES]
    if unknown:
        print(f"there is no version {unknown[0]!r}; there are {', '.join(build.RELEASES)}", file=sys.stderr)
        return 2
    minors = wanted or tuple(build.RELEASES)
    built = [minor for minor in minors if _built(minor)]
    if not built:
        return 1
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/versions"]
    tests = subprocess.run(command, env={**os.environ, "FRACTILE_VERSIONS": ",".join(built)}, check=False)
    return tests.returncode or int(len(built) < len(minors))


def _built(minor: str) -> bool:
    release = build.RELEASES[minor]
    began = time.monotonic()
    try:
        found = build.find(minor, os.environ) or build.build(minor, os.environ)
    except FractileError as e:
        print(f"  kube-scheduler {release:9} FAILED: {e}", flush=True)
        return False
    print(f"  kube-scheduler {release:9} {found} ({time.monotonic() - began:.0f} s)", flush=True)
    return True


sys.exit(main(sys.argv[1:]))
