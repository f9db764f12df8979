"""A restart: 40,000 cards and 50,000 pods from the pages of lists into the ledger."""

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from itertools import islice

import msgspec

from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.main.collector import seldom
from fractile.model.units import MemoryUnit
from fractile.watch.event_handlers import CardHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import Pod
from tests.perf.measuring.report import Row
from tests.perf.measuring.world import card_objects, pod_objects

PODS = 50_000
PAGE = 500
BAR = 5.0  # s
PROCESSOR_BAR = 3.5  # s


class _Page(msgspec.Struct):
    items: list[Pod]


class _Cards(msgspec.Struct):
    items: list[ExtendedResource]


def measure() -> list[Row]:
    with seldom():  # as the control plane does
        took = _rebuild()
    note = (
        f"of which cards {took.cards:.2f}, decoding pods {took.decoding:.2f}; pods of {took.bytes_each / 1000:.1f} kB"
    )
    return [
        Row("rebuild of 40,000 cards and 50,000 pods", took.wall, "s", BAR, f"decode and charge, in pages of {PAGE}"),
        Row("the same: processor time", took.processor, "s", PROCESSOR_BAR, note),
    ]


class _Took(msgspec.Struct):
    """``cards`` and ``decoding`` are processor time, as ``processor`` is."""

    wall: float = 0.0
    processor: float = 0.0
    cards: float = 0.0
    decoding: float = 0.0
    bytes_each: float = 0.0


def _rebuild() -> _Took:
    took = _Took()
    ledger = Ledger(time.monotonic)
    classes = ClassIndex(ledger)
    cards = CardHandlers(ledger, freed=lambda node: None)
    problems: list[str] = []
    handlers = PodHandlers(
        ledger=ledger,
        waiting=WaitingPods(),
        unit=MemoryUnit.MiB,
        warn=lambda pod, reason, message: problems.append(message),
        freed=lambda node: None,
        needs_repair=lambda pod: problems.append(pod.metadata.name),
    )
    pages = msgspec.json.Decoder(_Cards)
    for page in _pages(card_objects()):
        with _timed(took):
            before = time.process_time()
            for card in pages.decode(page).items:
                cards.changed(card)
            took.cards += time.process_time() - before
    decoder = msgspec.json.Decoder(_Page)
    for page in _pages(pod_objects(PODS)):
        took.bytes_each += len(page) / PODS
        with _timed(took):
            before = time.process_time()
            items = decoder.decode(page).items
            took.decoding += time.process_time() - before
            for pod in items:
                handlers.changed(pod)
    with _timed(took):  # what is put off until it is asked for counts too
        assert ledger.arrays.most_free.max() >= 0
    assert ledger.statistics().bound == PODS, ledger.statistics()
    assert not problems
    assert not ledger.audit()
    assert not len(classes)
    return took


@contextmanager
def _timed(took: _Took) -> Generator[None]:
    wall, processor = time.perf_counter(), time.process_time()
    yield
    took.wall += time.perf_counter() - wall
    took.processor += time.process_time() - processor


def _pages(objects: Iterator[bytes]) -> Iterator[bytes]:
    while page := list(islice(objects, PAGE)):
        yield b'{"items":[' + b",".join(page) + b"]}"
