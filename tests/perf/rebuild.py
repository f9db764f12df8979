"""A restart: 50,000 pods from the pages of a list into the ledger."""

import time
from collections.abc import Iterator
from itertools import islice

import msgspec

from fractile.control.feed import CardFeed, PodFeed
from fractile.control.waiting import WaitingPods
from fractile.ledger.ledger import Ledger
from fractile.model.units import MemoryUnit
from fractile.wire import extended_resource
from fractile.wire.objects import Pod
from tests.perf.report import Row
from tests.perf.world import card_objects, pod_objects

PODS = 50_000
PAGE = 500
BAR = 5.0  # s


class _Page(msgspec.Struct):
    items: list[Pod]


def measure() -> list[Row]:
    ledger = Ledger(time.monotonic)
    cards = CardFeed(ledger, freed=lambda node: None)
    for body in card_objects():
        cards.changed(extended_resource.decoder.decode(body))
    problems: list[str] = []
    feed = PodFeed(
        ledger=ledger,
        waiting=WaitingPods(),
        unit=MemoryUnit.MiB,
        warn=lambda pod, reason, message: problems.append(message),
        freed=lambda node: None,
        needs_repair=lambda pod: problems.append(pod.metadata.name),
    )
    decoder = msgspec.json.Decoder(_Page)
    seconds = size = 0.0
    for page in _pages(pod_objects(PODS)):
        size += len(page)
        started = time.perf_counter()
        for pod in decoder.decode(page).items:
            feed.changed(pod)
        seconds += time.perf_counter() - started
    assert ledger.statistics().bound == PODS, ledger.statistics()
    assert not problems
    note = f"decode and charge, pods of {size / PODS / 1000:.1f} kB in pages of {PAGE}"
    return [Row("rebuild of 50,000 pods", seconds, "s", BAR, note)]


def _pages(objects: Iterator[bytes]) -> Iterator[bytes]:
    while page := list(islice(objects, PAGE)):
        yield b'{"items":[' + b",".join(page) + b"]}"
