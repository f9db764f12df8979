"""Token directories."""

import errno
import itertools
import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.journal import Journal
from fractile.model.units import CardUUID, ContainerName, PodUID
from fractile.region import live, page
from fractile.region.page import CardLimits, ContainerLimits

IDS = frozenset({"GPU-a::0", "GPU-a::1"})
LIMITS = ContainerLimits(
    pod_uid=PodUID("u"),
    namespace="n",
    pod="p",
    container=ContainerName("c"),
    cards=(CardLimits(uuid=CardUUID("GPU-a"), memory=2**21),),
)
OTHER = msgspec.structs.replace(LIMITS, pod="q")


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


def test_every_user_may_read_its_own_directory_by_its_mount_and_nobody_reaches_it_by_its_path(journal: Journal) -> None:
    journal.create("a", "r", IDS)
    journal.write_limits("a", LIMITS)
    modes = {name: (journal.path("a") / name).stat().st_mode & 0o777 for name in (".", "..", "limits", "shared")}
    assert modes == {"..": 0o700, ".": 0o755, "limits": 0o644, "shared": 0o755}
    assert (journal.path("a") / "shared" / "region").stat().st_mode & 0o777 == 0o666


def test_limits_are_changed_in_place_and_left_alone_when_equal(journal: Journal) -> None:
    journal.create("a", "r", IDS)
    assert journal.limits("a") is None
    journal.write_limits("a", LIMITS)
    file = journal.path("a") / "limits"
    before = file.stat().st_ino, file.read_bytes()
    journal.write_limits("a", LIMITS)
    assert (file.stat().st_ino, file.read_bytes()) == before
    journal.write_limits("a", OTHER)
    read = journal.limits("a")
    assert read is not None
    assert read.pod == "q"
    assert file.stat().st_ino == before[0]
    assert sorted(p.name for p in journal.path("a").iterdir()) == ["ids", "limits", "shared"]


def test_a_change_that_a_crash_cut_off_is_finished_at_the_next_start(
    journal: Journal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal.create("a", "r", IDS)
    journal.write_limits("a", LIMITS)

    def killed(_order: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as at_the_first_fence:
        at_the_first_fence.setattr(live, "_fence", killed)
        with pytest.raises(KeyboardInterrupt):
            journal.write_limits("a", OTHER)
    assert journal.limits("a") is None  # half changed
    again = Journal(tmp_path / "slices", new_token=tokens())
    read = again.limits("a")
    assert read is not None
    assert read.pod == "q"
    assert sorted(p.name for p in again.path("a").iterdir()) == ["ids", "limits", "shared"]


def test_a_text_of_the_first_release_grants_nothing_and_is_told_of_once(
    journal: Journal, caplog: pytest.LogCaptureFixture
) -> None:
    journal.create("a", "r", IDS)
    (journal.path("a") / "limits").write_text("fractile-limits=1\npod-uid=u\ncards=0\nend=1\n")
    assert journal.limits("a") is None
    assert journal.limits("a") is None
    assert [("earlier release" in m, "token=a" in m) for m in caplog.messages] == [(True, True)]
    journal.write_limits("a", LIMITS)
    read = journal.limits("a")
    assert read is not None
    assert read.pod == "p"


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
    (journal.path("a") / "limits").write_bytes(page.encode(LIMITS)[:-6])
    assert journal.limits("a") is None


def test_a_removed_directory_is_gone(journal: Journal, tmp_path: Path) -> None:
    journal.create("a", "r", IDS)
    journal.write_limits("a", LIMITS)
    journal.remove("a")
    assert list((tmp_path / "slices").iterdir()) == []
    assert not journal.exists("a")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "..", "x/y"])
def test_only_directories_directly_below_the_root_have_a_token(journal: Journal, tmp_path: Path, path: str) -> None:
    assert journal.token(tmp_path / "slices" / path) == ""
    assert journal.token(tmp_path / "slices" / "abc") == "abc"


def test_a_directory_without_its_ids_as_a_power_failure_leaves_it_is_gone_after_the_next_start(
    journal: Journal, tmp_path: Path
) -> None:
    for token in ("a", "b"):
        journal.create(token, "r", IDS)
    os.truncate(tmp_path / "slices" / "a" / "ids", 0)
    again = Journal(tmp_path / "slices", new_token=lambda: "c")
    assert [g.token for g in again.grants()] == ["b"]
    again.create("a", "r", IDS)
    assert [g.token for g in again.grants()] == ["a", "b"]


def test_nothing_that_kubelet_waits_for_waits_for_the_disk(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(descriptor: int) -> None:
        raise AssertionError(os.readlink(f"/proc/self/fd/{descriptor}"))

    monkeypatch.setattr(os, "fsync", fsync)
    journal.create("a", "r", IDS)
    journal.write_limits("a", LIMITS)


@pytest.mark.parametrize("step", ["mkdir", "chmod", "write_text", "rename"])
def test_a_disk_that_fails_is_left_as_it_was(journal: Journal, tmp_path: Path, step: str) -> None:
    def full(*_args: object, **_kwargs: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, step, full)
        with pytest.raises(OSError, match="no space"):
            journal.create("a", "r", IDS)
    assert list((tmp_path / "slices").iterdir()) == []
    journal.create("a", "r", IDS)
    assert journal.exists("a")


def test_where_a_runtime_made_folders_in_place_of_a_lost_directory_it_is_made_anew(
    journal: Journal, tmp_path: Path
) -> None:
    region = tmp_path / "slices" / "a" / "shared" / "region"
    region.mkdir(parents=True)
    (region / "written by the container").write_text("x")
    journal.create("a", "r", IDS)
    journal.write_limits("a", LIMITS)
    assert [p.name for p in (tmp_path / "slices").iterdir()] == ["a"]
    assert region.is_file()
    assert journal.limits("a") is not None


def test_a_directory_that_is_ours_is_never_replaced(journal: Journal, tmp_path: Path) -> None:
    journal.create("a", "r", IDS)
    journal.write_limits("a", LIMITS)
    before = journal.path("a").stat().st_ino
    with pytest.raises(OSError, match="not empty"):
        journal.create("a", "r", IDS)
    assert journal.path("a").stat().st_ino == before
    assert [p.name for p in (tmp_path / "slices").iterdir()] == ["a"]
