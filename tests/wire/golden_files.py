"""The recorded bytes of every format, in tests/wire/golden.

``extender-args*.json`` and ``extender-bind.json`` are what kube-scheduler 1.36.3 really sent; the others are ours to
decide, and a change of them is a change that other versions of Fractile will see.
"""

from pathlib import Path

_FOLDER = Path(__file__).parent / "golden"


def golden(name: str) -> bytes:
    return (_FOLDER / name).read_bytes()
