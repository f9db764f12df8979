"""What a container may write stays at its size: one file, which it can neither replace nor make longer for long."""

import asyncio
import ctypes
import os
import subprocess
from pathlib import Path

import pytest

from fractile.agent.limits.journal import Journal
from fractile.model.units import CardUUID, ContainerName, PodUID
from fractile.region import directory, shared
from fractile.region.page import CardLimits, ContainerLimits
from fractile.wire.fractile.device_ids import device_id
from tests.agent.world import CARDS, MEM, Asks, world

SIZE = shared.RegionShape(1).size
MIB = 2**20
KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
# As a runtime does: first the directory, read-only, then the file in it.
CONTAINER = """
set -e
mount -t tmpfs none /etc && mkdir /etc/fractile
mount --bind "$1" /etc/fractile && mount -o remount,ro,bind /etc/fractile
mount --bind "$1/shared/region" /etc/fractile/shared/region
cd /etc/fractile/shared
for try in 'touch new' 'rm region' 'mv region other' 'ln region other' 'mkdir folder' 'touch ../limits'; do
    if $try 2>/dev/null; then echo "did: $try"; fi
done
printf x | dd of=region bs=1 count=1 seek=100 conv=notrunc 2>/dev/null
echo end
"""


@pytest.fixture
def slice_of(tmp_path: Path) -> Path:
    """The directory of a container that may run."""
    journal = Journal(tmp_path / "slices", new_token=str)
    journal.create("t", MEM, frozenset({device_id(CARDS[0].uuid, 0)}))
    limits = ContainerLimits(
        pod_uid=PodUID("u"),
        namespace="n",
        pod="p",
        container=ContainerName("c"),
        cards=(CardLimits(uuid=CardUUID(CARDS[0].uuid), memory=2**21),),
    )
    journal.write_limits("t", limits)
    return journal.path("t")


def test_a_container_as_root_writes_into_the_file_and_makes_replaces_and_removes_none(slice_of: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounts need root")
    program = ["unshare", "--mount", "--propagation", "private", "sh", "-c", CONTAINER, "sh", str(slice_of)]
    done = subprocess.run(program, check=False, capture_output=True, text=True, timeout=30)
    assert (done.stdout, done.stderr) == ("end\n", "")
    assert (slice_of / directory.REGION).read_bytes()[100:101] == b"x"
    assert sorted(p.name for p in slice_of.iterdir()) == ["ids", "limits", "shared"]


@pytest.mark.parametrize("how", ["written", "with a hole", "reserved", "reserved behind its end"])
def test_what_is_beyond_the_end_is_cut_off_and_the_rest_stays(slice_of: Path, how: str) -> None:
    region = slice_of / directory.REGION
    before = region.read_bytes()
    descriptor = os.open(region, os.O_WRONLY)
    if how == "written":
        os.pwrite(descriptor, b"\1" * MIB, SIZE)
    elif how == "with a hole":
        os.pwrite(descriptor, b"\1", 2**40)
    elif how == "reserved":
        os.posix_fallocate(descriptor, 0, SIZE + 8 * MIB)
    else:
        libc = ctypes.CDLL(None, use_errno=True)
        long = ctypes.c_long
        assert libc.fallocate(descriptor, KEEP_SIZE, long(SIZE), long(8 * MIB)) == 0, os.strerror(ctypes.get_errno())
    os.close(descriptor)
    held = region.stat().st_blocks * 512
    freed = shared.cut_back(region, cards=1)
    assert region.read_bytes() == before
    assert region.stat().st_blocks * 512 == held - freed <= SIZE + 65536
    assert shared.cut_back(region, cards=1) == 0
    assert shared.generation(region, cards=1) is not None


@pytest.mark.parametrize("what", ["a link", "a folder", "a pipe", "a short file"])
def test_whatever_else_lies_there_is_left_alone(slice_of: Path, tmp_path: Path, what: str) -> None:
    region, other = slice_of / directory.REGION, tmp_path / "other"
    other.write_bytes(bytes(2 * SIZE))
    region.unlink()
    if what == "a link":
        region.symlink_to(other)
    elif what == "a folder":
        region.mkdir()
    elif what == "a pipe":
        os.mkfifo(region)
    else:
        region.write_bytes(b"x")
    assert shared.cut_back(region, cards=1) == 0
    assert other.stat().st_size == 2 * SIZE


async def test_the_agent_cuts_back_within_two_seconds_tells_the_pod_and_leaves_the_neighbour() -> None:
    async with world() as w:
        bad, good = (w.admit(Asks("main", 2), on={"main": [CARDS[0]]}, name=n) for n in ("bad", "good"))
        await w.kubelet.running(bad)
        await w.kubelet.running(good)
        started = w.kubelet.started(bad, "main")
        assert started is not None
        region = Path(started.mounts[f"{directory.MOUNT}/{directory.REGION}"])
        descriptor = os.open(region, os.O_WRONLY)
        os.pwrite(descriptor, b"\1" * MIB, SIZE)
        os.close(descriptor)
        async with asyncio.timeout(5):
            while region.stat().st_size != SIZE:  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.05)

        def told() -> list[str]:
            events = w.server.all("/api/v1/events")
            return [e["involvedObject"]["name"] for e in events if e["reason"] == "SharedFileTooLong"]

        async with asyncio.timeout(10):
            while not told():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert told() == ["bad"]
        w.check(bad, good)
