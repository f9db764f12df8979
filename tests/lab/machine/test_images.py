"""Images made of files: well-formed docker archives."""

import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import pytest

from fractile.lab.layout import layout
from fractile.lab.machine import images


@pytest.fixture
def busybox(tmp_path: Path) -> Path:
    """A program that lists its applets as busybox does."""
    program = tmp_path / "busybox"
    program.write_text("#!/bin/sh\nprintf 'busybox\\nsh\\nsleep\\nenv\\ncat\\n'\n")
    program.chmod(0o755)
    return program


def read(archive: Path) -> tuple[dict[str, object], dict[str, object], tarfile.TarFile]:
    with tarfile.open(archive) as tar:
        files = {m.name: tar.extractfile(m) for m in tar.getmembers()}
        content = {name: file.read() for name, file in files.items() if file}
    (manifest,) = json.loads(content["manifest.json"])
    config = json.loads(content[manifest["Config"]])
    (layer,) = manifest["Layers"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(content[layer]).hexdigest()}"]
    return manifest, config, tarfile.open(fileobj=io.BytesIO(content[layer]))


def test_the_archives_are_what_a_runtime_expects(tmp_path: Path, busybox: Path) -> None:
    archives = images.write_archives(layout(tmp_path, "a"), busybox)
    assert archives.keys() == {images.BUSYBOX, images.PAUSE}
    for name, archive in archives.items():
        manifest, config, layer = read(archive)
        assert manifest["RepoTags"] == [name]
        assert config["os"] == "linux"
        with layer:
            assert layer.getmember("bin/busybox").mode == 0o755
            assert layer.getmember("tmp").mode == 0o1777
            links = {m.name: m.linkname for m in layer.getmembers() if m.issym()}
            assert links == {"bin/sh": "busybox", "bin/env": "busybox", "bin/cat": "busybox"}
            assert all((m.uid, m.gid, m.mtime) == (0, 0, 0) for m in layer.getmembers())


def test_the_image_of_one_program_has_that_and_starts_it(tmp_path: Path, busybox: Path) -> None:
    archive = tmp_path / "one.tar"
    archive.write_bytes(images.program_archive("fractile.dev/one:1", busybox))
    manifest, config, layer = read(archive)
    assert manifest["RepoTags"] == ["fractile.dev/one:1"]
    assert config["config"] == {"Cmd": ["/bin/busybox"], "Env": ["PATH=/bin"], "WorkingDir": "/"}
    with layer:
        assert [m.name for m in layer.getmembers() if m.isreg()] == ["bin/busybox"]


def test_equal_content_gives_equal_archives(tmp_path: Path, busybox: Path) -> None:
    first = images.write_archives(layout(tmp_path, "a"), busybox)
    second = images.write_archives(layout(tmp_path, "b"), busybox)
    for name in first:
        assert first[name].read_bytes() == second[name].read_bytes()


def test_the_image_for_cuda_programs_has_the_program_and_the_c_library_that_it_needs(
    tmp_path: Path, busybox: Path
) -> None:
    program = Path("/bin/sh").resolve()  # any that is linked dynamically
    needed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    archives = images.write_archives(layout(tmp_path, "a"), busybox, program)
    assert archives.keys() == images.names(cuda=True) == {images.BUSYBOX, images.PAUSE, images.CUDA}
    _, _, layer = read(archives[images.CUDA])
    with layer:
        inside = {m.name: m for m in layer.getmembers()}
        libraries = [word.lstrip("/") for line in needed.splitlines() for word in line.split() if word.startswith("/")]
        assert any("libc" in name for name in libraries)
        for name in (f"bin/{program.name}", *libraries):
            assert inside[name].isreg()
            assert inside[name].mode == 0o755
            assert inside[str(Path(name).parent)].isdir()
        # What was made for glibc 2.17, as the library of the container image is, asks for these by name.
        (libc,) = (Path(f"/{name}") for name in libraries if name.endswith("/libc.so.6"))
        parts = {"libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6"}
        assert {p.name for p in libc.parent.iterdir()} & parts <= {Path(name).name for name in inside}
    _, _, plain = read(archives[images.BUSYBOX])
    with plain:
        assert not any("libc" in m.name for m in plain.getmembers())
