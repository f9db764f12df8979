"""Fetches the vendor's user-space driver, unpacked, into the user's cache; run by `make -C native vendor`.

    vendor.py DIRECTORY        DIRECTORY/driver/{libcuda.so.1, version}; existing files are not fetched again

It is Debian's package libcuda1 of the section non-free, downloaded with a separate apt configuration from this
machine's package sources, and never installed. One test looks at its tables and symbols; none of it becomes part of
the repository.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

from cache import Missing, made_whole, main

APT = Path("/etc/apt")


def only_non_free(text: str) -> str:
    """Replaces the sections of a list of sources, in either of its two formats, by non-free."""
    text = re.sub(r"(?m)^Components:.*$", "Components: non-free", text)
    return re.sub(r"(?m)^(deb\s.*?)\bmain\b.*$", r"\1non-free", text)


def sources(work: Path) -> list[str]:
    parts = work / "sources"
    parts.mkdir()
    found = [APT / "sources.list", *APT.glob("sources.list.d/*.list"), *APT.glob("sources.list.d/*.sources")]
    for path in found:
        if path.is_file():
            (parts / path.name).write_text(only_non_free(path.read_text()))
    for name in ("lists/partial", "cache/archives/partial"):
        (work / name).mkdir(parents=True)
    places = {
        "Dir::Etc::SourceList": "/dev/null",
        "Dir::Etc::SourceParts": parts,
        "Dir::State::Lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Acquire::Retries": 0,
        "Acquire::http::Timeout": 10,
        "APT::Sandbox::User": "root",
    }
    return [f"-o{name}={value}" for name, value in places.items()]


def fetch(directory: Path) -> None:
    if (directory / "driver").is_dir():
        return
    if not shutil.which("apt-get") or not shutil.which("dpkg"):
        raise Missing("no apt-get")
    with made_whole(directory / "driver") as (work, ready):
        apt = ["apt-get", "-qq", *sources(work)]
        subprocess.run([*apt, "update"], check=True, capture_output=True, timeout=120)
        subprocess.run([*apt, "download", "libcuda1"], check=True, capture_output=True, timeout=120, cwd=work)
        for package in work.glob("libcuda1_*.deb"):
            subprocess.run(["dpkg", "-x", str(package), str(work / "unpacked")], check=True)
        libraries = [path for path in work.glob("unpacked/**/libcuda.so.*.*") if not path.is_symlink()]
        if not libraries:
            raise Missing("the package has no libcuda.so")
        shutil.copy(libraries[0], ready / "libcuda.so.1")
        (ready / "version").write_text(libraries[0].name.removeprefix("libcuda.so.") + "\n")


if __name__ == "__main__":
    sys.exit(main("the vendor's driver (libcuda1)", fetch))
