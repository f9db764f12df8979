"""The wheel that ``make dist`` builds is complete and runs outside of the repository."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fractile"
TIMEOUT = 120


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=TIMEOUT)
    (built,) = out.glob("*.whl")
    return built


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    inside = set(zipfile.ZipFile(wheel).namelist())
    files = [
        p for p in SOURCE.rglob("*") if p.is_file() and "__pycache__" not in p.parts and not p.name.startswith(".")
    ]

    assert {str(Path("fractile") / p.relative_to(SOURCE)) for p in files} - inside == set()
    assert {"fractile/lab/machine/kubernetes/go.mod", "fractile/lab/machine/kubernetes/go.sum"} <= inside
    assert any(name.startswith("fractile/lab/cluster/manifests/") for name in inside)


def test_the_wheel_carries_the_licence(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()

    assert [n for n in names if n.endswith(".dist-info/licenses/LICENSE")]


def test_the_program_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    target = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    subprocess.run([*install, "--no-deps", "--target", str(target), str(wheel)], check=True, timeout=TIMEOUT)
    environ = {**os.environ, "PYTHONPATH": str(target)}

    where = [sys.executable, "-c", "import fractile; print(fractile.__file__)"]
    module = subprocess.run(where, cwd=tmp_path, env=environ, check=True, capture_output=True, text=True, timeout=60)
    program = [str(target / "bin" / "fractile"), "--help"]
    helped = subprocess.run(program, cwd=tmp_path, env=environ, check=True, capture_output=True, text=True, timeout=60)

    assert Path(module.stdout.strip()).is_relative_to(target)
    assert "inspect" in helped.stdout
