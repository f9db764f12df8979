"""Where the Kubernetes programs come from; the program `go` is played by a script."""

import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.machine import programs
from fractile.lab.machine.programs import PACKAGES
from fractile.lab.progress import Progress, silent

GO = """#!/bin/sh
# Plays `go build ... -o NAME PACKAGE`: writes NAME, notes the call.
echo "$CGO_ENABLED $PWD $*" >>"$FAKE_GO_CALLS"
test -f go.mod && test -f go.sum || { echo "no module here" >&2; exit 1; }
while [ "$1" != -o ]; do shift; done
case "$FAKE_GO_MODE" in
  fail) echo "go: warming up" >&2; echo "cannot find module" >&2; exit 1 ;;
  hang) echo half >"$2"; sleep 60 ;;
esac
printf '#!/bin/sh\\n' >"$2"; chmod +x "$2"
"""


def make_programs(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("#!/bin/sh\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    go = make_programs(tmp_path / "bin", "go") / "go"
    go.write_text(GO)
    return {
        "PATH": f"{go.parent}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "FAKE_GO_CALLS": str(tmp_path / "calls"),
    }


def test_the_cache_is_keyed_by_version_system_and_architecture(tmp_path: Path) -> None:
    folder = programs.cache_dir({"HOME": str(tmp_path)})
    assert folder.parent == tmp_path / ".cache" / "fractile" / "kubernetes"
    assert folder.name.startswith(f"{programs.pinned_version()}-linux-")
    assert programs.cache_dir({"HOME": "/x", "XDG_CACHE_HOME": "/c"}).is_relative_to("/c/fractile")


def test_assets_that_have_everything_are_used(env: dict[str, str], tmp_path: Path) -> None:
    assets = make_programs(tmp_path / "assets", *PACKAGES)
    found = programs.ensure({**env, "KUBEBUILDER_ASSETS": str(assets)}, silent())
    assert found.folder == assets
    assert not (tmp_path / "calls").exists()


def test_assets_that_lack_something_are_passed_over_with_a_line(env: dict[str, str], tmp_path: Path) -> None:
    assets = make_programs(tmp_path / "assets", "etcd", "kube-apiserver", "kubectl")  # what envtest brings
    lines: list[str] = []
    found = programs.ensure({**env, "KUBEBUILDER_ASSETS": str(assets)}, Progress(lines.append))
    assert found.folder == programs.cache_dir(env)
    assert "lacks kube-controller-manager, kube-scheduler, kubelet" in lines[0]


def test_what_is_missing_is_built_once_with_a_line_each(env: dict[str, str], tmp_path: Path) -> None:
    make_programs(programs.cache_dir(env), "etcd")
    lines: list[str] = []
    found = programs.ensure(env, Progress(lines.append))
    assert all(os.access(found[name], os.X_OK) for name in PACKAGES)
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == len([line for line in lines if " built (" in line]) == len(PACKAGES) - 1
    assert all(call.startswith("0 ") and "-trimpath" in call for call in calls)
    assert f"gitVersion={programs.pinned_version()}" in calls[0]
    assert "building kube-apiserver (1 of 5)" in lines[0]
    programs.ensure(env, Progress(lines.append))
    assert "cached in" in lines[-1]
    assert len((tmp_path / "calls").read_text().splitlines()) == len(calls)


def test_only_what_is_asked_for_is_built(env: dict[str, str], tmp_path: Path) -> None:
    found = programs.ensure(env, silent(), ["kubectl"])
    assert sorted(p.name for p in found.folder.iterdir() if not p.name.startswith(".")) == ["kubectl"]


def test_a_failed_build_shows_gos_last_line_and_leaves_nothing(env: dict[str, str]) -> None:
    with pytest.raises(SetupError, match=r"go could not build .*: cannot find module$"):
        programs.ensure({**env, "FAKE_GO_MODE": "fail"}, silent())
    assert [p.name for p in programs.cache_dir(env).iterdir()] == [".lock"]


def test_a_killed_build_leaves_no_half_program_and_the_next_one_cleans_up(env: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import os\nfrom fractile.lab.machine import programs\nfrom fractile.lab.progress import silent\n"
        "programs.ensure(os.environ, silent(), ['kubectl'])\n"
    )
    build = subprocess.Popen([sys.executable, "-c", code], env={**env, "FAKE_GO_MODE": "hang"}, start_new_session=True)
    try:
        deadline = time.monotonic() + 20
        while not list(programs.cache_dir(env).glob(".build-*/kubectl")):
            assert time.monotonic() < deadline, "the build never began"
            time.sleep(0.02)
    finally:
        os.killpg(build.pid, signal.SIGKILL)
        build.wait(10)
    assert programs.find(env, ["kubectl"]) is None
    found = programs.ensure(env, silent(), ["kubectl"])
    assert Path(found["kubectl"]).stat().st_mode & stat.S_IXUSR
    assert not list(found.folder.glob(".build-*"))


def test_without_go_the_remedy_is_named(env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "GO_FOLDERS", ())
    with pytest.raises(SetupError, match=r"Go is missing; install Go .* or set KUBEBUILDER_ASSETS"):
        programs.ensure({**env, "PATH": "/nonexistent"}, silent())
