"""What NVML says of a card's health, from the small library of ``fake_nvml.c``."""

from pathlib import Path

import pytest

from fractile.model.health import HealthReading, Silence
from tests.nvml.asker import Asker, asker
from tests.nvml.test_driver import library

__all__ = ["library"]  # the fixture


def write(path: Path, **state: int) -> Path:
    file = path / "state"
    file.write_text("".join(f"{name} {value}\n" for name, value in state.items()))
    return file


def first(ask: Asker) -> HealthReading:
    return ask.readings()[0]


def test_an_old_driver_that_says_nothing_of_health_still_lists_its_cards_and_events_are_waited_for_in_vain(
    library: Path,
) -> None:
    with asker(library) as ask:
        one, lost, three = ask.readings()
        assert (one.index, lost.index, three.index) == (0, 1, 2)
        assert (lost.card, lost.silence, lost.error) == (None, Silence.LOST, "GPU is lost")
        for reading in (one, three):
            known = {f for f in HealthReading.__struct_fields__ if getattr(reading, f) is not None}
            assert known == {"index", "card", "error"}
        assert ask.events(0.2) == []


def test_all_that_a_driver_says_is_read_and_read_anew(library: Path, tmp_path: Path) -> None:
    state = write(
        tmp_path,
        temperature=92,
        slowdown=90,
        shutdown=95,
        corrected=7,
        uncorrected=1,
        aggregate=999,
        pending=1,
        failed=0,
        recovery=1,
        mode=2,
        mig=1,
    )
    with asker(library, FAKE_NVML_STATE=str(state)) as ask:
        found = first(ask)
        assert (found.temperature, found.slowdown_at, found.shutdown_at) == (92, 90, 95)
        assert (found.corrected, found.uncorrected) == (7, 1)
        assert (found.repair_pending, found.repair_failed, found.reset_wanted) == (True, False, True)
        assert (found.prohibited, found.partitioned) == (True, True)
        write(tmp_path, temperature=40, slowdown=90, recovery=0, mode=3, mig=0, failed=1)
        found = first(ask)
        assert (found.temperature, found.reset_wanted, found.repair_failed) == (40, False, True)
        assert (found.prohibited, found.partitioned) == (False, False)


@pytest.mark.parametrize(("retiring", "pending"), [(1, True), (0, False)])
def test_cards_without_row_remapping_retire_pages(library: Path, tmp_path: Path, retiring: int, pending: bool) -> None:
    with asker(library, FAKE_NVML_STATE=str(write(tmp_path, retiring=retiring))) as ask:
        assert (first(ask).repair_pending, first(ask).repair_failed) == (pending, None)


def test_a_threshold_of_nothing_is_none(library: Path, tmp_path: Path) -> None:
    with asker(library, FAKE_NVML_STATE=str(write(tmp_path, temperature=50, slowdown=0))) as ask:
        assert (first(ask).temperature, first(ask).slowdown_at) == (50, None)


def test_a_new_session_reads_the_same(library: Path) -> None:
    with asker(library) as ask:
        before = ask.readings()
        ask.renew()
        assert ask.readings() == before
