"""Mount namespaces of nodes: the folder of their pins."""

import os
import subprocess
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from fractile.lab.layout import ClusterLayout, layout
from fractile.lab.machine import mounts


@pytest.fixture
def place(tmp_path: Path) -> Generator[ClusterLayout]:
    if os.geteuid() != 0 or mounts.why_impossible():
        pytest.skip("mounts need root")
    found = layout(tmp_path, "mounts-test")
    yield found
    mounts.unmount_below(tmp_path)
    mounts.remove_empty_targets()


def test_nodes_that_are_prepared_at_the_same_time_share_one_mount_of_the_folder_of_pins(place: ClusterLayout) -> None:
    """Two on top of each other hid the first node's namespace: nsenter, umount and `fractile down` failed."""
    together = Barrier(8)

    def prepare(index: int) -> None:
        together.wait(10)
        mounts.make_namespace(place, index)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(prepare, range(8)))
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert points.count(str(place.pins)) == 1
    assert all(mounts.is_pinned(place.pin(index)) for index in range(8))
    for index in range(8):
        mounts.release(place.pin(index))


def test_a_namespace_that_was_pinned_twice_is_let_go_of_whole(place: ClusterLayout) -> None:
    """Two starts of one cluster at the same time: `fractile down` failed with "Device or resource busy"."""
    pin = place.pin(0)
    mounts.make_namespace(place, 0)
    subprocess.run(["unshare", f"--mount={pin}", "--propagation", "private", "true"], check=True, timeout=20)
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert points.count(str(pin)) == 2
    mounts.release(pin)
    assert not pin.exists()


def test_a_mount_point_that_another_cluster_uses_is_not_removed(place: ClusterLayout) -> None:
    """rmdir(2) would detach the mount there; its containers could no longer be stopped."""
    pin = place.pin(0)
    mounts.make_namespace(place, 0)
    (place.node(0).run / "socket").touch()
    enter = mounts.enter(pin)
    with subprocess.Popen([*enter, "sh", "-c", "echo in; exec sleep 60"], stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"in\n"
        try:
            mounts.remove_empty_targets()
            seen = subprocess.run(
                [*enter, "ls", "/run/containerd"], capture_output=True, text=True, timeout=20, check=False
            )
            assert seen.stdout == "socket\n"
        finally:
            node.kill()
    mounts.release(pin)


def test_a_mount_point_of_a_node_whose_programs_have_ended_is_not_removed(place: ClusterLayout) -> None:
    """The next `fractile up` uses the namespace again: the containerd of four nodes then shared one folder."""
    mounts.make_namespace(place, 0)
    (place.node(0).run / "socket").touch()
    mounts.remove_empty_targets()
    seen = subprocess.run(
        [*mounts.enter(place.pin(0)), "ls", "/run/containerd"], capture_output=True, text=True, timeout=20, check=False
    )
    assert seen.stdout == "socket\n"
    mounts.release(place.pin(0))


def test_a_namespace_that_lost_a_mount_is_not_complete(place: ClusterLayout) -> None:
    mounts.make_namespace(place, 0)
    assert mounts.is_complete(place, 0)
    subprocess.run([*mounts.enter(place.pin(0)), "umount", "/run/containerd"], check=True, timeout=20)
    assert not mounts.is_complete(place, 0)
    mounts.make_namespace(place, 0)
    assert mounts.is_complete(place, 0)
    mounts.release(place.pin(0))
