"""Fetches the vendor's runtime libraries and headers, unpacked, into the user's cache; run by `make -C native wheels`.

    wheels.py DIRECTORY        DIRECTORY/{11.8,12.9,13.5,fatbins,encoders}; existing files are not fetched again

They are needed by tests only (for the symbols that the real runtime requests, the contents of fat binaries that its
compilers write, and third-party encoders of those contents) and never become part of the repository.
"""

import sys
import zipfile
from pathlib import Path

from cache import made_whole, main, pip

WHEELS = {
    "11.8": ("nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nvml-dev-cu11==11.8.86"),
    "12.9": ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79"),
    "13.5": ("nvidia-cuda-runtime==13.5.37", "nvidia-nvml-dev==13.5.37"),
    "fatbins": ("nvidia-nvjpeg-cu11==11.9.0.86", "nvidia-nvjpeg-cu12==12.4.0.76", "nvidia-nvjpeg==13.3.2.43"),
    "encoders": ("lz4==4.4.5", "zstandard==0.25.0"),
}


def fetch_generation(generation: str, directory: Path) -> None:
    with made_whole(directory / generation) as (work, ready):
        pip("download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", work, *WHEELS[generation])
        for wheel in work.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(ready)


def fetch(directory: Path) -> None:
    for generation in WHEELS:
        if not (directory / generation).is_dir():
            fetch_generation(generation, directory)


if __name__ == "__main__":
    sys.exit(main("the vendor's wheels", fetch))
