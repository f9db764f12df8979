"""make -C native density: inference services with random arrivals, one per card and three per card, equal shares.

A service gets requests as a Poisson process, each a chain of kernels whose length varies log-normally, and answers
them one after the other. The same services, with the same requests, run alone on a card without the library, then
three together under the arbiter, then three together with the driver's own time slicing. The output has the requests
served per card and second, the p99 of the time from arrival to answer, and the number of cards for 100 such services.
The last line is JSON."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import host
from host import Books, Tenant

WINDOW = 60000  # ms of the card's time
SERVICES = 100
TOGETHER = 3


@dataclass(frozen=True)
class Service:
    name: str
    kernels: str  # us:grid
    n: int  # kernels of a request
    rate: float  # requests per second
    spread: float  # of the log of a request's length

    def tenant(self, seed: int, cores: int) -> Tenant:
        words = f"loop=service kernels={self.kernels} n={self.n} rate={self.rate} spread={self.spread} seed={seed}"
        return Tenant(words, cores=cores)

    @property
    def load(self) -> float:
        """The part of a card's time that it uses."""
        each = [int(k.split(":")[0]) for k in self.kernels.split(",")]
        return self.rate * self.n * sum(each) / len(each) / 1e6


VISION = Service("vision", "250:432", 8, 100, 0.3)
TEXT = Service("text", "100:108,400:864", 16, 50, 0.6)
SPEECH = Service("speech", "1000:1024", 10, 20, 0.5)
SETS = [
    [VISION] * 3,
    [TEXT] * 3,
    [SPEECH] * 3,
    [VISION, TEXT, SPEECH],
]


def quantile(values: list[int], q: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * q))] / 1000 if ordered else 0.0


@dataclass(frozen=True)
class Outcome:
    served: float  # requests per second
    p50: float  # ms
    p99: float
    busy: float  # part of the card's time


def outcome(books: Books, which: int) -> Outcome:
    times = books.latencies.get(which, [])
    return Outcome(
        len(times) / (WINDOW / 1000), quantile(times, 0.5), quantile(times, 0.99), books.share(which, 0, WINDOW)
    )


def measure(build: Path, seed: int, services: list[Service]) -> tuple[list[Outcome], list[Outcome], list[Outcome]]:
    """Each alone; all together; all together with only the driver to share the card."""
    alone = [
        outcome(host.run(build, [s.tenant(seed + k, 0)], "none", WINDOW, WINDOW), 0) for k, s in enumerate(services)
    ]
    tenants = [s.tenant(seed + k, 100 // len(services)) for k, s in enumerate(services)]
    together = host.run(build, tenants, "fractile", WINDOW, WINDOW)
    bare = host.run(build, tenants, "none", WINDOW, WINDOW)
    three, driver = ([outcome(b, k) for k in range(len(services))] for b in (together, bare))
    return alone, three, driver


def line(what: str, outcomes: list[Outcome], cards: int) -> str:
    served, busy = sum(o.served for o in outcomes) / cards, sum(o.busy for o in outcomes) / cards
    p99 = " ".join(f"{o.p99:7.2f}" for o in outcomes)
    return f"  {what:14} {served:8.1f} requests/s per card   {busy * 100:5.1f} % busy   p99 {p99} ms"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", type=Path, required=True, help="where make put the programs")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--jobs", type=int, default=2)
    a = p.parse_args()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, host.end_all)
    with ThreadPoolExecutor(a.jobs) as pool:
        measured = list(pool.map(partial(measure, a.build, a.seed), SETS))
    for services, (alone, together, bare) in zip(SETS, measured, strict=True):
        loads = " + ".join(f"{s.name} {s.load * 100:.0f} %" for s in services)
        print(f"{loads} of a card")
        print(line("one per card", alone, len(alone)))
        print(line("three per card", together, 1))
        print(line("driver only", bare, 1))
    first, then = [o for a, _, _ in measured for o in a], [o for _, t, _ in measured for o in t]
    served = sum(o.served for o in first) / len(first), sum(o.served for o in then) / len(measured)
    found = {
        "served_per_card_one": round(served[0], 1),
        "served_per_card_three": round(served[1], 1),
        "throughput_per_card_ratio": round(served[1] / served[0], 3),
        "p99_ms_one": round(max(o.p99 for o in first), 2),
        "p99_ms_three": round(max(o.p99 for o in then), 2),
        "cards_for_100_services_one": SERVICES,
        "cards_for_100_services_three": -(-SERVICES // TOGETHER),
    }
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
