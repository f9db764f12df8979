"""Files of a control-plane node: there whole or not at all."""

from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.kubeadm import files
from fractile.kubeadm.files import File, NodeRoot
from fractile.wire.foreign.kubeadm import FOLDER
from tests.kubeadm.control_plane_node import Node


def test_a_write_that_fails_leaves_the_old_manifest_and_nothing_that_kubelet_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write_manifest(node.place, "new")

    assert node.place.manifest.read_text() == node.text
    assert [path.name for path in node.place.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]


def test_what_a_killed_run_left_is_in_nobodys_way(tmp_path: Path) -> None:
    node = Node(tmp_path)
    left = node.place.manifest.parent / ".kube-scheduler.yaml.fractile-new"
    left.write_text("half of a")

    assert files.manifest(node.place) == node.text
    files.write_manifest(node.place, "new")

    assert node.place.manifest.read_text() == "new"
    assert not left.exists()


def test_a_name_says_what_is_in_the_file() -> None:
    one, other = File(b"a"), File(b"b")

    assert files.named("ca", one) == files.named("ca", one)
    assert files.named("ca", one) != files.named("ca", other)
    assert files.named("scheduler", one).endswith(".yaml")


def test_only_what_we_have_named_is_ever_removed(tmp_path: Path) -> None:
    place = NodeRoot(tmp_path)
    kept, gone = File(b"kept"), File(b"gone")
    names = [files.named("scheduler", file) for file in (kept, gone)]
    files.write(place, dict(zip(names, (kept, gone), strict=True)), owner=(0, 0))
    others = ["scheduler.yaml", "ca.pem", "notes.txt", "ca-0123.pem"]
    for name in others:
        place.at(f"{FOLDER}/{name}").write_text("theirs")

    files.prune(place, frozenset(names[:1]))

    left = sorted(path.name for path in place.at(FOLDER).iterdir())
    assert left == sorted([Path(names[0]).name, *others])


def test_the_files_that_a_configuration_names_belong_to_it(tmp_path: Path) -> None:
    place = NodeRoot(tmp_path)
    ca = files.named("ca", File(b"ca"))
    configuration = File(f"extenders: [{{tlsConfig: {{caFile: {ca}}}}}]".encode())
    name = files.named("scheduler", configuration)
    files.write(place, {name: configuration}, owner=(0, 0))

    assert files.names_in(place, name) == {name, ca}
    assert files.names_in(place, "") == set()


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    node.place.at(FOLDER).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(SetupError, match="is a link"):
        files.write(node.place, {files.named("ca", File(b"a")): File(b"a")}, owner=(0, 0))

    assert list((tmp_path / "elsewhere").iterdir()) == []
