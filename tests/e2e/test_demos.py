"""The demonstrations on the real cluster: each checks what it says."""

from collections.abc import Generator

import pytest

from fractile.cluster.demos import DEMOS, Demo
from fractile.cluster.local import LocalCluster
from fractile.cluster.stage import LocalStage
from fractile.cluster.workload import Workload


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[Workload]:
    """A namespace that is empty before and after."""
    found = Workload(cluster.kubectl, "e2e-demos")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


@pytest.mark.parametrize("demo", DEMOS, ids=lambda d: d.name)
def test_the_demonstration_shows_what_it_says(demo: Demo, cluster: LocalCluster, work: Workload) -> None:
    lines = list(demo.run(LocalStage(cluster), work))
    assert lines
    assert not work.pods(), "a demonstration leaves no pods behind"
