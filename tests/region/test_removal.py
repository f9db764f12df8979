"""Taking a container's directory away, with what a hostile container leaves in it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.region.removal import remove_tree

DEEP = 3000  # levels; the path is longer than the kernel takes in one piece


def deep(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=descriptor)
        below = os.open("d", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor))
    os.close(descriptor)


def wide(folder: Path) -> None:
    for n in range(300):
        (folder / f"f{n}").touch()
        (folder / f"d{n}" / "e").mkdir(parents=True)


def strange(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "dangling").symlink_to("/nowhere")
    (folder / os.fsdecode(b"\xff\n")).touch(mode=0)
    (folder / "closed").mkdir(mode=0)


@pytest.mark.parametrize("fill", [deep, wide, strange], ids=lambda f: f.__name__)
def test_whatever_a_container_left_is_removed(fill: Callable[[Path], None], tmp_path: Path) -> None:
    folder = tmp_path / "token" / "shared"
    folder.mkdir(parents=True)
    fill(folder)
    remove_tree(tmp_path / "token")
    assert list(tmp_path.iterdir()) == []


def test_nothing_behind_a_link_is_touched(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("x")
    doomed = tmp_path / "doomed"
    doomed.mkdir()
    (doomed / "folder").symlink_to(kept)
    (doomed / "file").symlink_to(kept / "file")
    remove_tree(doomed)
    assert (kept / "file").read_text() == "x"
    (tmp_path / "link").symlink_to(kept)
    with pytest.raises(OSError, match=r"directory|symbolic"):
        remove_tree(tmp_path / "link")
    assert (kept / "file").exists()


def test_pythons_own_removal_would_end_the_agent(tmp_path: Path) -> None:
    """When this fails, ``removal`` has lost its reason."""
    deep(tmp_path)
    with pytest.raises(RecursionError):
        shutil.rmtree(tmp_path / "d")
    remove_tree(tmp_path / "d")
