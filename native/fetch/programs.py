"""Installs third-party programs into an environment of their own in the user's cache; run by `make -C native programs`.

    programs.py DIRECTORY       DIRECTORY/venv with the packages below; existing ones are not fetched again

They are needed by tests only and never become part of the repository.
"""

import sys
from pathlib import Path

from cache import environment, main

# cuda-bindings 13 contains a static runtime, which stops at the handshake with the vendor's driver.
PACKAGES = (
    "cuda-bindings==12.9.10",
    "cuda-core[cu12]==1.2.2",
    "numba-cuda[cu12]==0.30.4",
    "nvidia-ml-py==13.615.71",
    "nvitop==1.7.2",
    "gpustat==1.1.1",
)


def fetch(directory: Path) -> None:
    environment(directory, PACKAGES, ("--prefer-binary", *PACKAGES))


if __name__ == "__main__":
    sys.exit(main("the programs", fetch))
