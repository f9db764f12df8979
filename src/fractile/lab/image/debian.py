"""Debian packages as files: this machine's apt resolves and fetches them from its mirrors, and they are unpacked
without running any of their code. The result is Python and its libraries, without shell, package manager or maintainer
scripts.

Failure rule: closed, with apt's message in a SetupError.
"""

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from fractile.errors import SetupError

_TIMEOUT = 600.0  # seconds; 17 MB take ten on an ordinary connection

# Needed only by dpkg's scripts, the modules nis, dbm, sqlite3 and readline, and tar (apt-cache depends).
_NOT_NEEDED = """
dpkg gcc-12-base libacl1 libcom-err2 libcrypt1 libdb5.3 libgssapi-krb5-2 libk5crypto3 libkeyutils1 libkrb5-3
libkrb5support0 libmd0 libncursesw6 libnsl2 libpcre2-8-0 libreadline8 libselinux1 libsqlite3-0 libtinfo6
libtirpc-common libtirpc3 libzstd1 mawk media-types readline-common tar
"""


class Package(msgspec.Struct, frozen=True, order=True):
    """One package as apt fetched it."""

    name: str
    version: str
    architecture: str
    source: str
    file: Path

    @property
    def purl(self) -> str:
        """Its package URL (package-url.org, type deb)."""
        version = self.version.replace(":", "%3A").replace("+", "%2B")
        return f"pkg:deb/debian/{self.name}@{version}?arch={self.architecture}"


def fetch(names: Sequence[str], folder: Path) -> list[Package]:
    """Fetch the packages and their dependencies, without ``_NOT_NEEDED``. Files already in ``folder`` are kept."""
    if lacking := [p for p in ("apt-get", "dpkg-deb") if shutil.which(p) is None]:
        raise SetupError(
            f"{' and '.join(lacking)} missing: the image is made of Debian packages; use the Containerfile"
        )
    (folder / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="fractile-apt-") as empty:
        Path(empty, "status").touch()  # as if nothing were installed, so that all dependencies are listed
        Path(empty, "archives", "partial").mkdir(parents=True)
        # --print-uris omits files that are already fetched, so it is run with an empty folder.
        listed = _apt(empty, Path(empty), "--print-uris", names)
        _apt(empty, folder, "--download-only", names)
    wanted = [words[1] for line in listed.splitlines() if len(words := line.split()) > 2 and "://" in words[0]]
    found = [_package(folder / "archives" / file) for file in wanted]
    return sorted(p for p in found if p.name not in _NOT_NEEDED.split())


def _apt(state: str, cache: Path, mode: str, names: Sequence[str]) -> str:
    options = (f"Dir::State::status={state}/status", f"Dir::Cache={cache}", "Debug::NoLocking=1")
    settings = [word for option in options for word in ("-o", option)]
    return _run(["apt-get", "-q", *settings, "--no-install-recommends", mode, "-y", "install", *names])


def unpack(packages: Sequence[Package], root: Path) -> None:
    """Unpack the packages below ``root``, and write each one's record where image scanners look for it."""
    records = root / "var" / "lib" / "dpkg" / "status.d"
    records.mkdir(parents=True, exist_ok=True)
    for one in packages:
        _run(["dpkg-deb", "--extract", str(one.file), str(root)])
        (records / one.name).write_text(_run(["dpkg-deb", "--field", str(one.file)]))


def _package(file: Path) -> Package:
    fields = _run(["dpkg-deb", "--show", "--showformat=${Package}|${Version}|${Architecture}|${source:Package}", file])
    name, version, architecture, source = fields.split("|")
    return Package(name, version, architecture, source, file)


def _run(argv: Sequence[str | Path]) -> str:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        raise SetupError(
            f"{argv[0]} took longer than {_TIMEOUT:.0f} s; check whether the Debian mirrors answer"
        ) from None
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise SetupError(f"{argv[0]} failed: {said}; `apt-get update` renews the lists of packages")
    return done.stdout
