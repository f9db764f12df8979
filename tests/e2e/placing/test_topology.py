"""Cards that are joined by links, on the real cluster: published, chosen, given out, and seen in the container."""

import subprocess
import sys
from collections.abc import Generator

import pytest

from fractile.lab.cluster.local import LocalCluster
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload
from fractile.lab.machine import images
from tests.e2e.node.test_limits import probe
from tests.main.process import PROGRAM

JOINED = ["1", "3"]  # of n4, by NVLink (fractile.lab.cluster.stage); all others over PCIe


@pytest.fixture
def work(cluster: LocalCluster) -> Generator[DemoWorkload]:
    """A namespace that is empty before and after, on nodes whose cards have links."""
    cluster.up()
    if not cluster.state.native:
        pytest.skip("simgpu is not built here: it needs gcc and make")
    found = DemoWorkload(cluster.kubectl, "e2e-topology")
    found.create_namespace()
    found.delete()
    yield found
    found.delete(wait=120)


def test_a_pod_of_two_cards_gets_those_that_are_linked_and_sees_that_they_are(
    cluster: LocalCluster, work: DemoWorkload
) -> None:
    rows = cluster.kubectl(
        *("get", "extendedresources", "-l", "fractile.dev/node=n4", "--sort-by=.spec.index"),
        *("-o", r"jsonpath={range .items[*]}{.spec.deviceID} {.spec.interconnect.peers}{'\n'}{end}"),
    ).splitlines()
    cards = [row.split(" ")[0] for row in rows]
    assert [row.split(" ")[1:] for row in rows] == [
        ["X", "NODE", "NODE", "NODE"],
        ["NODE", "X", "NODE", "NV2"],
        ["NODE", "NODE", "X", "NODE"],
        ["NODE", "NV2", "NODE", "X"],
    ]

    work.apply([w.pod("pair", w.container(count=2) | {"image": images.CUDA}, nodes=["n4"])])
    placed = w.placement_of(work.wait_running("pair")["pair"])
    linked = [cards[int(index)] for index in JOINED]
    assert [s.card for s in placed.containers[0].slices] == linked
    assert work.environment("pair")["NVIDIA_VISIBLE_DEVICES"].split(",") == linked
    assert probe(work, cluster, "pair", "cards") == {"uuids": linked, "nvlink": True}

    work.apply([w.pod("rest", w.container(count=2) | {"image": images.CUDA}, nodes=["n4"])])
    work.wait_running("rest")
    assert probe(work, cluster, "rest", "cards") == {"uuids": [cards[0], cards[2]], "nvlink": False}

    drawn = subprocess.run(
        [sys.executable, "-c", PROGRAM, "inspect", "n4", "-o", "topology", "--name", cluster.name],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout
    assert "2 cards, 50.0 GB/s" in drawn
