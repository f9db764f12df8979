"""Nothing but a plain file is opened, and what lies in its place goes."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fractile.region import plain
from tests.region.strange import folder, link, pipe

STRANGE = [pytest.param(one, id=one.__name__) for one in (folder, link, pipe)]


@pytest.mark.parametrize("put", STRANGE)
def test_what_is_no_plain_file_is_not_opened_and_no_read_of_it_waits(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "limits")
    with pytest.raises(OSError, match="not a regular file"):
        plain.open_file(tmp_path / "limits")
    assert plain.size(tmp_path / "limits") is None


@pytest.mark.parametrize("put", STRANGE)
def test_what_lies_in_the_place_of_a_file_goes_and_what_a_link_led_to_stays(
    tmp_path: Path, put: Callable[[Path], None]
) -> None:
    put(tmp_path / "limits")
    plain.make_room(tmp_path / "limits")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] in ([], [("target", "somebody's")])


def test_a_folder_that_holds_something_is_kept_under_another_name(tmp_path: Path) -> None:
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits" / "note").write_text("somebody's")
    plain.make_room(tmp_path / "limits")
    (kept,) = tmp_path.iterdir()
    assert kept.name.startswith("limits.aside-")
    assert (kept / "note").read_text() == "somebody's"


def test_a_plain_file_and_nothing_at_all_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "limits").write_text("ours")
    plain.make_room(tmp_path / "limits")
    plain.make_room(tmp_path / "none")
    plain.make_room(tmp_path / "limits" / "below a file")
    assert (tmp_path / "limits").read_text() == "ours"
    assert plain.size(tmp_path / "limits") == 4
    plain.make_room_for_folder(tmp_path / "limits")
    assert not (tmp_path / "limits").exists()


def test_what_cannot_be_taken_away_is_named_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "limits").mkdir()

    def busy(name: str, *, dir_fd: int) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(os, "rmdir", busy)
    with pytest.raises(OSError, match=r"cannot be removed \(Device or resource busy\).*limits"):
        plain.make_room(tmp_path / "limits")
