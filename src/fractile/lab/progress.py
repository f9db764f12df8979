"""The progress messages while a cluster starts: one line per step, with its duration, on the error stream."""

from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic

import msgspec


class ProgressStep(msgspec.Struct):
    """One step under way; ``done`` says how it ended, for instance "started" or "running already"."""

    outcome: str = "done"

    def done(self, outcome: str) -> None:
        self.outcome = outcome


class Progress:
    """Writes the lines through ``write``; steps of different nodes may overlap, so a line is written at the end."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = monotonic) -> None:
        self._write = write
        self._clock = clock

    def line(self, what: str, outcome: str) -> None:
        self._write(f"  {what:<34} {outcome}")

    @contextmanager
    def step(self, what: str, *, note: str = "") -> Generator[ProgressStep]:
        """Time a step; a failed step is reported before its error is raised.

        ``note``: for a step that takes minutes, shown when it begins.
        """
        if note:
            self.line(what, f"{note} ...")
        began = self._clock()
        step = ProgressStep()
        try:
            yield step
        except BaseException:
            self.line(what, f"failed after {self._clock() - began:.1f} s")
            raise
        self.line(what, f"{step.outcome} ({self._clock() - began:.1f} s)")


def silent() -> Progress:
    return Progress(lambda text: None)
