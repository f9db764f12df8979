"""What is read from the log of a kubelet that grows, line by line, as kubelet 1.36.3 writes it."""

import time
from pathlib import Path

from tests.chaos.acts.denials import Denials

LINE = (
    'I1121 20:05:41.608341   14035 allocation_manager.go:619] "Pod admission denied" podUID="{uid}" pod="chaos/{uid}" '
    'reason="UnexpectedAdmissionError" message="Allocate failed due to {why}, which is unexpected" operation="add"\n'
)
WHEN = time.mktime((time.localtime().tm_year, 11, 21, 20, 5, 41, 0, 0, -1)) + 0.608341
AWAY = "no healthy devices present; cannot allocate unhealthy devices aliyun.com/gpu-mem"


def test_who_was_denied_for_want_of_the_plugin_is_found_once_and_kept(tmp_path: Path) -> None:
    log, other = tmp_path / "a.log", tmp_path / "none.log"
    denials = Denials({"a": log, "b": other})
    assert denials.look() == {}
    log.write_text("something else\n" + LINE.format(uid="u1", why=AWAY))
    assert denials.look() == {"u1": WHEN}
    with log.open("a") as more:
        more.write(LINE.format(uid="u2", why="cannot allocate unregistered device aliyun.com/gpu-mem"))
    assert denials.look() == {"u1": WHEN, "u2": WHEN}


def test_half_a_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    log, line = tmp_path / "a.log", LINE.format(uid="u1", why=AWAY)
    denials = Denials({"a": log})
    log.write_text(line[:60])
    assert denials.look() == {}
    log.write_text(line)
    assert denials.look() == {"u1": WHEN}


def test_what_the_plugin_itself_refused_is_none_of_them(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text(LINE.format(uid="u1", why="rpc error: code = InvalidArgument desc = no such card"))
    assert Denials({"a": log}).look() == {}
