"""``make soak MINUTES=60``: churn on a local cluster of its own, which is taken down after.

The last line is the sums; the exit status is 0 when nothing leaks. ``samples.csv`` and ``soak.svg`` are in the folder
that is named before it, also after a run that was ended early.
"""

import asyncio
import signal
import sys
import tempfile
from pathlib import Path

import click

from fractile.lab.cluster.local import LocalCluster
from tests.soak import plot
from tests.soak.run import Outcome, Settings, soak
from tests.soak.samples import Sample, to_csv
from tests.soak.verdict import Verdict, judge
from tests.soak.world import World

_WARM_UP = 600.0  # seconds
_JUDGED = ("control-plane", "control-plane-standby", "/agent", "/arbiter")


@click.command()
@click.option("--minutes", type=float, default=60.0, show_default=True, help="Of churn.")
@click.option("--rate", type=float, default=1.0, show_default=True, help="Pods a second.")
@click.option("--nodes", type=int, default=2, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--name", default="soak", show_default=True, help="Of the cluster.")
@click.option("--out", type=click.Path(path_type=Path, file_okay=False), help="Where samples and picture go.")
@click.option("--clean/--no-clean", default=True, help="Wait at the end until all directories are swept.")
def main(minutes: float, rate: float, nodes: int, seed: int, name: str, out: Path | None, clean: bool) -> None:
    """Steady churn on a local cluster of real programs."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the cluster is taken down
    folder = out or Path(tempfile.mkdtemp(prefix="fractile-soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    settings = Settings(seconds=minutes * 60, rate=rate, seed=seed, clean=clean)
    cluster = LocalCluster(name)
    cluster.down()
    try:
        world = World(cluster, nodes=nodes)
        world.begin()
        outcome = asyncio.run(soak(world, settings, say=_say, keep=lambda seen: _write(folder, seen)))
    finally:
        cluster.down()
    sys.exit(_report(folder, outcome, minutes))


def _report(folder: Path, outcome: Outcome, minutes: float) -> int:
    _write(folder, outcome.samples)
    warm_up = min(_WARM_UP, minutes * 60 / 3)
    found = [v for v in judge(outcome.samples, warm_up=warm_up) if v.program.endswith(_JUDGED)]
    (folder / "soak.svg").write_bytes(plot.draw(outcome.samples, warm_up=warm_up))
    _say(f"pods={outcome.pods} ran={outcome.ran} failed={outcome.failed} held_back={outcome.held_back}")
    for one in found:
        _say(f"  {one.program:24} {one.memory.level / 1024:7.1f} MiB {one.memory.percent:+.1f} %")
    leaks = [sentence for one in found for sentence in one.leaks] + outcome.left
    for sentence in leaks:
        _say(f"  LEAK {sentence}")
    _say(f"samples and picture: {folder}")
    _say(f"soak minutes={minutes:g} pods={outcome.pods} {_growth(found)} leaks={len(leaks)}")
    return 1 if leaks or not found else 0


def _growth(found: list[Verdict]) -> str:
    """The most of each kind of program; nodes have several."""
    most: dict[str, float] = {}
    for one in found:
        kind = one.program.rpartition("/")[2].replace("control-plane-", "").replace("control-plane", "control")
        most[kind] = max(most.get(kind, one.memory.percent), one.memory.percent)
    return " ".join(f"rss_growth_{kind}={percent:.1f}%" for kind, percent in sorted(most.items()))


def _write(folder: Path, samples: list[Sample]) -> None:
    (folder / "soak.csv").write_text(to_csv(samples))


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
