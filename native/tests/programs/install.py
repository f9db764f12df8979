"""Puts programs of other people into an environment of their own in the user's cache; run by `make -C native programs`.

    install.py DIRECTORY       DIRECTORY/venv with the packages below; what is there already is not fetched again

They are needed by tests only and never become part of the repository.
"""

import subprocess
import sys
from pathlib import Path

# cuda-bindings 13 carries a static runtime, which stops at the handshake with the vendor's driver.
PACKAGES = (
    "cuda-bindings==12.9.10",
    "cuda-core[cu12]==1.2.2",
    "numba-cuda[cu12]==0.30.4",
    "nvidia-ml-py==13.615.71",
    "nvitop==1.7.2",
    "gpustat==1.1.1",
)


def install(directory: Path) -> None:
    venv, done = directory / "venv", directory / "installed"
    wanted = "\n".join(PACKAGES)
    if done.is_file() and done.read_text() == wanted:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(venv)], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin/python"), "install", "--quiet", "--prefer-binary"]
    subprocess.run([*pip, *PACKAGES], check=True, stdout=subprocess.DEVNULL)
    done.write_text(wanted)


def main(arguments: list[str]) -> int:
    directory = Path(arguments[0])
    directory.mkdir(parents=True, exist_ok=True)
    try:
        install(directory)
    except (subprocess.CalledProcessError, OSError) as error:
        print(f"the programs cannot be installed here: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
