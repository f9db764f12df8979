"""``make load NODES=5000 PODS=5000``: pods per second with Fractile's extender and without, on a cluster of its own.

The cluster is taken down in the end, however that comes; after a crash ``fractile down --name load`` does it, or the
next run. The exit status is 0 whatever the figures are, unless ``--strict``: a busy machine is no failure.
"""

import asyncio
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic

import click
import msgspec

from fractile.lab.cluster import down
from fractile.lab.layout import default_clusters_dir, layout
from fractile.lab.machine import programs
from fractile.lab.progress import silent
from tests.load import report
from tests.load.figures import Round
from tests.load.profiles import Profiles
from tests.load.programs import NEEDED, Cluster
from tests.load.run import Run, play, rows
from tests.load.scenarios import BY_NAME, TABLE

_RUNNING = 4  # pods for each node, before the first round


@click.command()
@click.option("--nodes", "sizes", type=int, multiple=True, default=(5000,), show_default=True, help="May be repeated.")
@click.option("--pods", type=int, default=5000, show_default=True, help="That are created in a round.")
@click.option("--running", type=int, default=None, help="Pods that run before; 4 for each node when not given.")
@click.option("--rounds", type=int, default=2, show_default=True, help="Of every row.")
@click.option(
    "--rows", "wanted", default=",".join(r.name for r in TABLE), show_default=True, help="Of the table of scenarios."
)
@click.option("--name", default="load", show_default=True, help="Of the cluster.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Where to write the result.")
@click.option("--profile", type=click.Path(path_type=Path), help="A folder for profiles; they cost some speed.")
@click.option("--strict", is_flag=True, help="End with 1 when a bar is missed.")
def main(
    sizes: tuple[int, ...],
    pods: int,
    running: int | None,
    rounds: int,
    wanted: str,
    name: str,
    file: Path | None,
    profile: Path | None,
    strict: bool,
) -> None:
    """Pods per second on a large cluster that has no nodes."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the cluster is taken down
    table = rows(wanted.split(","), BY_NAME)
    played: dict[int, list[Round]] = {}

    def done(one: Round) -> None:
        """What was measured stays, whatever happens to the rest of the run."""
        played.setdefault(one.nodes, []).append(one)
        if file is not None:
            file.write_bytes(msgspec.json.format(msgspec.json.encode(report.result_of(played, table))))

    missed: list[str] = []
    try:
        for nodes in sizes:
            run = Run(
                nodes=nodes,
                running=_RUNNING * nodes if running is None else running,
                pods=pods,
                rounds=rounds,
                scenarios=table,
                say=_say,
                done=done,
                profiles=Profiles(profile),
            )
            _play(run, name)
    finally:
        if played:
            missed = report.show(played, table).missed
    sys.exit(1 if strict and missed else 0)


def _play(run: Run, name: str) -> None:
    place = layout(default_clusters_dir(), name)
    found = programs.ensure(os.environ, silent(), NEEDED)
    began = monotonic()
    _say(f"{run.nodes} nodes x 8 cards, {run.running} pods run, {run.pods} pods in each of {run.rounds} rounds")
    down.down(place, silent())
    try:
        asyncio.run(play(Cluster(place, found, now=datetime.now(UTC)), run))
    except BaseExceptionGroup as group:
        raise _first(group) from None
    finally:
        down.down(place, silent())
        _say(f"  cluster taken down; {monotonic() - began:.0f} s in all")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    leaves: list[BaseException] = []
    group.subgroup(lambda e: leaves.append(e) is None and False)
    return next(e for e in leaves if not isinstance(e, BaseExceptionGroup))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
