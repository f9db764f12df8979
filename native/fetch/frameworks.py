"""Puts PyTorch from PyPI into an environment of its own in the user's cache; run by `make -C native frameworks`.

    frameworks.py DIRECTORY       DIRECTORY/venv, fetched once

Only what PyTorch's libraries need to load is fetched; the runtime is tests/runtime. None of it becomes part of the
repository.
"""

import sys
from pathlib import Path

from cache import environment, main

PACKAGES = (
    "torch==2.7.1",
    "nvidia-cublas-cu12==12.6.4.1",
    "nvidia-cuda-cupti-cu12==12.6.80",
    "nvidia-cuda-nvrtc-cu12==12.6.77",
    "nvidia-cudnn-cu12==9.5.1.17",
    "nvidia-cufft-cu12==11.3.0.4",
    "nvidia-cufile-cu12==1.11.1.6",
    "nvidia-curand-cu12==10.3.7.77",
    "nvidia-cusparse-cu12==12.5.4.2",
    "nvidia-cusparselt-cu12==0.6.3",
    "nvidia-nccl-cu12==2.26.2",
    "nvidia-nvjitlink-cu12==12.6.85",
)
SIZE = ", 2.6 GB to fetch, 4.4 GB on the disk"
PURE = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "numpy<2.3")


def fetch(directory: Path) -> None:
    plain = "--no-cache-dir"
    environment(directory, PACKAGES, (plain, *PURE), (plain, "--no-deps", "--only-binary=:all:", *PACKAGES), size=SIZE)


if __name__ == "__main__":
    sys.exit(main("PyTorch", fetch))
