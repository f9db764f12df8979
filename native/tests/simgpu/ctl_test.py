"""simgpu-ctl on the command line: mistakes are reported in one line and change nothing."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

CTL = Path(os.environ.get("OUT", "build")).resolve() / "simgpu" / "simgpu-ctl"
CARDS = (Path(__file__).parent / "cards.json").read_text()


def run(host: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "SIMGPU_DIR": str(host)}
    return subprocess.run([CTL, *words], env=environment, capture_output=True, text=True, timeout=20)


def refused(host: Path, *words: str, status: int = 2) -> str:
    done = run(host, *words)
    assert done.returncode == status, (words, done.returncode, done.stderr)
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("simgpu-ctl: ") and not done.stdout, (words, done)
    return lines[0]


def settings_that_mean_nothing_are_told(host: Path) -> None:
    for name, text, said in (
        ("SIMGPU_CLOCK", "vitual", "it is real or virtual"),
        ("SIMGPU_CONTEXT_MIB", "256MiB", "it is a number"),
        ("SIMGPU_DRIVER_VERSION", "13.0.1", "it is a number"),
        ("SIMGPU_NOISE", "-1", "it is a number"),
        ("SIMGPU_SWITCH_US", "fast", "it is a number"),
        ("SIMGPU_POLICYY", "3", "there is no such setting"),
    ):
        environment = {**os.environ, "SIMGPU_DIR": str(host), name: text}
        done = subprocess.run([CTL, "show"], env=environment, capture_output=True, text=True, timeout=20)
        assert done.returncode != 0 and f"{name}={text}: {said}" in done.stderr, (name, done)


def wrong_words_are_told_and_change_nothing(host: Path) -> None:
    before = json.loads(run(host, "json").stdout)["cards"]
    for words, said in (
        (["xid", "0", "abc"], "a code of 0 or more, such as 79, not abc"),
        (["xid", "0", "79x"], "not 79x"),
        (["xid", "0", "79", "-4"], "a process id of 1 or more, not -4"),
        (["xid", "0"], "expected simgpu-ctl xid CARD CODE [PID]"),
        (["ecc", "0", "some"], "ecc takes corrected or uncorrected, not some"),
        (["ecc", "0", "corrected", "many"], "a number of errors, 1 or more, not many"),
        (["ecc", "0", "corrected", "0"], "a number of errors, 1 or more, not 0"),
        (["temperature", "0", "hot"], "degrees from -99 to 999, not hot"),
        (["repair", "0", "soon"], "none, pending or failed, not soon"),
        (["recovery", "0", "pray"], "not pray"),
        (["heal", "0", "1"], "expected simgpu-ctl heal CARD"),
        (["reset", "extra"], "--force or nothing, not extra"),
        (["show", "extra"], "takes no argument, but was given extra"),
        (["policy", "tame"], "policy takes a number, wild or wild:NUMBER, not tame"),
        (["policy", "18446744073709551616"], "wild or wild:NUMBER, not 18446744073709551616"),
        (["shew"], "there is no command shew"),
        (["--verbose"], "there is no command --verbose"),
    ):
        answer = refused(host, *words)
        assert said in answer and "--help" in answer, answer
    for name in ("7", "0x", "", "GPU-none"):
        assert f"there is no card {name};" in refused(host, "heal", name, status=1)
    assert json.loads(run(host, "json").stdout)["cards"] == before


def right_words_do_what_they_say(host: Path) -> None:
    for words in (["xid", "0", "31", "5"], ["ecc", "0", "corrected", "3"], ["temperature", "0", "-5"]):
        assert run(host, *words).returncode == 0
    card = json.loads(run(host, "json").stdout)["cards"][0]
    assert (card["xidEvents"], card["eccCorrected"], card["temperature"]) == (1, 3, -5)
    assert run(host, "reset").returncode == 0
    assert json.loads(run(host, "json").stdout)["cards"][0]["xidEvents"] == 0
    assert json.loads(run(host, "policy", "wild:3").stdout)["wild"]


def show_tells_what_faults_left_and_heal_takes_it_away(host: Path) -> None:
    def state(card: int) -> str:
        line = run(host, "show").stdout.splitlines()[1 + card]
        return line.split("%", 1)[1].strip()

    assert (state(0), state(1)) == ("ok", "ok")
    assert json.loads(run(host, "json").stdout)["cards"][0]["lastXid"] is None
    for words in (["xid", "0", "31"], ["ecc", "0", "corrected", "3"], ["temperature", "0", "92"]):
        assert run(host, *words).returncode == 0
    assert state(0) == "ok, XID 31, ECC errors 3 corrected 0 uncorrected, 92 C"
    for words in (["repair", "0", "pending"], ["recovery", "0", "drain-reset"], ["xid", "0", "79"]):
        assert run(host, *words).returncode == 0
    assert state(0) == (
        "lost, last XID 79 of 2, ECC errors 3 corrected 0 uncorrected, 92 C, repair pending, recovery drain-reset"
    )
    assert json.loads(run(host, "json").stdout)["cards"][0]["lastXid"] == 79
    assert state(1) == "ok"
    assert run(host, "heal", "0").returncode == 0
    assert state(0) == "ok, last XID 79 of 2", "events have happened"


def a_cards_file_that_is_named_must_be_readable_also_on_a_host_that_has_its_cards(host: Path) -> None:
    def named(path: Path) -> "subprocess.CompletedProcess[str]":
        environment = {**os.environ, "SIMGPU_DIR": str(host), "SIMGPU_CARDS": str(path)}
        return subprocess.run([CTL, "show"], env=environment, capture_output=True, text=True, timeout=20)

    assert run(host, "show").returncode == 0
    done = named(host / "nowhere.json")
    assert done.returncode == 1 and not done.stdout, done
    assert done.stderr == f"simgpu-ctl: SIMGPU_CARDS={host}/nowhere.json cannot be read: No such file or directory\n", (
        done
    )
    assert named(host / "cards.json").returncode == 0
    (host / "cards.json").unlink()
    assert run(host, "show").returncode == 0, "a container need not see the file that made its host"


def looking_makes_no_directory(host: Path) -> None:
    nowhere = host / "nowhere"
    for words in ([], ["show"], ["json"], ["peaks"]):
        assert "Nothing has used simulated cards there" in refused(nowhere, *words, status=1)
    assert run(nowhere, "reset").returncode == 0
    assert not nowhere.exists()


USE_A_CARD = """import ctypes, sys
driver, context = ctypes.CDLL(sys.argv[1]), ctypes.c_void_p()
assert not driver.cuInit(0) and not driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
"""


def show_does_not_drown_in_the_dead(host: Path) -> None:
    environment = {**os.environ, "SIMGPU_DIR": str(host)}
    for _ in range(12):
        subprocess.run(
            [sys.executable, "-c", USE_A_CARD, CTL.parent / "libcuda.so.1"], env=environment, check=True, timeout=20
        )
    lines = run(host, "show").stdout.splitlines()
    assert len([line for line in lines if line.endswith("dead")]) == 10, lines
    assert lines[-1].startswith("and 2 more that are dead"), lines
    assert len(json.loads(run(host, "json").stdout)["processes"]) == 12


def help_names_every_command(host: Path) -> None:
    text = run(host, "--help").stdout
    for word in ("show", "json", "xid", "ecc", "temperature", "repair", "recovery", "heal", "policy", "peaks", "reset"):
        assert f"simgpu-ctl {word}" in text or f"simgpu-ctl [{word}]" in text, word
    assert "SIMGPU_DIR" in text


TESTS: list[Callable[[Path], None]] = [
    settings_that_mean_nothing_are_told,
    wrong_words_are_told_and_change_nothing,
    right_words_do_what_they_say,
    show_tells_what_faults_left_and_heal_takes_it_away,
    a_cards_file_that_is_named_must_be_readable_also_on_a_host_that_has_its_cards,
    looking_makes_no_directory,
    show_does_not_drown_in_the_dead,
    help_names_every_command,
]


def main() -> int:
    failed = 0
    for test in TESTS:
        with tempfile.TemporaryDirectory() as host:
            (Path(host) / "cards.json").write_text(CARDS)
            try:
                test(Path(host))
                print(f"ok   {test.__name__}")
            except AssertionError as error:
                failed += 1
                print(f"FAIL {test.__name__}: {error}")
    print(f"{len(TESTS) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
