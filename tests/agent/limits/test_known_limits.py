"""Limits pages, decoded when they are other ones."""

import os
import shutil
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.known_limits import LOOKS
from fractile.region import directory, live
from fractile.region.page import ContainerLimits
from tests.region.examples import LIMITS

IDS = frozenset({"GPU-a::0"})


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = Journal(tmp_path / "slices", new_token=str)
    for token in ("a", "b"):
        made.create(token, "r", IDS)
        made.write_limits(token, LIMITS)
    return made


def test_what_is_not_touched_is_decoded_once(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    first = journal.granted()

    def again(folder: Path) -> ContainerLimits | None:
        raise AssertionError(folder)

    monkeypatch.setattr(directory, "read", again)
    for _ in range(3 * LOOKS):
        assert all(limits is first[token] for token, limits in journal.granted().items())


def test_the_journals_own_change_is_seen_at_once(journal: Journal) -> None:
    journal.granted()
    journal.write_limits("a", msgspec.structs.replace(LIMITS, pod="another"))
    assert {token: limits.pod for token, limits in journal.granted().items()} == {"a": "another", "b": LIMITS.pod}


def test_somebody_elses_change_is_seen_within_a_few_looks(journal: Journal) -> None:
    journal.granted()
    for token in ("a", "b"):
        limits = journal.limits(token)
        assert limits is not None
        live.update(journal.path(token) / directory.LIMITS, msgspec.structs.replace(limits, pod=f"of-{token}"))
    looks = [journal.granted() for _ in range(LOOKS)]
    assert {token: limits.pod for token, limits in looks[-1].items()} == {"a": "of-a", "b": "of-b"}


def test_pages_that_somebody_else_removes_are_lost_and_those_that_the_journal_removes_are_not(journal: Journal) -> None:
    journal.create("c", "r", IDS)
    journal.write_limits("c", LIMITS)
    journal.granted()
    journal.remove("c")
    assert sorted(journal.granted()) == ["a", "b"]
    assert not journal.lost
    (journal.path("a") / directory.LIMITS).unlink()
    looks = [journal.granted() for _ in range(LOOKS)]
    assert sorted(looks[-1]) == ["b"]
    assert journal.lost


def test_a_whole_folder_that_is_removed_is_lost_at_the_next_look(journal: Journal) -> None:
    journal.granted()
    shutil.rmtree(journal.root)
    assert journal.granted() == {}
    assert journal.lost
    assert list(journal.grants()) == []
    assert journal.pages() == set()


def test_what_goes_or_was_never_granted_is_not_there_and_no_descriptor_is_left(journal: Journal) -> None:
    before = len(os.listdir("/proc/self/fd"))
    journal.create("c", "r", IDS)
    assert sorted(journal.granted()) == ["a", "b"]
    journal.remove("a")
    assert sorted(journal.granted()) == ["b"]
    journal.remove("b")
    assert journal.granted() == {}
    assert len(os.listdir("/proc/self/fd")) == before
