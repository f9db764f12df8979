"""``make model``: many short histories of bad luck, each judged by the API server's own truth.

make model OPS=10000000 SEEDS=100                      the long run
python -m tests.history --seed 7 --episode 3           one history again, with all that happens in it
python -m tests.history --seed 7 --episode 3 --short   the same, after parts of it have been left out
"""

import argparse
import gc
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed

import msgspec

from tests.history.broken import BROKEN
from tests.history.episode import Found, history, play
from tests.history.shrink import shrink

_SHRINK = 90.0  # seconds
_SAY = 10.0  # seconds between two lines about progress


class Sum(msgspec.Struct):
    """What the last line says."""

    operations: int = 0
    episodes: int = 0
    overallocations: int = 0
    leaks: int = 0
    ghosts: int = 0
    broken: int = 0
    failed: list[tuple[int, int]] = msgspec.field(default_factory=list[tuple[int, int]])  # seed and episode

    def add(self, found: Found) -> None:
        self.operations += found.operations
        self.episodes += 1
        self.overallocations += len(found.overallocations)
        self.leaks += len(found.leaks)
        self.ghosts += len(found.ghosts)
        self.broken += len(found.broken)

    def join(self, other: "Sum") -> None:
        self.operations += other.operations
        self.episodes += other.episodes
        self.overallocations += other.overallocations
        self.leaks += other.leaks
        self.ghosts += other.ghosts
        self.broken += other.broken
        self.failed += other.failed

    @property
    def line(self) -> str:
        told = f"overallocations={self.overallocations} leaks={self.leaks} ghosts={self.ghosts} broken={self.broken}"
        return f"{told} ops={self.operations} episodes={self.episodes}"


def run_seed(seed: int, operations: int, broken: str = "") -> Sum:
    """Episodes of that seed, until there were so many operations or one has failed."""
    logging.disable(logging.CRITICAL)
    total, episode = Sum(), 0
    while total.operations < operations and not total.failed:
        found = play(seed, episode, history(seed, episode), BROKEN[broken])
        total.add(found)
        if found.wrong:
            total.failed.append((seed, episode))
        episode += 1
        gc.collect()
    return total


def run(operations: int, seeds: Sequence[int], jobs: int, broken: str = "") -> Sum:
    """All seeds, several at a time; prints how far it is."""
    each, total, began, said = -(-operations // len(seeds)), Sum(), time.monotonic(), 0.0
    with ProcessPoolExecutor(jobs) as pool:
        for done, one in enumerate(_results(pool, seeds, each, broken), 1):
            total.join(one)
            now = time.monotonic() - began
            if now - said > _SAY or one.failed:
                said = now
                print(f"{now:6.0f} s  {done} of {len(seeds)} seeds  {total.line}", flush=True)
            if one.failed:
                pool.shutdown(cancel_futures=True)
                break
    return total


def _results(pool: ProcessPoolExecutor, seeds: Sequence[int], each: int, broken: str) -> Iterator[Sum]:
    futures = [pool.submit(run_seed, seed, each, broken) for seed in seeds]
    for future in as_completed(futures):
        yield future.result()


def explain(seed: int, episode: int, broken: str = "", *, short: bool) -> Found:
    """Play one history, shortened or as it is, and say all that happens in it."""
    parts, steps = BROKEN[broken], history(seed, episode)
    found = play(seed, episode, steps, parts)
    if short and found.wrong:
        kinds = found.kinds
        steps = shrink(steps, lambda some: bool(play(seed, episode, some, parts).kinds & kinds), seconds=_SHRINK)
    last = play(seed, episode, steps, parts, say=print)
    print(f"{len(steps)} steps:")
    for step in steps:
        print(f"  {step.delay:8.4f} s  {step.kind}  {step.a} {step.b}")
    for sentence in last.wrong or ("nothing is wrong",):
        print(sentence)
    return last


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.history", description=__doc__, formatter_class=_AsItIs)
    parser.add_argument("--ops", type=int, default=1_000_000, help="operations, all seeds together")
    parser.add_argument("--seeds", type=int, default=10, help="how many seeds")
    parser.add_argument("--seed", type=int, default=1, help="the first of them")
    parser.add_argument("--episode", type=int, help="only this history of the seed")
    parser.add_argument("--short", action="store_true", help="leave out of it what it fails without")
    parser.add_argument("--broken", choices=[*BROKEN], default="", help="what is broken on purpose; the run must fail")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes")
    given = parser.parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if given.episode is not None:
        return int(bool(explain(given.seed, given.episode, given.broken, short=given.short).wrong))
    began = time.monotonic()
    total = run(given.ops, range(given.seed, given.seed + given.seeds), given.jobs, given.broken)
    for seed, episode in sorted(total.failed)[:1] if not given.broken else ():
        explain(seed, episode, short=True)
    for seed, episode in sorted(total.failed):
        more = f" --broken '{given.broken}'" if given.broken else ""
        print(f"again: .venv/bin/python -m tests.history --seed {seed} --episode {episode} --short{more}")
    seconds = time.monotonic() - began
    print(f"{total.line} seeds={given.seeds} seconds={seconds:.0f} ops/s={total.operations / seconds:.0f}")
    return int(bool(total.failed))


class _AsItIs(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    pass


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":  # the order of sets is a part of a history
        os.execve(
            sys.executable,
            [sys.executable, "-m", "tests.history", *sys.argv[1:]],
            {**os.environ, "PYTHONHASHSEED": "0"},
        )
    sys.exit(main(sys.argv[1:]))
