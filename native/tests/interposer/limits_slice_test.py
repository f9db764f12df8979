"""fractile-slice on the command line: what it makes, changes and shows, and its messages for mistakes."""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

SLICE = os.environ.get("SLICE", str(Path(__file__).parents[2] / "build/slice/fractile-slice"))
MIB = 1 << 20


def run(*arguments: object) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([SLICE, *map(str, arguments)], capture_output=True, text=True, timeout=20)


def ok(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def refused(*arguments: object) -> str:
    done = run(*arguments)
    assert done.returncode != 0, done.stdout
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("fractile-slice: "), done.stderr
    return lines[0]


def what_was_asked_for_is_what_json_says(directory: Path) -> None:
    ok(
        "create",
        directory / "a/b",
        "--card",
        "GPU-1=512MiB,context=100MiB,cores=30,cores-limit=50,weight=7",
        "--card",
        "GPU-2=3",
    )
    said = json.loads(ok("json", directory / "a/b"))
    one, two = said["cards"]
    assert one["uuid"] == "GPU-1" and one["quota"] == 512 * MIB and one["context"] == 100 * MIB
    assert (one["cores"], one["coresLimit"], one["weight"]) == (30, 50, 7)
    assert two["quota"] == 3 and two["weight"] == 1 and two["used"] == 0
    assert said["off"] is False and said["processes"] == []


def set_changes_what_is_named_and_nothing_else(directory: Path) -> None:
    ok("create", directory, "--card", "GPU-1=1GiB,cores=30", "--card", "GPU-2=1GiB")
    before = (directory / "limits").stat().st_ino
    ok("set", directory, "--card", "GPU-1=cores=10,unaccounted=5MiB", "--off")
    said = json.loads(ok("json", directory))
    assert said["off"] and said["cards"][0]["quota"] == 1 << 30 and said["cards"][0]["cores"] == 10
    assert said["cards"][0]["unaccounted"] == 5 * MIB and said["cards"][1]["cores"] == 0
    ok("set", directory, "--card", "GPU-2=2GiB", "--on")
    said = json.loads(ok("json", directory))
    assert not said["off"] and said["cards"][1]["quota"] == 2 << 30
    assert (directory / "limits").stat().st_ino == before, "programs have the page mapped"


def all_may_write_the_region_and_none_the_limits(directory: Path) -> None:
    ok("create", directory, "--card", "GPU-1=1GiB")
    assert (directory / "limits").stat().st_mode & 0o777 == 0o644
    assert (directory / "shared/region").stat().st_mode & 0o777 == 0o666
    region = (directory / "shared/region").stat()
    assert region.st_blocks * 512 >= region.st_size


def a_new_container_has_a_new_region(directory: Path) -> None:
    generations: set[bytes] = set()
    for _ in range(3):
        ok("create", directory, "--card", "GPU-1=1GiB", "--replace")
        generations.add((directory / "shared/region").read_bytes()[24:32])
    assert len(generations) == 3
    assert sorted(p.name for p in directory.iterdir()) == ["limits", "shared"]


def show_is_a_table_of_cards_and_processes(directory: Path) -> None:
    ok("create", directory, "--card", "GPU-1=512MiB", "--card", "GPU-2=2GiB")
    lines = ok("show", directory).splitlines()
    assert lines[0].split() == ["CARD", "QUOTA", "USED", "PEAK", "REFUSALS", "CORES", "LIMIT"]
    assert lines[1].split()[:3] == ["GPU-1", "512", "MiB"] and lines[2].split()[:3] == ["GPU-2", "2", "GiB"]
    assert lines[4].split() == ["PID", "COMMAND", "ALIVE", "CARD", "0", "CARD", "1"]


def mistakes_are_told_in_one_sentence(directory: Path) -> None:
    place = directory / "d"
    assert "expected create, set, show or json" in refused()
    assert "expected create" in refused("make", place)
    assert "needs a directory" in refused("create")
    assert "needs a directory as its first argument" in refused("create", "")
    assert "needs a directory as its first argument" in refused("set", "--off", place)
    assert "expected UUID=AMOUNT" in refused("create", place, "--card", "512MiB")
    assert "how much memory" in refused("create", place, "--card", "GPU-1=cores=3")
    assert "named twice" in refused("create", place, "--card", "GPU-1=1", "--card", "GPU-1=2")
    assert "needs a value" in refused("create", place, "--card")
    assert "--quota is not an option" in refused("create", place, "--quota", "3")
    assert "unexpected argument b" in refused("create", place, "b", "--card", "GPU-1=1GiB")
    assert "--slots is an option of create only" in refused("set", place, "--slots", "3")
    assert "--off takes no value, but was given 1" in refused("create", place, "--card", "GPU-1=1GiB", "--off=1")
    assert "--on and --off exclude each other" in refused("create", place, "--card", "GPU-1=1GiB", "--off", "--on")
    assert "a UUID has at most 95 characters" in refused("create", place, "--card", "GPU-" + 92 * "1" + "=1GiB")
    assert "from 1 to 1024" in refused("create", place, "--slots", "0")
    assert "create needs a card" in refused("create", place)
    assert "an amount or a key is missing" in refused("create", place, "--card", "GPU-1=")
    for wrong in ("-1", "1.5GiB", "4Q", "5mib", "99999999999999999999", "16777216TiB", "5TiB", "4398046511105"):
        said = refused("create", place, "--card", f"GPU-1={wrong}")
        assert f"memory takes an amount like 512MiB, up to 4TiB, not {wrong}" in said, said
    assert "context takes an amount like 512MiB, up to 4TiB, not 5TiB" in refused(
        "create", place, "--card", "GPU-1=1GiB,context=5TiB"
    )
    assert "cores takes a percentage from 0 to 100, not 101" in refused("create", place, "--card", "GPU-1=1,cores=101")
    assert "cores takes a percentage from 0 to 100, not x" in refused("create", place, "--card", "GPU-1=1,cores=x")
    assert "weight takes a number from 0 to 100000, not nothing" in refused(
        "create", place, "--card", "GPU-1=1,weight="
    )
    assert "weight takes a number from 0 to 100000, not 100001" in refused(
        "create", place, "--card", "GPU-1=1,weight=100001"
    )
    assert "cores needs a value, as in cores=30" in refused("create", place, "--card", "GPU-1=1GiB,cores")
    assert "context needs a value, as in context=512MiB" in refused("create", place, "--card", "GPU-1=1GiB,context")
    assert "memory is given twice" in refused("create", place, "--card", "GPU-1=1GiB,2GiB")
    assert "cores is given twice" in refused("create", place, "--card", "GPU-1=1GiB,cores=1,cores=2")
    assert "there is no key colour; the keys are context," in refused("create", place, "--card", "GPU-1=1,colour=red")
    assert not place.exists()
    for command in (("show",), ("json",), ("set", "--off")):
        said = refused(command[0], place, *command[1:])
        assert f"No such file or directory; fractile-slice create {place} --card UUID=AMOUNT makes the files" in said, (
            said
        )
    ok("create", place, "--card", "GPU-1=1GiB")
    assert "has limits already" in refused("create", place, "--card", "GPU-1=2GiB")
    assert json.loads(ok("json", place))["cards"][0]["quota"] == 1 << 30
    assert "set needs something to change" in refused("set", place)
    assert run("set", place).returncode == run("create", place).returncode == 2
    assert f"has no card GPU-9; fractile-slice show {place} lists its cards" in refused(
        "set", place, "--card", "GPU-9=1"
    )
    assert "takes one directory and nothing else, but was given --off" in refused("show", place, "--off")


def what_is_hardly_meant_is_made_and_warned_of(directory: Path) -> None:
    for number, (card, said) in enumerate(
        (
            ("100MiB,context=256MiB", "a context takes more than the quota"),
            ("0", "with a quota of 0"),
            ("512", "a quota of 512 bytes is less than the 2 MiB that the driver gives out at a time"),
            ("1GiB,unaccounted=2GiB", "unaccounted takes all of the quota"),
            ("1GiB,cores=50,cores-limit=30", "cores=50 is above cores-limit=30"),
            ("1GiB,weight=5", "weight=5 has no effect: it counts only where cores is 0 and cores-limit is set"),
            ("1GiB,weight=5,cores=30", "weight=5 has no effect"),
        )
    ):
        done = run("create", directory / str(number), "--card", f"GPU-1={card}")
        lines = done.stderr.splitlines()
        assert done.returncode == 0 and len(lines) == 1, done
        assert lines[0].startswith("fractile-slice: warning: card GPU-1: ") and said in lines[0], lines
        assert json.loads(ok("json", directory / str(number)))["cards"][0]["uuid"] == "GPU-1"
    assert not run("create", directory / "right", "--card", "GPU-1=1GiB,context=256MiB").stderr
    assert not run("create", directory / "weighed", "--card", "GPU-1=1GiB,weight=5,cores-limit=50").stderr
    done = run("create", directory / "by-index", "--card", "0=1GiB")
    assert done.returncode == 0 and "warning: card 0: a UUID begins with GPU- or MIG-" in done.stderr, done


def an_option_and_its_value_may_be_joined_by_an_equals_sign(directory: Path) -> None:
    ok("create", directory, "--card=GPU-1=1GiB,cores=30", "--slots=7", "--card", "GPU-2=4TiB,weight=100000")
    one, two = json.loads(ok("json", directory))["cards"]
    assert (one["uuid"], one["quota"], one["cores"]) == ("GPU-1", 1 << 30, 30)
    assert (two["quota"], two["weight"]) == (4 << 40, 100000)
    ok("set", directory, "--card=GPU-1=2GiB")
    assert json.loads(ok("json", directory))["cards"][0]["quota"] == 2 << 30


def set_warns_of_a_quota_below_the_context_that_was_said_before(directory: Path) -> None:
    ok("create", directory, "--card", "GPU-1=1GiB,context=256MiB", "--card", "GPU-2=1GiB")
    done = run("set", directory, "--card", "GPU-1=100MiB")
    assert done.returncode == 0 and "warning: card GPU-1: a context takes more" in done.stderr, done
    assert json.loads(ok("json", directory))["cards"][0]["quota"] == 100 * MIB
    assert not run("set", directory, "--card", "GPU-1=1GiB", "--card", "GPU-2=cores=3").stderr


def every_program_tells_the_version_of_the_package(directory: Path) -> None:
    init = (Path(__file__).parents[3] / "src/fractile/__init__.py").read_text()
    version = re.search(r'__version__ = "(.*)"', init)
    assert version
    for program in ("slice/fractile-slice", "arbiter/fractile-arbiter", "simgpu/simgpu-ctl"):
        command = Path(SLICE).parents[1] / program
        said = subprocess.run([command, "--version"], cwd=directory, capture_output=True, text=True, timeout=20)
        assert (said.returncode, said.stdout) == (0, f"{command.name} {version[1]}\n"), said
        assert "--version" in subprocess.run([command, "--help"], capture_output=True, text=True, timeout=20).stdout


def damaged_files_are_told_and_crash_nothing(directory: Path) -> None:
    ok("create", directory, "--card", "GPU-1=1GiB")
    region = directory / "shared/region"
    whole = region.read_bytes()
    for damage in (
        b"",
        whole[:100],
        whole[:5000],
        bytes(len(whole)),
        b"\xff" * len(whole),
        whole[:36] + b"\xff\xff\xff\xff" + whole[40:],
    ):
        region.write_bytes(damage)
        refused("show", directory)
        refused("json", directory)
    region.write_bytes(whole[:128] + b"\xff" * (len(whole) - 128))
    assert json.loads(ok("json", directory))["cards"][0]["quota"] == 1 << 30
    limits = (directory / "limits").read_bytes()
    (directory / "limits").write_bytes(bytes(len(limits)))
    for words in (("show", directory), ("set", directory, "--on")):
        assert (
            "is damaged, or of another version; make both files again with fractile-slice create --replace"
            in refused(*words)
        )
    (directory / "limits").write_bytes(b"fractile-limits=1\n")
    assert "cut short" in refused("show", directory)
    assert "cut short" in refused("set", directory, "--on")


def help_names_every_command_and_key(directory: Path) -> None:
    text = ok("--help")
    assert text == ok("-h") == ok("help") == ok("create", "--help") == ok("create", directory, "--help")
    for word in (
        "create",
        "set",
        "show",
        "json",
        "--card",
        "--off",
        "--slots",
        "--replace",
        "cores-limit",
        "LD_PRELOAD",
        "/etc/fractile",
    ):
        assert word in text, word


TESTS: list[Callable[[Path], None]] = [
    what_was_asked_for_is_what_json_says,
    set_changes_what_is_named_and_nothing_else,
    all_may_write_the_region_and_none_the_limits,
    a_new_container_has_a_new_region,
    show_is_a_table_of_cards_and_processes,
    mistakes_are_told_in_one_sentence,
    what_is_hardly_meant_is_made_and_warned_of,
    set_warns_of_a_quota_below_the_context_that_was_said_before,
    an_option_and_its_value_may_be_joined_by_an_equals_sign,
    every_program_tells_the_version_of_the_package,
    damaged_files_are_told_and_crash_nothing,
    help_names_every_command_and_key,
]

if __name__ == "__main__":
    failed = 0
    for test in TESTS:
        with tempfile.TemporaryDirectory() as place:
            try:
                test(Path(place))
                print(f"ok   {test.__name__}")
            except Exception as error:
                failed += 1
                print(f"FAIL {test.__name__}: {error!r}")
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    raise SystemExit(failed > 0)
