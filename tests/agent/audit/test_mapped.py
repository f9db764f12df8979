"""Whether a process that uses the driver has the library in its memory: real processes that map files."""

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fractile.agent.audit.mapped import goes_without, shown
from fractile.agent.limits import library

PROC = Path("/proc")
MAPS = (
    "import mmap, sys\n"
    "files = [open(p, 'rb') for p in sys.argv[1:]]\n"
    "kept = [mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) for f in files]\n"
    "print('ready', flush=True); sys.stdin.read()\n"
)
OPENS = "import os, sys\nkept = os.open(sys.argv[1], os.O_PATH)\nprint('ready', flush=True); sys.stdin.read()\n"


@pytest.fixture
def libraries(tmp_path: Path) -> list[Path]:
    """Those of two versions."""
    made = [tmp_path / version / library.LIBRARY for version in ("v1", "v2")]
    for one in made:
        one.parent.mkdir()
        one.write_bytes(b"\x7fELF")
    return made


def file(folder: Path, name: str) -> Path:
    (folder / name).write_bytes(b"\x7fELF")
    return folder / name


@asynccontextmanager
async def program(text: str, *arguments: Path) -> AsyncGenerator[int]:
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", text, *map(str, arguments), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdin is not None
    try:
        assert await asyncio.wait_for(child.stdout.readline(), 20) == b"ready\n"
        yield child.pid
    finally:
        child.stdin.close()
        await asyncio.wait_for(child.wait(), 10)


async def test_who_has_the_driver_and_not_the_library_goes_without(tmp_path: Path, libraries: list[Path]) -> None:
    ours = shown(map(str, libraries))
    copy = file(tmp_path, library.LIBRARY)
    async with program(MAPS, file(tmp_path, "libcuda.so.570.1"), copy) as pid:
        assert goes_without(PROC, pid, ours)
        assert not goes_without(PROC, pid, frozenset())  # the node's own files cannot be read


@pytest.mark.parametrize("version", [0, 1])
async def test_who_has_the_library_of_any_version_does_not(tmp_path: Path, libraries: list[Path], version: int) -> None:
    async with program(MAPS, file(tmp_path, "libcuda.so.1"), libraries[version]) as pid:
        assert not goes_without(PROC, pid, shown(map(str, libraries)))


@pytest.mark.parametrize("name", ["libnvidia-ml.so.1", "libcudart.so.12", "notlibcuda.so.1"])
async def test_who_has_no_driver_does_not(tmp_path: Path, libraries: list[Path], name: str) -> None:
    """NVML alone, as in nvidia-smi; programs that have just begun."""
    async with program(MAPS, file(tmp_path, name)) as pid:
        assert not goes_without(PROC, pid, shown(map(str, libraries)))


@pytest.mark.skipif(os.geteuid() != 0, reason="a device node needs root")
@pytest.mark.parametrize(("major", "without"), [(195, True), (1, False)])
async def test_a_driver_under_another_name_is_known_by_its_device(
    tmp_path: Path, libraries: list[Path], major: int, without: bool
) -> None:
    node = tmp_path / "any"
    os.mknod(node, 0o20666, os.makedev(major, 3))
    async with program(OPENS, node) as pid:
        assert goes_without(PROC, pid, shown(map(str, libraries))) is without


def played(proc: Path, maps: str) -> Path:
    (proc / "7" / "fd").mkdir(parents=True)
    (proc / "7" / "maps").write_text(maps)
    return proc


DRIVER = "7f0000000000-7f0000001000 r-xp 00000000 fe:00 99                     /usr/lib/libcuda.so.1\n"
LINE = "7f1000000000-7f1000001000 r-xp 00000000 {}                     {}\n"


@pytest.mark.parametrize(
    ("where", "path", "without"),
    [
        pytest.param("fe:00 12", f"{library.INSIDE} (deleted)", False, id="of an agent whose version is gone"),
        pytest.param("fe:00 12", library.INSIDE, True, id="a file of its own at that path"),
        pytest.param("00:1f 12", f"{library.INSIDE} (deleted)", True, id="a deleted one of another file system"),
        pytest.param("fe:00 12", "/tmp/x (deleted)", True, id="another deleted file"),
        pytest.param("fe:00 5", "/any/where", False, id="by device and inode"),
    ],
)
def test_what_counts_as_the_library(tmp_path: Path, where: str, path: str, without: bool) -> None:
    proc = played(tmp_path / "proc", DRIVER + LINE.format(where, path))
    assert goes_without(proc, 7, frozenset({("fe:00", 5)})) is without


def test_who_is_ending_does_not(tmp_path: Path) -> None:
    assert not goes_without(played(tmp_path / "proc", ""), 7, frozenset({("fe:00", 5)}))


def test_who_has_ended_cannot_be_looked_at(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        goes_without(tmp_path, 7, frozenset({("fe:00", 5)}))


@pytest.mark.parametrize("end", ["\r", "\x0c", "\u2028"])
async def test_the_name_of_a_file_makes_no_mapping_of_its_own(tmp_path: Path, libraries: list[Path], end: str) -> None:
    """Such as one of the library, or one that nobody can read."""
    ours = shown(map(str, libraries))
    device, inode = next(iter(ours))
    forged = file(tmp_path, f"a{end}7f0000000000-7f0000001000 r--p 00000000 {device} {inode} ")
    async with program(MAPS, file(tmp_path, "libcuda.so.570.1"), forged, file(tmp_path, f"b{end}c")) as pid:
        assert goes_without(PROC, pid, ours)
