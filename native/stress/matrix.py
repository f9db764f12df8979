"""Runs the stress test for every kind of memory and every pair of kinds, under driver policies that the library cannot
know.

    matrix.py STRESS WORKER LIBRARY [--seed N] [--ops N] [--kinds a,b,c]

The runs combine: a kind or a pair of kinds; 2 processes of 8 threads or 16 of 2; with or without kills. The driver's
policy and the seed change with the run. A line is printed for each run that found an error, and at the end the worst
value of each figure; status 1 if one of them is not 0. The judge is the simulated driver's own ledger (stress.c).
"""

import argparse
import itertools
import os
import re
import subprocess
import sys
import time

KINDS = (
    "small",
    "large",
    "pitched",
    "managed",
    "array",
    "mipmap",
    "module",
    "kernels",
    "async",
    "pooled",
    "graph",
    "nested",
    "handle",
)
SHAPES = ((2, 8), (16, 2))
FIGURES = ("overcommit_bytes", "false_oom", "leaked_bytes", "hangs")
POLICIES = 21
LIMIT_S = 180


def runs(kinds: tuple[str, ...]):
    combinations = [*((k,) for k in kinds), *itertools.combinations(kinds, 2)]
    return itertools.product(combinations, SHAPES, (True, False))


def one(
    arguments: argparse.Namespace, number: int, kinds: tuple[str, ...], shape: tuple[int, int], kills: bool
) -> dict[str, int]:
    seed, policy = arguments.seed * 1000 + number, (arguments.seed + number) % POLICIES
    environment = os.environ | {
        "PROCS": str(shape[0]),
        "THREADS": str(shape[1]),
        "OPS": str(arguments.ops),
        "KINDS": ",".join((*kinds, "settle", "info", "churn")),
        "SEED": str(seed),
        "POLICY": str(policy),
    }
    if not kills:
        environment["KILLS"] = "0"
    command = [arguments.stress, arguments.worker, arguments.library]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S)
        found = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", done.stdout)}
    except subprocess.TimeoutExpired:
        done, found = None, {"hangs": 1}
    if done is None or done.returncode:
        figures = " ".join(f"{name}={found.get(name, '?')}" for name in FIGURES)
        print(f"{'+'.join(kinds)} {shape[0]}x{shape[1]} kills={kills} SEED={seed} POLICY={policy}: {figures}")
        for line in (done.stderr if done else "no end after three minutes").splitlines()[-6:]:
            print(f"    {line[:180]}")
        found.setdefault("hangs", 1)
    return found


def whole(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not a number of 0 or more")
    return int(text)


def main() -> int:
    parser = argparse.ArgumentParser(
        usage="%(prog)s STRESS WORKER LIBRARY [--seed N] [--ops N] [--kinds a,b,c] [--limit N]",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("stress")
    parser.add_argument("worker")
    parser.add_argument("library")
    parser.add_argument("--seed", type=whole, default=1)
    parser.add_argument("--ops", type=whole, default=2500)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--limit", type=int, help="runs at most, spread over all")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.kinds.split(",")) - set(KINDS)):
        parser.error(f"--kinds {','.join(unknown)}: there are {','.join(KINDS)}")
    if arguments.ops < 1:
        parser.error("--ops is at least 1")
    todo = list(enumerate(runs(tuple(arguments.kinds.split(",")))))
    if arguments.limit and arguments.limit < len(todo):
        todo = todo[:: len(todo) // arguments.limit]
    worst = dict.fromkeys(FIGURES, 0)
    began, operations, bad = time.monotonic(), 0, 0
    for number, (kinds, shape, kills) in todo:
        found = one(arguments, number, kinds, shape, kills)
        operations += found.get("ops", 0)
        bad += any(found.get(name, 0) for name in FIGURES)
        worst = {name: max(worst[name], found.get(name, 0)) for name in FIGURES}
        if sys.stderr.isatty():
            print(f"\r{number + 1} of {len(todo)}", end="", file=sys.stderr)
        elif (number + 1) % 50 == 0:
            print(f"{number + 1} of {len(todo)}", file=sys.stderr, flush=True)
    figures = " ".join(f"{name}={worst[name]}" for name in FIGURES)
    seconds = time.monotonic() - began
    print(f"{figures} runs={len(todo)} bad={bad} ops={operations} seconds={seconds:.0f} seed={arguments.seed}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
