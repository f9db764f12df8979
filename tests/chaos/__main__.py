"""``make chaos MINUTES=20 SEED=n``: rounds of chaos on a local cluster of its own, which is taken down after.

The first line is the seed: with it the same faults come at the same times, and pods are planned the same. The last line
is the sums; the exit status is 0 when nothing was violated and nothing got stuck.
"""

import asyncio
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from random import SystemRandom

import click

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import DEFAULT_CARDS, from_options
from fractile.lab.cluster.up import UpOptions
from tests.chaos.rounds import SWEPT, Settings
from tests.chaos.run import Run, chaos

_MOST = 2**31
_LONG = 15.0  # minutes; a run that is as long can wait for the agents' sweep at its end


@click.command()
@click.option(
    "--minutes", type=float, default=20.0, show_default=True, help="How long, the start of the cluster apart."
)
@click.option("--seed", type=int, default=None, help="Of an earlier run, to play its schedule again.")
@click.option("--nodes", type=int, default=3, show_default=True)
@click.option("--name", default="chaos", show_default=True, help="Of the cluster.")
@click.option("--keep-logs", is_flag=True, help="Also when nothing was found.")
def main(minutes: float, seed: int | None, nodes: int, name: str, keep_logs: bool) -> None:
    """Rounds of chaos on a local cluster of real programs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the cluster is taken down
    logs = Path(tempfile.mkdtemp(prefix="fractile-chaos-"))
    cluster = LocalCluster(name)
    cluster.down()
    try:
        cluster.up(UpOptions(spec=from_options(name, nodes=nodes, cards=DEFAULT_CARDS)))
        sweep = minutes >= _LONG
        until = time.monotonic() + minutes * 60 - (SWEPT if sweep else 0)
        settings = Settings(seed=SystemRandom().randrange(_MOST) if seed is None else seed)
        run = Run(
            settings=settings, logs=logs, more=lambda _: time.monotonic() < until, say=_say, sweep=sweep, restore=False
        )
        sums = asyncio.run(chaos(cluster, run))
        if keep_logs or not sums.fine:
            shutil.copytree(cluster.logs, logs / "programs")
            _say(f"what happened in each round, and the logs of all programs: {logs}")
        else:
            shutil.rmtree(logs)
    finally:
        cluster.down()
    _say(sums.line)
    sys.exit(0 if sums.fine else 1)


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
