"""The cluster that the end-to-end tests share: real Kubernetes programs, real kubelets, Fractile on simulated cards.

Where the machine lacks what real nodes need, the tests are skipped with the reason; nothing is installed or built here
(`fractile up` does that). A cluster that a killed run left behind is taken down first.
"""

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.stage import demo_spec
from fractile.lab.cluster.up import UpOptions
from fractile.lab.layout import layout, locked
from fractile.lab.machine import cgroups, mounts, packages, programs

NAME = os.environ.get("FRACTILE_TEST_CLUSTER", "e2e")  # two runs side by side need two names
CHART = "FRACTILE_TEST_CHART" in os.environ  # Fractile is pods, from its chart
WAIT = 240.0  # seconds; a test may take 300


def not_on_chart(reason: str) -> pytest.MarkDecorator:
    """For tests that start or look at Fractile's processes in a way that its pods have no part in."""
    return pytest.mark.skipif(CHART, reason=f"on the chart: {reason}")


def why_not() -> str:
    """Why real nodes cannot run here; empty when they can."""
    if os.geteuid() != 0:
        return "real nodes need root"
    if reason := mounts.why_impossible():
        return reason
    if lacking := packages.missing():
        return f"these packages are missing: {' '.join(lacking)}"
    if programs.find(os.environ) is None:
        return "the Kubernetes programs are not built; `fractile up` builds them with Go"
    return ""


@pytest.fixture(scope="session", autouse=True)
def _possible() -> None:
    if reason := why_not():
        pytest.skip(reason)


@pytest.fixture(scope="session")
def _alone() -> Generator[None]:
    """One run of these tests at a time on a machine: each takes down what it finds. The kernel frees the lock."""
    guard = layout(Path(tempfile.gettempdir()), f"fractile-{NAME}")
    deadline = time.monotonic() + WAIT
    while True:
        with ExitStack() as held:
            try:
                held.enter_context(locked(guard))
            except SetupError:
                if time.monotonic() > deadline:
                    pytest.fail("another run of the end-to-end tests is at work on this machine; wait until it is done")
                time.sleep(1)
                continue
            yield
            guard.lock.unlink()
            return


@pytest.fixture(scope="session")
def cluster(_alone: None) -> Generator[LocalCluster]:
    """One cluster for the whole run. Tests that break it must heal it with ``cluster.up()``."""
    found = LocalCluster(NAME)
    found.down()
    before = container_cgroups()
    try:
        found.up(UpOptions(spec=demo_spec(NAME), chart=CHART))
        yield found
    finally:
        found.down()
    if not any(found.place.root.parent.glob("*")):  # no other cluster of this user
        assert container_cgroups() <= before, "cgroups stay behind"


def container_cgroups() -> set[Path]:
    """The cgroup of all containers of the machine, in each hierarchy that has it."""
    return {path for tree in cgroups.hierarchies() if (path := tree / cgroups.PARENT).is_dir()}
