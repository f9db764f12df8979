"""Builds the container image into dist/: `make image`. TAG in the environment replaces the version as the tag."""

import os
import sys
from pathlib import Path

from fractile.errors import FractileError
from fractile.lab.image import build
from fractile.lab.progress import Progress


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def main() -> None:
    root = Path(__file__).parents[1]
    progress = Progress(_tell)
    try:
        made = build.build(root / "dist", root=root, env=os.environ, progress=progress, tag=os.environ.get("TAG", ""))
    except FractileError as e:
        sys.exit(f"make image: {e}")
    sys.stdout.write(
        f"{made.file.relative_to(root)}  {made.name}  {made.size / 1e6:.1f} MB, unpacked {made.unpacked / 1e6:.0f} MB\n"
    )


if __name__ == "__main__":
    main()
