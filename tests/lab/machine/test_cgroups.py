"""The cgroup that all containers of a machine share: removed when it is empty and ours, and only then."""

import os
from pathlib import Path

import pytest

from fractile.lab.machine import cgroups


@pytest.fixture
def trees(tmp_path: Path) -> list[Path]:
    """Two hierarchies, played by folders: what counts here are names, emptiness and attributes."""
    found = [tmp_path / "cpu", tmp_path / "memory"]
    for tree in found:
        tree.mkdir()
    try:
        os.setxattr(found[0], "trusted.probe", b"1")
    except OSError as e:
        pytest.skip(f"no trusted attributes here: {e.strerror}")
    return found


def parents(trees: list[Path]) -> list[str]:
    return [tree.name for tree in trees if (tree / cgroups.PARENT).exists()]


def test_what_was_made_here_goes_when_it_is_empty(trees: list[Path]) -> None:
    cgroups.make_parent(trees)
    assert parents(trees) == ["cpu", "memory"]
    cgroups.make_parent(trees)  # a second cluster
    cgroups.remove_parent(trees)
    assert parents(trees) == []
    cgroups.remove_parent(trees)


def test_what_holds_a_container_of_somebody_else_stays(trees: list[Path]) -> None:
    cgroups.make_parent(trees)
    (trees[0] / cgroups.PARENT / "container").mkdir()
    cgroups.remove_parent(trees)
    assert parents(trees) == ["cpu"]


def test_what_was_there_before_stays_though_it_is_empty(trees: list[Path]) -> None:
    (trees[0] / cgroups.PARENT).mkdir()
    cgroups.make_parent(trees)
    cgroups.remove_parent(trees)
    assert parents(trees) == ["cpu"]


@pytest.mark.skipif(os.geteuid() != 0, reason="cgroups need root")
def test_the_kernels_own_hierarchies_bear_the_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a name of our own, beside whatever this machine runs."""
    monkeypatch.setattr(cgroups, "PARENT", f"fractile-test-{os.getpid()}")
    trees = [tree for tree in cgroups.hierarchies() if os.access(tree, os.W_OK)]
    if not trees:
        pytest.skip("no cgroup hierarchy can be written here")
    try:
        cgroups.make_parent(trees)
        made = parents(trees)
    finally:
        cgroups.remove_parent(trees)
    assert made == [tree.name for tree in trees]
    assert parents(trees) == []
