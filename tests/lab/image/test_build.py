"""The container image as a file: what is in the archive, and that equal content makes equal files."""

import gzip
import hashlib
import io
import json
import tarfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from fractile.errors import SetupError
from fractile.lab.image import build, debian, oci, sbom
from fractile.lab.image.debian import Package

ROOT = Path(__file__).parents[3]
CONFIG = oci.Config("amd64", ("/bin/run",), "65532:65532", {"A": "b"}, {"title": "t"})
PACKAGE = Package("libc6", "2.36-9+deb12u14", "amd64", "glibc", Path("x.deb"))


def tree(root: Path) -> Path:
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "run").write_text("#!/bin/sh\n")
    (root / "bin" / "run").chmod(0o755)
    (root / "bin" / "again").hardlink_to(root / "bin" / "run")
    (root / "link").symlink_to("bin/run")
    return root


def members(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as tar:
        return {m.name: file.read() for m in tar if (file := tar.extractfile(m)) is not None}


def test_every_blob_is_where_its_digest_says_and_the_image_bears_its_name(tmp_path: Path) -> None:
    layer = oci.write_layer(tree(tmp_path / "root"), tmp_path / "layer.tar.gz", time=0)
    size = oci.write_archive(tmp_path / "image.tar", [layer], CONFIG, name="example/x:1")
    assert size == (tmp_path / "image.tar").stat().st_size
    found = members(tmp_path / "image.tar")
    index: Any = json.loads(found["index.json"])
    for name, data in found.items():
        if name.startswith("blobs/sha256/"):
            assert hashlib.sha256(data).hexdigest() == name.removeprefix("blobs/sha256/")
    (listed,) = index["manifests"]
    assert listed["annotations"]["io.containerd.image.name"] == "example/x:1"
    manifest: Any = json.loads(found[f"blobs/{listed['digest'].replace(':', '/')}"])
    config: Any = json.loads(found[f"blobs/{manifest['config']['digest'].replace(':', '/')}"])
    packed = found[f"blobs/{manifest['layers'][0]['digest'].replace(':', '/')}"]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(gzip.decompress(packed)).hexdigest()}"]
    assert config["config"]["User"] == "65532:65532"


def test_equal_content_makes_equal_files_whoever_wrote_it_and_when(tmp_path: Path) -> None:
    made: list[bytes] = []
    for turn in ("one", "two"):
        root = tree(tmp_path / turn)
        layer = oci.write_layer(root, tmp_path / f"{turn}.tar.gz", time=1_700_000_000)
        oci.write_archive(tmp_path / f"{turn}.tar", [layer], CONFIG, name="example/x:1")
        made.append((tmp_path / f"{turn}.tar").read_bytes())
    assert made[0] == made[1]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress((tmp_path / "one.tar.gz").read_bytes()))) as tar:
        assert {(m.uid, m.gid, m.mtime) for m in tar} == {(0, 0, 1_700_000_000)}
        assert tar.getmember("bin/again").isreg()
        assert tar.getmember("bin/run").mode == 0o755


def test_the_list_of_what_is_inside_names_every_package_once() -> None:
    folder = Path(json.__file__).parent  # nothing installed there
    (site,) = {Path(str(d.locate_file(""))) for d in distributions() if d.name == "click"}
    listed: Any = json.loads(sbom.document("1.2.3", [PACKAGE], site))
    assert listed["bomFormat"] == "CycloneDX"
    assert listed["specVersion"] == "1.6"
    references = [c["bom-ref"] for c in listed["components"]]
    assert len(references) == len(set(references))
    assert "pkg:deb/debian/libc6@2.36-9%2Bdeb12u14?arch=amd64" in references
    assert any(r.startswith("pkg:pypi/click@") for r in references)
    assert {d["ref"] for d in listed["dependencies"]} <= {*references, "pkg:pypi/fractile@1.2.3"}
    assert listed["serialNumber"].startswith("urn:uuid:")
    assert sbom.document("1.2.3", [PACKAGE], folder) == sbom.document("1.2.3", [PACKAGE], folder)
    assert sbom.document("1.2.4", [PACKAGE], folder) != sbom.document("1.2.3", [PACKAGE], folder)


def test_without_apt_one_is_sent_to_the_containerfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"apt-get and dpkg-deb missing.*Containerfile"):
        debian.fetch(["python3.11"], tmp_path)


def test_the_image_is_what_chart_and_plain_daemonset_ask_for() -> None:
    version = build.version(ROOT)
    assert f"version: {version}\nappVersion: {version}\n" in (ROOT / "charts" / "fractile" / "Chart.yaml").read_text()
    assert f"repository: {build.REPOSITORY} #" in (ROOT / "charts" / "fractile" / "values.yaml").read_text()
    containerfile = (ROOT / "Containerfile").read_text()
    assert f"/{build.NATIVE} " in containerfile
    assert f"USER {build.USER}\n" in containerfile
    assert f'ENTRYPOINT ["/{build.PREFIX}/bin/fractile"]' in containerfile


def test_pip_is_told_each_requirement_whole_also_one_with_a_condition(tmp_path: Path) -> None:
    wanted = ["httptools>=0.6", "uvloop>=0.22; sys_platform != 'win32'"]
    (tmp_path / "pyproject.toml").write_text(f"[project]\ndependencies = {json.dumps(wanted)}\n")
    (tmp_path / "constraints.txt").write_text("httptools==0.9.0\nuvloop==0.23.0\n")
    assert build.requirements(build.pins_of(tmp_path)) == wanted
