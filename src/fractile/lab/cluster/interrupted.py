"""The control plane, interrupted in the middle of a bind: for the demonstration and the tests of what follows.

    python -m fractile.lab.cluster.interrupted kill|stop STEP ARGUMENTS...

Runs ``fractile control-plane ARGUMENTS...`` and sends itself SIGKILL, or SIGSTOP once, at a step of the first bind:

    assumed   the cards are assumed, the lease is not looked at yet
    allowed   the lease was looked at, the Binding is not written yet (with a lease only)
    bound     the Binding is written, its caller has no answer yet
"""

import os
import signal
import sys

from fractile.main import control_plane
from fractile.main.leading import BindObserver

_MODULE = "fractile.lab.cluster.interrupted"
STEPS = ("assumed", "allowed", "bound")
SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def interrupted(how: str, step: str) -> tuple[str, ...]:
    """What takes the place of ``fractile control-plane`` in a command line."""
    return sys.executable, "-m", _MODULE, how, step


class Interruption(BindObserver):
    """Sends ``number`` to this process once, at ``step``."""

    def __init__(self, number: signal.Signals, step: str) -> None:
        self._number = number
        self._step = step
        self._armed = False

    def reached(self, step: str) -> None:
        if step == "assumed" and self._step == "allowed":
            self._armed = True
        elif step == self._step:
            self._interrupt()

    def left(self, seconds: float) -> float:
        if self._armed:
            self._armed = False
            self._interrupt()
        return seconds

    def _interrupt(self) -> None:
        self._step = ""
        os.kill(os.getpid(), self._number)


def main(argv: list[str]) -> None:
    how, step, *arguments = argv
    if how not in SIGNALS or step not in STEPS:
        sys.exit(f"usage: python -m {_MODULE} kill|stop {'|'.join(STEPS)} ARGUMENTS...")
    control_plane.command.main(args=arguments, prog_name="fractile control-plane", obj=Interruption(SIGNALS[how], step))


if __name__ == "__main__":
    main(sys.argv[1:])
