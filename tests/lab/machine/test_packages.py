"""What the nodes need from the operating system; apt-get is played by a script."""

import os
from pathlib import Path

from fractile.lab.machine import packages
from fractile.lab.progress import Progress, silent

APT = """#!/bin/sh
# Plays apt-get: notes the call, and installs by making the programs.
echo "$DEBIAN_FRONTEND $*" >>"$FAKE_APT/calls"
case "$FAKE_APT_MODE $*" in
  broken*install*) echo "Reading lists" >&2; echo "E: Unable to fetch some archives" >&2; exit 100 ;;
  stale*install*) test -e "$FAKE_APT/updated" || { echo "E: 404" >&2; exit 100; } ;;
  *update*) touch "$FAKE_APT/updated"; exit 0 ;;
esac
for program in containerd ctr runc busybox iptables ip; do
  printf '#!/bin/sh\\n' >"$FAKE_APT/$program"; chmod +x "$FAKE_APT/$program"
done
mkdir -p "$FAKE_APT/cni"; cp "$FAKE_APT/ip" "$FAKE_APT/cni/bridge"
"""


class Machine:
    """A machine with nothing on it but, perhaps, apt-get."""

    def __init__(self, folder: Path, mode: str, *, apt: bool = True) -> None:
        self.folder = folder
        self.env = {"PATH": os.environ["PATH"], "FAKE_APT": str(folder), "FAKE_APT_MODE": mode}
        if apt:
            (folder / "apt-get").write_text(APT)
            (folder / "apt-get").chmod(0o755)

    def install(self, progress: Progress) -> str:
        return packages.install_missing(progress, self.env, search=str(self.folder), cni=[f"{self.folder}/cni"])

    @property
    def calls(self) -> list[str]:
        path = self.folder / "calls"
        return path.read_text().splitlines() if path.exists() else []


def test_what_is_missing_is_installed_without_questions_and_once(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "good")
    lines: list[str] = []
    assert machine.install(Progress(lines.append)) == ""
    (call,) = machine.calls
    assert call.startswith("noninteractive ")
    for package in ("containerd", "runc", "containernetworking-plugins", "busybox-static", "iptables"):
        assert f" {package}" in call
    assert "installed (" in lines[-1]
    assert machine.install(silent()) == ""
    assert len(machine.calls) == 1


def test_an_outdated_list_of_packages_is_updated(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "stale")
    assert machine.install(silent()) == ""
    assert [call.split()[4] for call in machine.calls] == ["install", "update", "install"]


def test_a_failed_installation_is_a_reason_with_apts_words(tmp_path: Path) -> None:
    reason = Machine(tmp_path, "broken").install(silent())
    assert reason.startswith("missing packages: containerd runc")
    assert reason.endswith("(apt-get: E: Unable to fetch some archives)")


def test_without_apt_the_reason_names_the_packages(tmp_path: Path) -> None:
    reason = Machine(tmp_path, "good", apt=False).install(silent())
    assert reason == "missing packages: containerd runc busybox-static iptables iproute2 containernetworking-plugins"
