"""Files fetched into the user's cache are there completely or not at all. These tests use no network."""

import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

FETCH = Path(__file__).resolve().parents[2] / "fetch"
sys.path.insert(0, str(FETCH))

import cache  # noqa: E402


def a_directory_takes_its_place_only_when_it_is_whole(place: Path) -> None:
    try:
        with cache.made_whole(place / "one") as (_, ready):
            (ready / "half").write_text("x")
            raise cache.Missing("the rest")
    except cache.Missing:
        pass
    assert list(place.iterdir()) == []
    with cache.made_whole(place / "one") as (work, ready):
        (work / "scratch").write_text("x")
        (ready / "all").write_text("x")
    assert [p.name for p in place.iterdir()] == ["one"] and [p.name for p in (place / "one").iterdir()] == ["all"]


def an_environment_is_made_once_for_the_same_packages(place: Path) -> None:
    for packages, fresh in ((("a==1",), True), (("a==1",), False), (("a==2",), True)):
        cache.environment(place, packages)
        mark = place / "venv" / "mark"
        assert mark.exists() != fresh
        mark.write_text("")
    assert (place / "installed").read_text() == "a==2"


def an_environment_whose_packages_cannot_be_had_is_not_called_installed(place: Path) -> None:
    cache.environment(place, ("a==1",))
    try:
        cache.environment(place, ("a==2",), ("--no-index", "--quiet", "a==2"))
        raise AssertionError("it cannot be had")
    except subprocess.CalledProcessError:
        assert not (place / "installed").exists()


def each_program_says_what_it_is_given(place: Path) -> None:
    for name in ("programs", "frameworks", "wheels", "vendor"):
        done = subprocess.run([sys.executable, FETCH / f"{name}.py"], cwd=place, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (2, f"usage: {name}.py DIRECTORY\n"), done
        file = place / "file"
        file.write_text("")
        done = subprocess.run([sys.executable, FETCH / f"{name}.py", file], capture_output=True, text=True)
        assert done.returncode == 1 and "cannot be had here: " in done.stderr and len(done.stderr.splitlines()) == 1, (
            done
        )


TESTS: list[Callable[[Path], None]] = [
    a_directory_takes_its_place_only_when_it_is_whole,
    an_environment_is_made_once_for_the_same_packages,
    an_environment_whose_packages_cannot_be_had_is_not_called_installed,
    each_program_says_what_it_is_given,
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
