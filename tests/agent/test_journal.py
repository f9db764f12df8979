"""Token directories."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.agent.journal import Journal
from fractile.model.placement import Slice
from fractile.model.units import CardUUID, ContainerName, MiB, PodUID
from fractile.wire import limits
from fractile.wire.limits import Limits

IDS = frozenset({"GPU-a::0", "GPU-a::1"})
TEXT = limits.encode(Limits(PodUID("u"), "n", "p", ContainerName("c"), (Slice(CardUUID("GPU-a"), MiB(2)),)))


def tokens() -> Callable[[], str]:
    numbers = itertools.count()
    return lambda: f"t{next(numbers)}"


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "slices", new_token=tokens())


def test_a_grant_is_found_again_by_its_ids_after_a_restart(journal: Journal, tmp_path: Path) -> None:
    journal.create("a", "r", IDS)
    journal.create("b", "r", IDS | {"GPU-a::2"})
    journal.create("c", "other", IDS)
    again = Journal(tmp_path / "slices", new_token=tokens())
    assert [g.token for g in again.find("r", IDS)] == ["a"]
    assert [g.token for g in again.grants()] == ["a", "b", "c"]


def test_every_user_may_read_its_own_directory_and_nobody_may_list_them(journal: Journal) -> None:
    journal.create("a", "r", IDS)
    journal.write_limits("a", TEXT)
    assert journal.path("a").parent.stat().st_mode & 0o777 == 0o711
    assert journal.path("a").stat().st_mode & 0o777 == 0o755
    assert (journal.path("a") / "limits").stat().st_mode & 0o777 == 0o644


def test_limits_are_replaced_in_one_step_and_left_alone_when_equal(journal: Journal) -> None:
    journal.create("a", "r", IDS)
    assert journal.limits("a") is None
    journal.write_limits("a", TEXT)
    inode = (journal.path("a") / "limits").stat().st_ino
    journal.write_limits("a", TEXT)
    assert (journal.path("a") / "limits").stat().st_ino == inode
    journal.write_limits("a", TEXT.replace("pod-name=p", "pod-name=q"))
    read = journal.limits("a")
    assert read is not None
    assert read.pod == "q"
    assert sorted(p.name for p in journal.path("a").iterdir()) == ["ids", "limits"]


def test_what_a_crash_left_half_made_is_cleared(journal: Journal, tmp_path: Path) -> None:
    (tmp_path / "slices" / ".half").mkdir()
    (tmp_path / "slices" / ".half" / "ids").write_text("x")
    Journal(tmp_path / "slices", new_token=tokens())
    assert list((tmp_path / "slices").iterdir()) == []


def test_strange_directories_are_passed_over(journal: Journal, tmp_path: Path) -> None:
    journal.create("good", "r", IDS)
    for name, text in (("a", "fractile-ids=2\nresource=r\nids=\n"), ("b", ""), ("c", "\xff" * 3)):
        (tmp_path / "slices" / name).mkdir()
        (tmp_path / "slices" / name / "ids").write_text(text, encoding="latin1")
    (tmp_path / "slices" / "d").mkdir()
    (tmp_path / "slices" / "file").write_text("x")
    assert [g.token for g in journal.grants()] == ["good"]


def test_a_damaged_limits_file_counts_as_none(journal: Journal) -> None:
    journal.create("a", "r", IDS)
    (journal.path("a") / "limits").write_text(TEXT[:-6])
    assert journal.limits("a") is None


def test_a_removed_directory_is_gone(journal: Journal, tmp_path: Path) -> None:
    journal.create("a", "r", IDS)
    journal.write_limits("a", TEXT)
    journal.remove("a")
    assert list((tmp_path / "slices").iterdir()) == []
    assert not journal.exists("a")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "..", "x/y"])
def test_only_directories_directly_below_the_root_have_a_token(journal: Journal, tmp_path: Path, path: str) -> None:
    assert journal.token(tmp_path / "slices" / path) == ""
    assert journal.token(tmp_path / "slices" / "abc") == "abc"
