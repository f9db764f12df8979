"""The model of unlucky minutes: it finds nothing in the product, and it does find what is broken on purpose."""

import os
import subprocess
import sys
from collections.abc import Sequence

import pytest

from tests.history.judge import Judge, held_by
from tests.history.shapes import card, pod
from tests.history.shrink import shrink
from tests.history.store import CARDS, PODS, Object

pytestmark = pytest.mark.slow

_SLOW = 5 * 60.0


def model(*arguments: str) -> tuple[int, str]:
    """In a process of its own, since the order of sets is a part of a history."""
    command = [sys.executable, "-m", "tests.history", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SLOW, check=False, env=os.environ.copy())
    return done.returncode, done.stdout + done.stderr


@pytest.mark.timeout(_SLOW)
def test_a_hundred_thousand_operations_break_no_promise() -> None:
    code, said = model("--ops", "100000", "--seeds", "4")
    last = said.splitlines()[-1]
    print(last)
    assert code == 0, said
    assert last.startswith("overallocations=0 leaks=0 ghosts=0 broken=0 ops=1")


@pytest.mark.timeout(_SLOW)
@pytest.mark.parametrize(
    "name",
    [
        "charges half",
        "trusts sick cards",
        "moves at once",
        "loses deletions",
        "doubts early",
        "forgets when the node changes",
        "forgets what had no answer",
    ],
)
def test_the_model_finds_what_is_broken_on_purpose(name: str) -> None:
    code, said = model("--broken", name, "--ops", "400000", "--seeds", "200")
    print(said.splitlines()[-1])
    assert code == 1
    assert f"--short --broken '{name}'" in said


def test_a_history_is_the_same_whenever_it_is_played() -> None:
    once, again = (model("--seed", "3", "--episode", "0")[1] for _ in range(2))
    assert "nothing is wrong" in once
    assert once == again


def placed(
    name: str, uid: str, *, node: str = "n1", size: int = 5000, cores: int = 0, phase: str = "Running"
) -> Object:
    made = pod(name, uid, 0, 0.0)
    part = f'{{"card":"GPU-n1-0","memoryMiB":{size},"cores":{cores}}}'
    text = f'{{"version":1,"node":"{node}","containers":{{"main":{{"role":"app","slices":[{part}]}}}}}}'
    made["metadata"] |= {"annotations": {"fractile.dev/placement": text}, "resourceVersion": "7"}
    made["spec"]["nodeName"] = node
    made["status"]["phase"] = phase
    return made


@pytest.fixture
def judge() -> Judge:
    made = Judge(slots=3)
    made.wrote(CARDS, None, card("GPU-n1-0", "n1", 0))
    return made


@pytest.mark.parametrize(
    "second",
    [placed("q", "u2"), placed("q", "u2", size=1, cores=101), placed("q", "u2", size=1, cores=100)],
    ids=["memory", "cores", "all cores beside one without"],
)
def test_the_judge_sees_a_card_that_is_promised_twice(judge: Judge, second: Object) -> None:
    judge.wrote(PODS, None, placed("p", "u1"))
    assert judge.violations == []
    judge.wrote(PODS, None, second)
    assert len(judge.violations) == 1


@pytest.mark.parametrize("ended", ["Succeeded", None])
def test_the_judge_frees_what_has_ended(judge: Judge, ended: str | None) -> None:
    first = placed("p", "u1")
    judge.wrote(PODS, None, first)
    judge.wrote(PODS, first, placed("p", "u1", phase=ended) if ended else None)
    judge.wrote(PODS, None, placed("q", "u2"))
    assert judge.violations == []


def test_the_judge_counts_an_init_container_beside_sidecars_and_apps_after_it() -> None:
    made = placed("p", "u1")
    parts = {name: f'[{{"card":"c","memoryMiB":{size}}}]' for name, size in (("log", 1), ("warm", 6), ("main", 4))}
    roles = {"log": "sidecar", "warm": "init", "main": "app"}
    inner = ",".join(f'"{n}":{{"role":"{roles[n]}","slices":{parts[n]}}}' for n in parts)
    made["metadata"]["annotations"]["fractile.dev/placement"] = f'{{"version":1,"node":"n1","containers":{{{inner}}}}}'
    assert held_by(made) == ("n1", {"c": (7, 0, 0, True)})


def test_a_history_is_shortened_to_what_it_fails_with() -> None:
    def fails(steps: Sequence[int]) -> bool:
        return {3, 77} <= set(steps)

    assert shrink(range(100), fails, seconds=60) == [3, 77]
