"""Too few inotify instances are told before a node is started."""

import contextlib
import errno
import os
from collections.abc import Callable

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster import inotify


def at_most(count: int, code: int = errno.EMFILE) -> Callable[[], int]:
    """A kernel that gives so many, and descriptors that are real."""
    left = iter(range(count))

    def make() -> int:
        if next(left, None) is None:
            raise OSError(code, os.strerror(code))
        return os.open(os.devnull, os.O_RDONLY)

    return make


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_enough_of_them_are_taken_and_given_back() -> None:
    before = descriptors()
    inotify.check(2, make=at_most(2 * inotify.OF_A_NODE))
    assert descriptors() == before


def test_too_few_are_an_error_that_says_how_many_are_left_and_what_to_do() -> None:
    before = descriptors()
    with pytest.raises(SetupError, match=r"^3 nodes need 24 inotify instances, and 23 are left .* sysctl fs\.inotify"):
        inotify.check(3, make=at_most(23))
    assert descriptors() == before


def test_no_node_needs_none() -> None:
    inotify.check(0, make=at_most(0))


def test_another_error_is_no_want_of_instances() -> None:
    with pytest.raises(OSError, match="memory"):
        inotify.check(1, make=at_most(3, errno.ENOMEM))


def test_the_kernel_of_this_machine_is_asked_and_loses_none() -> None:
    before = descriptors()
    with contextlib.suppress(SetupError):
        inotify.check(1)
    assert descriptors() == before
