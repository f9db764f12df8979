"""Variables given to make on the command line take effect, or are refused in one sentence before anything is built."""

import os
import subprocess
import sys
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(NATIVE / "tests" / "interposer"))

import suite  # noqa: E402


def make(*words: str, **more: str) -> "subprocess.CompletedProcess[str]":
    """Runs make so that it only prints its commands."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith("MAKE") and k not in ("ONLY", "CLOCK", "BUSY")}
    command = ["make", "-n", "--no-print-directory", "-C", str(NATIVE), f"PYTHON={sys.executable}", *words]
    return subprocess.run(command, env=plain | more, capture_output=True, text=True, timeout=60)


def refused(*words: str) -> str:
    done = make(*words)
    said = done.stderr.splitlines()
    assert done.returncode == 2 and len(said) == 1 and not done.stdout, (words, done)
    return said[0]


def accepted(*words: str, **more: str) -> None:
    done = make(*words, **more)
    assert done.returncode == 0, (words, done.stderr)


def test_a_misspelt_variable_is_named() -> None:
    assert "no variable is named KIND here; there are " in refused("stress", "KIND=async")
    assert "no variable is named ONYL here" in refused("check", "ONYL=pool_test")


def test_a_variable_that_the_target_does_not_use_is_refused() -> None:
    assert "ROWS changes nothing for programs; it goes with: frameworks" in refused("programs", "ROWS=graphs")
    assert "SEED changes nothing for check; it goes with: stress stress-matrix" in refused("check", "SEED=3")
    assert "PROCS changes nothing for stress-matrix; it goes with: stress" in refused("stress-matrix", "PROCS=2")
    assert "ONLY changes nothing for all; it goes with: check" in refused("ONLY=pool_test")
    accepted("kills", "stress", "KILLS=5", "SEED=2")
    accepted("check", "ONLY=pool_test", MAKELEVEL="1", MAKEFLAGS=" -- SEED=3")


def test_variables_that_another_make_hands_down_are_not_looked_at() -> None:
    accepted("help", MAKELEVEL="1", MAKEFLAGS=" -- ARGS=-x")


def test_a_value_may_hold_spaces_and_equal_signs() -> None:
    accepted("help", "SHARES=--only a=1 --windows=2", "FRACTILE_CUDA_WHEELS=/x y")


def test_names_of_only_that_are_no_test_are_told_with_those_that_begin_alike() -> None:
    said = refused("check", "ONLY=pool_test async_tets bogus nvml_test.py")
    assert "there is no test async_tets bogus; " in said and said.count("async_test") == 1, said
    assert "pool_test nvml_test.py" in refused("check", "ONLY=bogus")
    assert "WHICH is quick or long, not slow" in refused("check", "WHICH=slow")
    assert "programs_test.py" in refused("check", "ONLY=programs_test.py"), "make programs runs it, not check"


def test_names_of_tests_of_every_kind_are_taken() -> None:
    accepted(
        "help", "ONLY=pool_test kill_unit_test runtime12_test layout_test.py given_test.py clock_test terms_test.py"
    )


def test_a_sanitizer_that_is_none_is_refused() -> None:
    assert "SANITIZE is address, undefined or thread, not adress" in refused("check", "SANITIZE=adress")
    accepted("help", "SANITIZE=address")


def test_a_clock_that_a_target_has_not_is_refused() -> None:
    assert "always virtual" in refused("shares-quick", "CLOCK=real")
    assert "always virtual" in refused("density", "CLOCK=real")
    assert "real or virtual, not rael" in refused("shares", "CLOCK=rael")
    assert "BUSY=1 goes with CLOCK=real" in refused("shares-quick", "BUSY=1")
    assert "BUSY=1 goes with CLOCK=real" in refused("shares", "BUSY=1")
    accepted("shares", "CLOCK=real", "BUSY=1")
    accepted("shares-quick", "CLOCK=virtual")


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
