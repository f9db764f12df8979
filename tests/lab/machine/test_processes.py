"""Processes are known by pid and start time, recorded before they become their program."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.machine import processes
from fractile.lab.machine.processes import StartedProcess

Starter = Callable[..., StartedProcess]


@pytest.fixture
def start(tmp_path: Path) -> Generator[Starter]:
    started: list[StartedProcess] = []

    def run(*argv: str, name: str = "one") -> StartedProcess:
        process = processes.start(
            argv, record=tmp_path / "run" / f"{name}.pid", log=tmp_path / f"{name}.log", env=dict(os.environ)
        )
        started.append(process)
        return process

    yield run
    for process in started:
        processes.stop(process, grace=0)


def eventually(condition: Callable[[], bool], seconds: float = 5.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_started_program_is_the_recorded_process_and_not_our_child(start: Starter, tmp_path: Path) -> None:
    process = start("sleep", "60")
    assert processes.running(tmp_path / "run" / "one.pid") == process
    assert eventually(lambda: Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"sleep\x0060\x00")
    stat = Path(f"/proc/{process.pid}/stat").read_text().rpartition(") ")[2].split()
    assert int(stat[1]) != os.getpid()
    assert int(stat[3]) == process.pid, "it leads its own session, so no terminal's hang-up reaches it"


def test_its_output_goes_to_the_log_which_is_appended_to(start: Starter, tmp_path: Path) -> None:
    log = tmp_path / "one.log"
    log.write_text("before\n")
    start("sh", "-c", "echo out; echo err >&2; exec sleep 60")
    assert eventually(lambda: log.read_text() == "before\nout\nerr\n")


def test_a_process_that_ended_is_not_running(start: Starter, tmp_path: Path) -> None:
    process = start("true")
    assert processes.wait(process, 5.0)
    assert processes.running(tmp_path / "run" / "one.pid") is None
    assert not processes.send(process, signal.SIGKILL)


def test_another_process_with_the_recorded_pid_is_left_alone(tmp_path: Path, start: Starter) -> None:
    other = start("sleep", "60", name="other")
    stat = Path(f"/proc/{other.pid}/stat").read_text().split(") ")
    fields = stat[1].split()
    fields[19] = str(int(fields[19]) - 1)
    record = tmp_path / "stale.pid"
    record.write_text(f"{processes.boot_id()}\n{stat[0]}) {' '.join(fields)}\n")
    assert processes.running(record) is None
    impostor = StartedProcess(other.pid, other.started - 1)
    assert not processes.alive(impostor)
    assert not processes.send(impostor, signal.SIGKILL)
    assert processes.alive(other)


def test_a_record_of_an_earlier_boot_means_nothing(start: Starter, tmp_path: Path) -> None:
    start("sleep", "60")
    record = tmp_path / "run" / "one.pid"
    boot, rest = record.read_text().split("\n", 1)
    record.write_text(f"{boot[::-1]}\n{rest}")
    assert processes.running(record) is None


@pytest.mark.parametrize("content", ["", "\n", "boot\n", "boot\nnonsense\n", "boot\n1 (a) b) R 1\n"])
def test_a_damaged_record_means_not_running(content: str, tmp_path: Path) -> None:
    record = tmp_path / "bad.pid"
    record.write_text(content.replace("boot", processes.boot_id()))
    assert processes.running(record) is None


def test_stop_asks_first_and_kills_what_does_not_listen(start: Starter, tmp_path: Path) -> None:
    polite = start("sh", "-c", "trap 'echo bye; exit' TERM; echo up; while :; do sleep 0.05; done", name="polite")
    assert eventually(lambda: "up" in (tmp_path / "polite.log").read_text())
    processes.stop(polite, grace=5.0)
    assert "bye" in (tmp_path / "polite.log").read_text()

    deaf = start("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.05; done", name="deaf")
    assert eventually(lambda: "up" in (tmp_path / "deaf.log").read_text())
    began = time.monotonic()
    processes.stop(deaf, grace=0.2)
    assert not processes.alive(deaf)
    assert time.monotonic() - began < 3


def test_a_zombie_has_ended() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    found = processes.identify(child.pid)
    assert found is not None
    child.kill()
    try:
        assert processes.wait(found, 5.0)
        assert eventually(lambda: not processes.alive(found)), "not waited for, so it is a zombie now"
    finally:
        child.wait(5)


def test_a_program_that_does_not_exist_says_so_in_its_log(start: Starter, tmp_path: Path) -> None:
    process = start("/no/such/program")
    assert processes.wait(process, 5.0)
    assert "/no/such/program" in (tmp_path / "one.log").read_text()


def test_a_record_that_cannot_be_written_is_a_setup_error(tmp_path: Path) -> None:
    (tmp_path / "one.pid.new").mkdir()
    with pytest.raises(SetupError, match="could not start true"):
        processes.start(["true"], record=tmp_path / "one.pid", log=tmp_path / "one.log", env=dict(os.environ))
