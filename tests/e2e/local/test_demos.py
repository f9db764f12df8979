"""The demonstrations on the real cluster: each checks what it says."""

from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.stage import LocalStage
from fractile.lab.demos.demos import DEMOS, Demo
from fractile.lab.demos.workload import DemoWorkload


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after."""
    found = DemoWorkload(cluster.kubectl, "e2e-demos")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


@pytest.mark.parametrize("demo", DEMOS, ids=lambda d: d.name)
def test_the_demonstration_shows_what_it_says(demo: Demo, cluster: LocalCluster, work: DemoWorkload) -> None:
    lines = list(demo.run(LocalStage(cluster), work))
    assert lines
    assert not work.pods(), "a demonstration leaves no pods behind"
