"""The C parts of a local cluster: built once for each state of their sources, from a copy, into the user's cache."""

import os
import shutil
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.machine import native
from fractile.lab.progress import Progress

_MAKEFILE = """
%:
\t@mkdir -p $(@D)
\t@echo built >>{log}
\t@printf 'int {name}(void) {{ return 0; }}' | cc -shared -fPIC -x c - -o $@
"""


def sources(root: Path, *, text: str = "one", symbol: str = "cuInit") -> Path:
    """A repository whose targets are all the same small library."""
    (root / "native" / "abi").mkdir(parents=True)
    (root / "native" / "abi" / "x.h").write_text(text)
    (root / "native" / "Makefile").write_text(_MAKEFILE.format(log=root / "log", name=symbol))
    (root / "examples" / "cuda").mkdir(parents=True)
    (root / "examples" / "cuda" / "probe.c").write_text("int cuInit(void); int main(void) { return cuInit(); }")
    return root


def env(tmp_path: Path, **more: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "cache"), **more}


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def progress(said: list[str]) -> Progress:
    return Progress(said.append)


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if not (shutil.which("cc") and shutil.which("make")):
        pytest.skip("no C compiler: install gcc and make")


def test_all_parts_are_built_once_and_found_again(tmp_path: Path, progress: Progress) -> None:
    root = sources(tmp_path / "root")
    folder = native.ensure(env(tmp_path), progress, root=root)
    assert all(os.access(Path(folder, name), os.X_OK) for name in ("libfractile.so", "fractile-arbiter", native.PROBE))
    assert Path(folder, "simgpu", "libcuda.so.1").is_file()
    count = (root / "log").read_text().count("built")
    assert native.ensure(env(tmp_path), progress, root=root) == folder
    assert (root / "log").read_text().count("built") == count
    assert [p for p in Path(folder).parent.iterdir() if p.name.startswith(".build")] == []


@pytest.mark.parametrize("file", ["native/abi/x.h", "native/Makefile", "examples/cuda/probe.c"])
def test_other_sources_are_another_build(tmp_path: Path, progress: Progress, file: str) -> None:
    root = sources(tmp_path / "root")
    folder = native.ensure(env(tmp_path), progress, root=root)
    with (root / file).open("a") as f:
        f.write("\n")
    assert native.ensure(env(tmp_path), progress, root=root) != folder
    assert Path(folder).is_dir()


def test_what_the_build_leaves_beside_the_sources_changes_nothing(tmp_path: Path) -> None:
    root = sources(tmp_path / "root")
    before = native.fingerprint(root)
    (root / "native" / "build").mkdir()
    (root / "native" / "build" / "x.o").write_text("x")
    (root / "native" / "abi" / "__pycache__").mkdir()
    (root / "native" / "abi" / "__pycache__" / "y.pyc").write_text("y")
    assert native.fingerprint(root) == before


def test_without_a_compiler_the_cluster_does_without_and_is_told_the_packages(
    tmp_path: Path, progress: Progress, said: list[str]
) -> None:
    root = sources(tmp_path / "root")
    assert native.ensure(env(tmp_path) | {"PATH": str(tmp_path)}, progress, root=root) == ""
    assert "not enforced: cc and make missing; install the packages gcc, libc6-dev and make" in said[0]


def test_an_installation_without_sources_does_without(tmp_path: Path, progress: Progress, said: list[str]) -> None:
    assert native.ensure(env(tmp_path), progress, root=tmp_path) == ""
    assert native.PREBUILT in said[0]


def test_sources_that_do_not_compile_are_an_error_with_the_compilers_words(tmp_path: Path, progress: Progress) -> None:
    root = sources(tmp_path / "root", symbol="not a name")
    with pytest.raises(SetupError, match=r"does not compile: .*error"):
        native.ensure(env(tmp_path), progress, root=root)
    assert list((tmp_path / "cache" / "fractile" / "native").glob("[!.]*")) == []


def test_a_folder_that_is_given_must_have_all_parts(tmp_path: Path, progress: Progress) -> None:
    folder = Path(native.ensure(env(tmp_path), progress, root=sources(tmp_path / "root")))
    assert native.ensure(env(tmp_path, **{native.PREBUILT: str(folder)}), progress, root=tmp_path) == str(folder)
    (folder / "fractile-arbiter").unlink()
    with pytest.raises(SetupError, match="lacks fractile-arbiter"):
        native.ensure(env(tmp_path, **{native.PREBUILT: str(folder)}), progress, root=tmp_path)
