"""Gets the vendor's runtime libraries and headers, unpacked, into the user's cache; run by `make -C native wheels`.

    wheels.py DIRECTORY        DIRECTORY/{11.8,12.9,13.5,fatbins,encoders}; what is there already is not fetched again

They are needed by tests only (which symbols the real runtime asks for; what its compilers write into fat binaries,
and other
authors' encoders of what is in them) and never become part of the repository.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = {
    "11.8": ("nvidia-cuda-runtime-cu11==11.8.89", "nvidia-nvml-dev-cu11==11.8.86"),
    "12.9": ("nvidia-cuda-runtime-cu12==12.9.79", "nvidia-nvml-dev-cu12==12.9.79"),
    "13.5": ("nvidia-cuda-runtime==13.5.37", "nvidia-nvml-dev==13.5.37"),
    "fatbins": ("nvidia-nvjpeg-cu11==11.9.0.86", "nvidia-nvjpeg-cu12==12.4.0.76", "nvidia-nvjpeg==13.3.2.43"),
    "encoders": ("lz4==4.4.5", "zstandard==0.25.0"),
}


def fetch(generation: str, target: Path) -> None:
    """Into a directory beside it, which takes its name only when it is whole."""
    with tempfile.TemporaryDirectory(dir=target) as work:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", work]
        subprocess.run([*pip, *WHEELS[generation]], check=True, stdout=subprocess.DEVNULL)
        unpacked = Path(work) / "unpacked"
        for wheel in Path(work).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        unpacked.rename(target / generation)


def main(arguments: list[str]) -> int:
    target = Path(arguments[0])
    target.mkdir(parents=True, exist_ok=True)
    for generation in WHEELS:
        if (target / generation).is_dir():
            continue
        try:
            fetch(generation, target)
        except subprocess.CalledProcessError:
            wanted = " ".join(WHEELS[generation])
            print(f"the wheels for {generation} cannot be had here: {wanted}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
