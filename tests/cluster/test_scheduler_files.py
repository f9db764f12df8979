"""Files of a control-plane node: there whole or not at all."""

from pathlib import Path

import pytest

from fractile.cluster import scheduler_files
from fractile.cluster.scheduler_files import File, Place
from fractile.errors import SetupError
from fractile.wire.kubeadm import FOLDER
from tests.cluster.control_plane_node import Node


def test_a_write_that_fails_leaves_the_old_manifest_and_nothing_that_kubelet_would_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        scheduler_files.write_manifest(node.place, "new")

    assert node.place.manifest.read_text() == node.text
    assert [path.name for path in node.place.manifest.parent.iterdir()] == ["kube-scheduler.yaml"]


def test_what_a_killed_run_left_is_in_nobodys_way(tmp_path: Path) -> None:
    node = Node(tmp_path)
    left = node.place.manifest.parent / ".kube-scheduler.yaml.fractile-new"
    left.write_text("half of a")

    assert scheduler_files.manifest(node.place) == node.text
    scheduler_files.write_manifest(node.place, "new")

    assert node.place.manifest.read_text() == "new"
    assert not left.exists()


def test_a_name_says_what_is_in_the_file() -> None:
    one, other = File(b"a"), File(b"b")

    assert scheduler_files.named("ca", one) == scheduler_files.named("ca", one)
    assert scheduler_files.named("ca", one) != scheduler_files.named("ca", other)
    assert scheduler_files.named("scheduler", one).endswith(".yaml")


def test_only_what_we_have_named_is_ever_removed(tmp_path: Path) -> None:
    place = Place(tmp_path)
    kept, gone = File(b"kept"), File(b"gone")
    names = [scheduler_files.named("scheduler", file) for file in (kept, gone)]
    scheduler_files.write(place, dict(zip(names, (kept, gone), strict=True)), owner=(0, 0))
    others = ["scheduler.yaml", "ca.pem", "notes.txt", "ca-0123.pem"]
    for name in others:
        place.at(f"{FOLDER}/{name}").write_text("theirs")

    scheduler_files.prune(place, frozenset(names[:1]))

    left = sorted(path.name for path in place.at(FOLDER).iterdir())
    assert left == sorted([Path(names[0]).name, *others])


def test_the_files_that_a_configuration_names_belong_to_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    ca = scheduler_files.named("ca", File(b"ca"))
    configuration = File(f"extenders: [{{tlsConfig: {{caFile: {ca}}}}}]".encode())
    name = scheduler_files.named("scheduler", configuration)
    scheduler_files.write(place, {name: configuration}, owner=(0, 0))

    assert scheduler_files.names_in(place, name) == {name, ca}
    assert scheduler_files.names_in(place, "") == set()


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path: Path) -> None:
    node = Node(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    node.place.at(FOLDER).symlink_to(tmp_path / "elsewhere")

    with pytest.raises(SetupError, match="is a link"):
        scheduler_files.write(node.place, {scheduler_files.named("ca", File(b"a")): File(b"a")}, owner=(0, 0))

    assert list((tmp_path / "elsewhere").iterdir()) == []
