"""A disk that is full, under the agent's own directory."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.world import CARDS, Asks, World, world


def nothing_fits(w: World, patch: pytest.MonkeyPatch, where: str) -> None:
    """From here on the file system says so: for a new directory, or for the blocks of what containers share."""

    def full(real: Callable[..., object]) -> Callable[..., object]:
        def call(path: object, *args: object, **kwargs: object) -> object:
            if isinstance(path, int) or Path(str(path)).is_relative_to(w.root / "state"):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(path, *args, **kwargs)

        return call

    if where == "directory":
        patch.setattr(Path, "mkdir", full(Path.mkdir))
    else:
        patch.setattr(os, "posix_fallocate", full(os.posix_fallocate))


@pytest.mark.parametrize(("where", "reason"), [("directory", "No space left"), ("blocks", "no room for the")])
async def test_while_the_disk_is_full_new_containers_wait_with_the_reason_and_those_that_ran_start_again(
    where: str, reason: str
) -> None:
    async with world() as w:
        old = w.admit(Asks("main", 2), on={"main": [CARDS[0]]})
        await w.kubelet.running(old)
        with pytest.MonkeyPatch.context() as patch:
            nothing_fits(w, patch, where)
            new = w.admit(Asks("main", 3), on={"main": [CARDS[1]]})
            assert reason in await w.kubelet.refused(reason)
            fate = w.kubelet.fate(new)
            assert fate is not None
            assert fate.phase == ""  # it waits: kubelet did not give it up
            w.kubelet.end_container(old, "main")
            await w.kubelet.running(old)
        await w.kubelet.running(new)
        w.check(old, new)
        assert len(w.tokens()) == 2
