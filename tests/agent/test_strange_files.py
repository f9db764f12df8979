"""What a slip or a broken disk puts in the place of a container's file concerns that container alone."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.known_limits import LOOKS
from fractile.model.units import PodUID
from fractile.region import directory
from fractile.region.page import ContainerLimits
from tests.region.examples import LIMITS
from tests.region.strange import empty, folder, full, garbage, link, pipe

IDS = frozenset({"GPU-a::0"})
OTHERS = msgspec.structs.replace(LIMITS, pod_uid=PodUID("another"), pod="another")


Harm = Callable[[Path], None]
HARMS = [pytest.param(harm, id=harm.__name__) for harm in (folder, full, link, pipe, empty, garbage)]
PLACES = ["ids", "limits", "limits.next", "region.fs", "region.new", "shared", "shared/region", "vcuda", ""]


def started(root: Path) -> Journal:
    return Journal(root / "slices", new_token=str)


def put(path: Path, harm: Harm) -> None:
    """In the place of whatever is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    harm(path)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    made = started(tmp_path)
    for token, limits in (("bad", LIMITS), ("good", OTHERS)):
        made.create(token, "r", IDS)
        made.write_limits(token, limits)
    made.granted()
    return made


def looks(journal: Journal) -> dict[str, ContainerLimits]:
    return [journal.granted() for _ in range(LOOKS)][-1]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("harm", HARMS)
def test_other_containers_stay_whole_while_the_agent_runs_and_when_it_starts(
    journal: Journal, tmp_path: Path, place: str, harm: Harm
) -> None:
    put(journal.path("bad") / place, harm)
    for one in (journal, started(tmp_path)):
        assert looks(one)["good"].pod == "another"
        assert "good" in [g.token for g in one.grants()]
        assert "good" in one.pages()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("harm", HARMS)
def test_whatever_lies_there_prestart_makes_the_container_whole_again(
    journal: Journal, tmp_path: Path, place: str, harm: Harm
) -> None:
    put(journal.path("bad") / place, harm)
    journal = started(tmp_path)
    journal.refill("bad", "r", IDS)
    journal.write_limits("bad", LIMITS)
    assert looks(journal)["bad"].pod == LIMITS.pod
    assert sorted(g.token for g in journal.grants()) == ["bad", "good"]
    limits = journal.limits("bad")
    assert limits is not None
    assert directory.shared.generation(journal.path("bad") / directory.REGION, cards=2) == limits.generation


@pytest.mark.parametrize("harm", HARMS)
def test_a_page_that_is_none_any_more_is_missed(journal: Journal, harm: Harm) -> None:
    put(journal.path("bad") / directory.LIMITS, harm)
    assert "bad" not in looks(journal)
    assert journal.lost


def test_a_page_that_is_cut_to_nothing_in_place_is_missed(journal: Journal) -> None:
    os.truncate(journal.path("bad") / directory.LIMITS, 0)
    assert "bad" not in looks(journal)
    assert journal.lost


def test_ids_that_are_cut_to_nothing_take_no_directory_from_a_container_that_may_run(
    journal: Journal, tmp_path: Path
) -> None:
    os.truncate(journal.path("bad") / "ids", 0)
    journal = started(tmp_path)
    assert "bad" in looks(journal)
    assert not journal.exists("bad")


@pytest.mark.parametrize("harm", HARMS)
def test_what_lies_in_the_place_of_all_directories_goes(tmp_path: Path, harm: Harm) -> None:
    harm(tmp_path / "slices")
    journal = started(tmp_path)
    journal.create("good", "r", IDS)
    assert "good" in [g.token for g in journal.grants()]
