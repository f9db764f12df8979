"""Contain bugs that a single object triggers: they are reported as errors, and stop nothing.

What a pod requests, or what a stolen token writes about a card, passes through every task of the control plane. If an
exception ended one of them, it would end the program, again and again as long as that object exists. So the part of a
task that is about one object runs ``apart``: its exception is logged as an error with the object's name, and counted in
``fractile_control_plane_faults_total``. Failures that are not about one object (a lost lease, full memory, a
connection) propagate and end what they must.
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
    """The ``named`` of ``Faults.each`` for objects that have a name themselves."""
    return about


class Faults:
    """``counts``: by task, of which there are only a few fixed names."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    @contextmanager
    def apart(self, task: str, namespace: str, name: str) -> Generator[None]:
        """Contain exceptions of a block that is about that object only."""
        try:
            yield
        except (FractileError, MemoryError):
            raise
        except Exception as e:
            self.counts[task] += 1
            log.exception("fault task=%s object=%r reason=%r", task, f"{namespace}/{name}", e)

    def each(self, task: str, named: Callable[[T], NamedObject], *tell: Callable[[T], object]) -> Callable[[T], None]:
        """One callback that calls several in this order; a failing one does not stop the others."""

        def told(about: T) -> None:
            for each in tell:
                with self.apart(task, named(about).namespace, named(about).name):
                    each(about)

        return told
