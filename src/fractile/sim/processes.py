"""Run many simulations on a given number of processes.

Each run is a function of its arguments, so the figures do not depend on the number of processes. Every process holds
the reading end of a pipe whose other end only the command holds: when that end is closed, on purpose or because the
command died, the process ends immediately.
"""

import multiprocessing
import os
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import c_longlong
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import Synchronized

from fractile.errors import SetupError
from fractile.sim.runs import PARTS, Experiment, Run, RunOutcome, Worker
from fractile.wire.output.simulation import RunFigures

_SETTLE = 0.2  # seconds between two checks of the progress

Progress = Callable[[int, int], None]  # parts done, parts in all


def run_all(
    experiment: Experiment, runs: Sequence[Run], *, jobs: int, progress: Progress = lambda done, total: None
) -> dict[Run, RunFigures]:
    """The figures of every run. SetupError if a process dies."""
    return {run: found.figures for run, found in outcomes(experiment, runs, jobs=jobs, progress=progress).items()}


def outcomes(
    experiment: Experiment, runs: Sequence[Run], *, jobs: int, progress: Progress = lambda done, total: None
) -> dict[Run, RunOutcome]:
    """Figures and curves of every run. SetupError if a process dies."""
    if jobs <= 1 or len(runs) <= 1:
        return _here(experiment, runs, progress)
    try:
        return _elsewhere(experiment, runs, jobs, progress)
    except BrokenProcessPool:
        raise SetupError("a process of the simulation died, perhaps for lack of memory; try fewer --jobs") from None


def _here(experiment: Experiment, runs: Sequence[Run], progress: Progress) -> dict[Run, RunOutcome]:
    worker = Worker(experiment)
    found: dict[Run, RunOutcome] = {}
    for number, run in enumerate(runs):
        found[run] = worker.outcome(run, lambda part, n=number: progress(n * PARTS + part, PARTS * len(runs)))
    return found


def _elsewhere(experiment: Experiment, runs: Sequence[Run], jobs: int, progress: Progress) -> dict[Run, RunOutcome]:
    context = multiprocessing.get_context("spawn")  # a fork would copy threads' locks
    done: Synchronized[int] = context.Value(c_longlong, 0)
    theirs, ours = context.Pipe(duplex=False)
    with (
        theirs,
        ProcessPoolExecutor(
            min(jobs, len(runs)), mp_context=context, initializer=_begin, initargs=(experiment, done, theirs)
        ) as pool,
        ours,  # closed before the pool waits for its processes
        _telling(lambda: progress(done.value, PARTS * len(runs))),
    ):
        waiting = {pool.submit(_there, run): run for run in runs}
        return {waiting[future]: future.result() for future in as_completed(waiting)}


@contextmanager
def _telling(tell: Callable[[], None]) -> Generator[None]:
    over = threading.Event()

    def loop() -> None:
        while not over.wait(_SETTLE):
            tell()

    thread = threading.Thread(target=loop, daemon=True)
    thread.start()
    try:
        yield
        tell()
    finally:
        over.set()
        thread.join(timeout=5)


# --- in a worker process ---------------------------------------------------------------------------------------------

_worker: list[tuple[Worker, "Synchronized[int]"]] = []  # set once, when the process begins


def _begin(experiment: Experiment, done: "Synchronized[int]", lifeline: "Connection[None, None]") -> None:
    threading.Thread(target=_end_with, args=(lifeline,), daemon=True).start()
    _worker.append((Worker(experiment), done))


def _end_with(lifeline: "Connection[None, None]") -> None:
    wait([lifeline])
    os._exit(1)


def _there(run: Run) -> RunOutcome:
    worker, done = _worker[0]
    last = 0

    def tell(part: int) -> None:
        nonlocal last
        with done.get_lock():
            done.value += part - last
        last = part

    found = worker.outcome(run, tell)
    tell(PARTS)
    return found
