"""Puts PyTorch from PyPI into an environment of its own in the user's cache; run by `make -C native frameworks`.

    install_frameworks.py DIRECTORY       DIRECTORY/venv: 2.6 GB to fetch, 4.3 GB unpacked; fetched once

Only what PyTorch's libraries need to load: the runtime is tests/runtime. Nothing of it becomes part of the repository.
"""

import subprocess
import sys
from pathlib import Path

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
PURE = ("filelock", "typing-extensions", "sympy", "networkx", "jinja2", "fsspec", "numpy<2.3")


def install(directory: Path) -> None:
    venv, done = directory / "venv", directory / "installed"
    wanted = "\n".join(PACKAGES)
    if done.is_file() and done.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", "--no-cache-dir"]
    subprocess.run([*pip, "--no-deps", "--only-binary=:all:", *PACKAGES], check=True)
    subprocess.run([*pip, *PURE], check=True)
    done.write_text(wanted)


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    try:
        install(directory)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"PyTorch cannot be installed here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
