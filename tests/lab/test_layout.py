"""Files of a cluster, and the lock that keeps two commands apart."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.hollow import shortcuts
from fractile.lab.layout import ClusterLayout, cluster_names, clusters_dir, layout, locked, shortcuts_dir


def test_root_keeps_clusters_in_var_lib_and_others_in_their_state_folder() -> None:
    assert clusters_dir(uid=0, env={"HOME": "/root"}) == Path("/var/lib/fractile/clusters")
    assert clusters_dir(uid=1000, env={"HOME": "/home/a"}) == Path("/home/a/.local/state/fractile/clusters")
    assert clusters_dir(uid=1000, env={"HOME": "/home/a", "XDG_STATE_HOME": "/s"}) == Path("/s/fractile/clusters")


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a/b", "..", "a" * 31, "a\n"])
def test_a_name_that_cannot_be_a_folder_or_label_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="cannot name a cluster"):
        layout(tmp_path, name)


def test_socket_paths_of_roots_clusters_fit_into_108_bytes() -> None:
    node = layout(Path("/var/lib/fractile/clusters"), "a" * 30).node(63)
    for socket in (
        node.run / "containerd.sock",
        node.kubelet / "pod-resources" / "kubelet.sock",
        node.kubelet / "device-plugins" / "kubelet.sock",
    ):
        assert len(os.fsencode(socket)) < 108


def test_a_file_is_written_in_one_step_and_left_alone_when_equal(tmp_path: Path) -> None:
    place = layout(tmp_path, "a")
    path = place.write(place.config / "x", "one")
    before = path.stat()
    assert before.st_mode & 0o777 == 0o600
    place.write(path, "one")
    assert path.stat().st_ino == before.st_ino
    place.write(path, b"two")
    assert path.read_text() == "two"
    assert [p.name for p in place.config.iterdir()] == ["x"]


def test_only_folders_are_clusters(tmp_path: Path) -> None:
    assert cluster_names(tmp_path / "none") == []
    (tmp_path / "b").mkdir()
    (tmp_path / "a").mkdir()
    (tmp_path / "a.lock").touch()
    assert cluster_names(tmp_path) == ["a", "b"]


def test_a_second_command_on_the_same_cluster_is_told_to_wait(tmp_path: Path) -> None:
    place = layout(tmp_path, "a")
    with locked(place):
        with pytest.raises(SetupError, match="another fractile up or down is running for cluster a"), locked(place):
            pass
        with locked(layout(tmp_path, "b")):
            pass
    with locked(place):
        pass


def test_the_lock_of_a_killed_command_is_free(tmp_path: Path) -> None:
    code = (
        "import os, pathlib, sys\n"
        "from fractile.lab.layout import layout, locked\n"
        "with locked(layout(pathlib.Path(sys.argv[1]), 'a')):\n"
        "    print('held', flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, timeout=30, check=False)
    assert done.stdout == b"held\n"
    with locked(layout(tmp_path, "a")):
        pass


def test_a_lock_file_that_was_removed_meanwhile_is_not_trusted(tmp_path: Path) -> None:
    place = layout(tmp_path, "a")
    with locked(place):
        place.lock.unlink()
        with locked(place):  # a new file, a new lock
            assert place.lock.exists()


def test_a_hollow_node_under_a_long_home_has_short_sockets_and_keeps_its_files(tmp_path: Path) -> None:
    home = tmp_path / ("long" * 30)
    place = ClusterLayout(home / "a", tmp_path / "s")
    shortcuts.make(place, 0)
    shortcuts.make(place, 0)
    (place.shortcut(0) / "device-plugins" / "file").write_text("x")
    assert (place.node(0).hollow / "device-plugins" / "file").read_text() == "x"
    shortcuts.remove(place)
    assert not (tmp_path / "s").exists()
    assert (place.node(0).hollow / "device-plugins" / "file").exists()
    shortcuts.remove(place)


@pytest.mark.parametrize("uid", [0, 1000, 65534])
def test_the_longest_cluster_name_leaves_room_for_the_agents_sockets(uid: int) -> None:
    for env in ({}, {"XDG_RUNTIME_DIR": f"/run/user/{uid}"}):
        place = ClusterLayout(Path("/x") / ("n" * 30), shortcuts_dir(uid=uid, env=env))
        assert len(str(place.shortcut(63))) < 60, "what the agent and the hollow node ask for"


def test_a_link_that_points_elsewhere_is_made_anew(tmp_path: Path) -> None:
    place = ClusterLayout(tmp_path / "a", tmp_path / "s")
    shortcuts.make(place, 0)
    place.shortcut(0).unlink()
    place.shortcut(0).symlink_to("/somewhere/else")
    shortcuts.make(place, 0)
    assert place.shortcut(0).readlink() == place.node(0).hollow


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    place = ClusterLayout(tmp_path / "a", tmp_path / "s")
    (tmp_path / "elsewhere").mkdir()
    place.shortcuts.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SetupError, match="belongs to another user"):
        shortcuts.make(place, 0)
