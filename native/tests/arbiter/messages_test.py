"""fractile-arbiter's command line: every mistake is reported in one line."""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ARBITER = Path(os.environ.get("OUT", "build")).resolve() / "arbiter" / "fractile-arbiter"


def refused(*words: object, status: int = 2) -> str:
    done = subprocess.run([ARBITER, *map(str, words)], capture_output=True, text=True, timeout=20)
    lines = done.stderr.splitlines()
    assert done.returncode == status and not done.stdout, (words, done)
    assert len(lines) == 1 and lines[0].startswith("fractile-arbiter: "), (words, done.stderr)
    return lines[0]


def mistakes_are_told_in_one_line(place: Path) -> None:
    for words, said in (
        ([], "which slices?"),
        (["--slises", place], "there is no option --slises"),
        (["--slices"], "a value is missing after --slices"),
        (["status"], "status needs DIR or --control SOCKET"),
        (["status", place, "more"], "but was given more"),
        (["--json", "--slices", place], "--json goes with status"),
        (["--control", "x" * 300, "--slices", place], "the path is too long"),
    ):
        answer = refused(*words)
        assert said in answer and "--help" in answer, answer


def the_socket_is_named_as_it_is_found(place: Path) -> None:
    (place / "slices").mkdir()
    (place / "link").symlink_to("slices")
    for name in ("slices", "slices/", "link", "slices/../slices/."):
        answer = refused("status", place / name, status=1)
        assert f"no arbiter answers at {place.resolve()}/arbiter.sock " in answer, answer
    assert "No such file" in refused("status", place / "none", status=1)
    assert "No such file" in refused("--slices", place / "none", status=1)


def a_second_one_for_the_same_directory_is_refused(place: Path) -> None:
    (place / "slices").mkdir()
    first = subprocess.Popen([ARBITER, "--slices", place / "slices"])
    try:
        while subprocess.run([ARBITER, "status", place / "slices"], capture_output=True, timeout=20).returncode:
            time.sleep(0.01)
        assert f"another arbiter serves {place}/slices;" in refused("--slices", place / "slices", status=1)
        subprocess.run([ARBITER, "status", place / "slices"], check=True, capture_output=True, timeout=20)
    finally:
        first.terminate()
        first.wait()
    assert not list(place.glob("arbiter.sock"))


def one_that_cannot_wait_says_why_and_fails(place: Path) -> None:
    """Under the virtual clock the arbiter waits with a pipe of its own, whose path is taken here."""
    slices, bell = place / "slices", place / "clock-bell.0"
    slices.mkdir()
    bell.mkdir()
    command = [ARBITER.parents[1] / "virtual/arbiter/fractile-arbiter", "--slices", slices]
    environment = dict(os.environ, SIMGPU_DIR=str(place), SIMGPU_CLOCK="virtual")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1 and "fractile-arbiter: cannot wait for containers: " in done.stderr, done
    assert f"{bell}: Is a directory" in done.stderr, done.stderr


def help_is_printed_on_request(place: Path) -> None:
    done = subprocess.run([ARBITER, "--help"], cwd=place, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0 and not done.stderr
    for word in ("--slices", "--control", "--exclusive", "--parent", "status", "SIGTERM", "Exit status"):
        assert word in done.stdout, word


TESTS = [
    mistakes_are_told_in_one_line,
    the_socket_is_named_as_it_is_found,
    a_second_one_for_the_same_directory_is_refused,
    one_that_cannot_wait_says_why_and_fails,
    help_is_printed_on_request,
]


def main() -> int:
    failed = 0
    for test in TESTS:
        with tempfile.TemporaryDirectory() as place:
            try:
                test(Path(place))
                print(f"ok   {test.__name__}")
            except AssertionError as error:
                failed += 1
                print(f"FAIL {test.__name__}: {error}")
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
