"""One short round of chaos on the shared cluster; `make chaos` plays many (docs/results/chaos.md)."""

import asyncio
from pathlib import Path

import pytest

from fractile.lab.cluster.local import LocalCluster
from tests.chaos.rounds import Settings
from tests.chaos.run import Run, chaos

pytestmark = [pytest.mark.long, pytest.mark.e2e, pytest.mark.chaos]

SHORT = Settings(seed=41, seconds=12, faults=8, steps=8, most=8, settle=90)


def test_a_round_of_chaos_violates_nothing_and_leaves_nobody_behind(cluster: LocalCluster, tmp_path: Path) -> None:
    if cluster.state.image:
        pytest.skip("it hits processes; the chart's pods are hit by the tests of the chart")
    told: list[str] = []
    run = Run(settings=SHORT, logs=tmp_path, more=lambda turn: turn == 1, say=told.append)
    sums = asyncio.run(chaos(cluster, run))
    logs = "\n".join(file.read_text() for file in sorted(tmp_path.glob("*.log")))
    print("\n".join([*told, sums.line]))
    assert sums.fine, f"{told}\n{logs}"
    assert sums.faults >= 4
    assert sums.pods >= 3
