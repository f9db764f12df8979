"""A context that does not fit into the quota: refused with a line on stderr, and counted as one refusal."""

import json
import shutil
import subprocess
import sys

import suite
from card_program import CARD, OOM, OUT, PROGRAM, WORK, Answer, environment, run
from container import MIB, Container

SLICE = OUT / "slice" / "fractile-slice"
PRIMARY = """
def primary():
    context = ctypes.c_void_p()
    say("context", cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
"""


def contained(quota: int, context: int) -> Container:
    shutil.rmtree(WORK / "small", ignore_errors=True)
    return Container(WORK / "small", {CARD: quota * MIB}, context=context * MIB)


def refusals(container: Container) -> int:
    shown = subprocess.run([SLICE, "json", container.directory], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout)["cards"][0]["refusals"]


def expect_a_line(answer: Answer, words: str) -> None:
    assert answer.status == 0 and answer.told["context"] == OOM, answer
    assert answer.said == f"fractile: a CUDA context is not made: {words}\n", answer


def expect_refused_in_both_ways(context: int) -> None:
    """`context`: the figure in the limits page, MiB; 0: none, so the library measures the context (256 MiB)."""
    for way in ("context()", "primary()"):
        container = contained(128, context)
        answer = run(container.directory, f"{PRIMARY}\ninit(); {way}; finish()")
        expect_a_line(answer, "it takes 256 MiB of the card, and 128 MiB of the quota of 128 MiB are free")
        assert refusals(container) == 1, way


def test_a_context_of_known_size_that_does_not_fit_is_named_and_counted() -> None:
    expect_refused_in_both_ways(256)


def test_so_is_one_whose_size_was_not_known_before() -> None:
    expect_refused_in_both_ways(0)


def test_each_refusal_is_counted_once() -> None:
    container = contained(128, 0)
    answer = run(container.directory, "init(); context(); context(); context(); finish()")
    expect_a_line(answer, "it takes 256 MiB of the card, and 128 MiB of the quota of 128 MiB are free")
    assert refusals(container) == 3


def test_a_second_process_that_finds_the_quota_full_says_so() -> None:
    container = contained(512, 256)
    holder = "init(); context(); p = alloc('much', 200 << 20); finish(); sys.stdin.read()"
    first = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + holder],
        env=environment(container.directory),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout and json.loads(first.stdout.readline())["much"] == 0
    answer = run(container.directory, "init(); context(); finish()")
    first.communicate()
    expect_a_line(answer, "it takes 256 MiB of the card, and 56 MiB of the quota of 512 MiB are free")


def test_one_that_fits_says_nothing() -> None:
    answer = run(contained(256, 256).directory, "init(); context(); finish()")
    assert answer.told["context"] == 0 and answer.said == "", answer


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
