"""The folder of one container, also when a privileged container has put something into it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fractile.agent.limits import vcuda_folder
from fractile.agent.limits.vcuda_folder import VcudaFolder
from fractile.wire.foreign.vcuda import CONFIG_NAME, PIDS_NAME


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[VcudaFolder]:
    vcuda_folder.prepare(tmp_path)
    made = VcudaFolder(tmp_path)
    yield made
    made.close()


def test_files_are_readable_by_everybody_and_writable_by_nobody_else(folder: VcudaFolder) -> None:
    before = os.umask(0o077)
    try:
        folder.write(CONFIG_NAME, b"one")
    finally:
        os.umask(before)
    assert (folder.path / CONFIG_NAME).stat().st_mode & 0o777 == 0o644
    folder.write(CONFIG_NAME, b"other")
    assert (folder.path / CONFIG_NAME).read_bytes() == b"other"
    assert os.listdir(folder.path) == [CONFIG_NAME]


@pytest.mark.parametrize("planted", [CONFIG_NAME, f".{CONFIG_NAME}.new"])
def test_a_link_that_was_planted_is_replaced_and_not_followed(
    folder: VcudaFolder, tmp_path: Path, planted: str
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (folder.path / planted).symlink_to(victim)
    folder.write(CONFIG_NAME, b"ours")
    assert victim.read_text() == "precious"
    assert not (folder.path / CONFIG_NAME).is_symlink()
    assert (folder.path / CONFIG_NAME).read_bytes() == b"ours"


def test_a_folder_that_is_a_link_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "vcuda").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotADirectoryError):
        VcudaFolder(tmp_path)


def test_a_name_leads_to_the_same_files(folder: VcudaFolder) -> None:
    folder.write(PIDS_NAME, b"1234")
    assert folder.link("a" * 64)
    assert (folder.path / ("a" * 64) / PIDS_NAME).read_bytes() == b"1234"


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../x", CONFIG_NAME, "vcuda.sock", ".x", "x" * 300, "A\n"])
def test_what_is_no_name_is_refused(folder: VcudaFolder, name: str) -> None:
    assert not folder.link(name)
    assert os.listdir(folder.path) == []


def test_only_the_last_few_names_are_kept(folder: VcudaFolder) -> None:
    for n in range(10):
        assert folder.link(f"name-{n}")
        os.utime(folder.path / f"name-{n}", ns=(n, n), follow_symlinks=False)
    assert folder.links() == [f"name-{n}" for n in range(6, 10)]
    assert folder.link("name-9")
    assert len(folder.links()) == 4


def test_when_the_container_has_ended_names_and_pids_are_gone(folder: VcudaFolder) -> None:
    folder.write(CONFIG_NAME, b"c")
    folder.write(PIDS_NAME, b"1234")
    folder.link("main")
    folder.forget()
    assert sorted(os.listdir(folder.path)) == [PIDS_NAME, CONFIG_NAME]
    assert folder.size(PIDS_NAME) == 0
    folder.listen().close()
    folder.clear()
    assert os.listdir(folder.path) == []


def test_a_socket_replaces_the_one_of_an_earlier_agent_however_long_the_path_is(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    vcuda_folder.prepare(deep)
    made = VcudaFolder(deep)
    made.listen().close()
    first = (made.path / "vcuda.sock").stat().st_ino
    with made.listen():
        assert (made.path / "vcuda.sock").stat().st_mode & 0o777 == 0o666
        assert os.listdir(made.path) == ["vcuda.sock"]
        assert (made.path / "vcuda.sock").stat().st_ino != first
    made.close()
