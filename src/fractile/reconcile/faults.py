"""Errors of our own that one object brought out: they are told loudly, and end nothing.

What a pod asks for, or what a stolen token writes of a card, goes through every task of the control plane. If one of
them ended by an exception, so would the program, and it would end again as long as that object exists. So the part of
a task that is about one object runs ``apart``: its exception is an error in the log with the object's name, and counts
in ``fractile_control_plane_faults_total``. Failures that are not about one object (a lost lease, a full memory, a
connection) go through and end what they must.
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Protocol, TypeVar

from fractile.errors import FractileError

log = logging.getLogger(__name__)


class NamedObject(Protocol):
    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...


T = TypeVar("T")


def itself(about: NamedObject) -> NamedObject:
    """For ``Faults.each``, where what is told has a name of its own."""
    return about


class Faults:
    """``counts`` by task: a handful of words of ours."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def apart(self, task: str, namespace: str, name: str) -> Generator[None]:
        """What is done here is about that object only."""
        try:
            yield
        except (FractileError, MemoryError):
            raise
        except Exception as e:
            self.counts[task] += 1
            log.exception("fault task=%s object=%r reason=%r", task, f"{namespace}/{name}", e)

    def each(self, task: str, named: Callable[[T], NamedObject], *tell: Callable[[T], object]) -> Callable[[T], None]:
        """One callback that is several, in this order; one that fails does not keep it from the others."""

        def told(about: T) -> None:
            for each in tell:
                with self.apart(task, named(about).namespace, named(about).name):
                    each(about)

        return told
