"""What the agent keeps on the node is missed when somebody removes it."""

import asyncio
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.known_limits import LOOKS
from fractile.agent.limits.library import install
from fractile.agent.limits.library_content import LibraryContent
from fractile.agent.node.ground import Ground
from fractile.errors import SetupError
from fractile.region import directory
from tests.agent.limits.test_library import source
from tests.region.examples import LIMITS


class Made:
    """An agent's folder with a lock and the limits of one container."""

    def __init__(self, root: Path) -> None:
        self.state = root / "state"
        self.journal = Journal(self.state / "slices", new_token=str)
        self.lock = self.state / "agent.lock"
        self.lock.touch()
        self.journal.create("t", "r", frozenset({"GPU-a::0"}))
        self.journal.write_limits("t", LIMITS)
        self.ground = Ground(self.state, self.journal, [self.lock], sleep=lambda _: asyncio.sleep(0))


def remove_page(made: Made) -> None:
    made.journal.granted()
    (made.journal.path("t") / directory.LIMITS).unlink()
    for _ in range(LOOKS):
        made.journal.granted()


def remove_lock(made: Made) -> None:
    made.lock.unlink()


def remove_directories(made: Made) -> None:
    shutil.rmtree(made.journal.root)


def remove_all(made: Made) -> None:
    shutil.rmtree(made.state)


def replace_lock(made: Made) -> None:
    made.lock.rename(made.lock.with_suffix(".old"))
    made.lock.touch()


@pytest.mark.parametrize(
    ("remove", "missing"),
    [
        pytest.param(remove_lock, "agent.lock", id="a file"),
        pytest.param(replace_lock, "agent.lock", id="a file, and another one lies there"),
        pytest.param(remove_directories, "slices", id="all directories of containers"),
        pytest.param(remove_all, "slices", id="everything"),
        pytest.param(remove_page, "limits pages", id="one container's page"),
    ],
)
async def test_what_is_removed_is_missed(tmp_path: Path, remove: Callable[[Made], None], missing: str) -> None:
    made = Made(tmp_path)
    waiting = asyncio.create_task(made.ground.lost())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    remove(made)
    await asyncio.wait_for(waiting, 10)
    assert missing in made.ground.missing()


async def test_a_library_that_is_changed_in_place_is_missed(tmp_path: Path) -> None:
    made = Made(tmp_path)
    version = install(source(tmp_path / "from"), made.state)
    wrong = partial(LibraryContent().wrong, version.folder)
    ground = Ground(made.state, made.journal, version.files, wrong=wrong, sleep=lambda _: asyncio.sleep(0))
    waiting = asyncio.create_task(ground.lost())
    await asyncio.sleep(0.05)
    assert not waiting.done()
    os.truncate(version.folder / "ld.so.preload", 0)
    await asyncio.wait_for(waiting, 10)
    assert str(version.folder) in ground.missing()


def test_a_socket_is_missed_from_when_it_was_first_there(tmp_path: Path) -> None:
    made = Made(tmp_path)
    path = made.state / "debug.sock"
    ground = Ground(made.state, made.journal, [], sockets=[path])
    assert ground.missing() == ""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        assert ground.missing() == ""
        path.unlink()
        assert str(path) in ground.missing()


def test_what_the_journal_removes_is_not_missed(tmp_path: Path) -> None:
    made = Made(tmp_path)
    made.journal.granted()
    made.journal.remove("t")
    assert made.journal.granted() == {}
    assert made.ground.missing() == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_below_a_mount_of_a_directory_that_is_gone_nothing_can_be_made_and_the_agent_ends(tmp_path: Path) -> None:
    program = f"""
import os, shutil
from pathlib import Path
from tests.agent.node.test_ground import Ground, Made, SetupError
made = Made(Path({str(tmp_path)!r}))
inside = Path({str(tmp_path / "inside")!r})
inside.mkdir()
assert os.system(f"mount --bind {{made.state}} {{inside}}") == 0
ground = Ground(inside, made.journal, [])
assert ground.missing() == ""
shutil.rmtree(made.state)
try:
    ground.missing()
except SetupError as e:
    print(e)
"""
    command = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", program]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "was removed from the node" in said.stdout, said.stderr


assert SetupError  # for the program above
