"""Why inotify does not watch a place."""

import errno
import os

import pytest

from fractile.agent.node import unwatched


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (errno.EMFILE, "no inotify instance is free for this user (raise fs.inotify.max_user_instances by sysctl), or"),
        (errno.ENOSPC, "no inotify watch is free for this user (raise fs.inotify.max_user_watches by sysctl)"),
        (errno.ENOENT, "No such file or directory"),
    ],
)
def test_a_limit_of_the_kernel_is_named_with_the_setting_that_raises_it(code: int, says: str) -> None:
    assert says in unwatched.reason(OSError(code, os.strerror(code)))
