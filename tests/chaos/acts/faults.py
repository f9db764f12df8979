"""Which program is hit when, and how: a schedule that follows from the seed alone. Pure.

kill     SIGKILL; who watches over the programs starts it again after so many seconds
restart  SIGTERM, and the same
pause    SIGSTOP, and SIGCONT after so many seconds
cut      its connections through its link are closed, and new ones refused, for so many seconds
stall    nothing passes through its link, and nobody is told, for so many seconds
mute     what it asks through its link is done, and no answer comes, for so many seconds
late     what it asks through its link arrives late for so many seconds, by half as many, whoever waits for it
"""

from collections.abc import Sequence
from enum import StrEnum
from random import Random

import msgspec

SHORTEST, LONGEST = 0.3, 8.0  # seconds; a node is lost after 25
GAP = 1.5  # seconds that a target is left alone between two faults


class Kind(StrEnum):
    KILL = "kill"
    RESTART = "restart"
    PAUSE = "pause"
    CUT = "cut"
    STALL = "stall"
    MUTE = "mute"
    LATE = "late"


PROCESS = (Kind.KILL, Kind.RESTART, Kind.PAUSE)
LINK = (Kind.CUT, Kind.STALL)
WRITES = (Kind.MUTE, Kind.LATE)  # of who binds: a write that had no answer and was done, or is done later


class Target(msgspec.Struct, frozen=True):
    """What can be hit, and how. ``weight``: how often, compared with the others."""

    name: str
    kinds: tuple[Kind, ...]
    weight: int = 1


class Fault(msgspec.Struct, frozen=True):
    """``at`` and ``seconds``: when it begins, from the start of the round, and how long it lasts."""

    at: float
    target: str
    kind: Kind
    seconds: float

    @property
    def end(self) -> float:
        return self.at + self.seconds


def schedule(seed: int, turn: int, targets: Sequence[Target], *, seconds: float, count: int) -> list[Fault]:
    """The faults of round ``turn``, by time; at most ``count``, all over within ``seconds``, of one target never two at
    a time. Equal arguments give equal schedules."""
    rng = Random(f"faults/{seed}/{turn}")
    found: list[Fault] = []
    for _ in range(count):
        fault = _draw(rng, targets, seconds)
        if all(_apart(fault, other) for other in found if other.target == fault.target):
            found.append(fault)
    return sorted(found, key=lambda f: (f.at, f.target))


def _draw(rng: Random, targets: Sequence[Target], seconds: float) -> Fault:
    (target,) = rng.choices(targets, [t.weight for t in targets])
    kind = rng.choice(target.kinds)
    lasts = rng.uniform(SHORTEST, min(LONGEST, seconds / 2))
    return Fault(round(rng.uniform(0, seconds - lasts), 2), target.name, kind, round(lasts, 2))


def _apart(one: Fault, other: Fault) -> bool:
    return one.end + GAP <= other.at or other.end + GAP <= one.at


def targets(nodes: Sequence[str], replicas: Sequence[str], links: Sequence[str]) -> list[Target]:
    """Everything that is hit in a cluster of these nodes. The programs of Fractile are hit more often than the rest."""
    both = PROCESS + LINK
    return [
        Target("etcd", PROCESS),
        Target("kube-apiserver", PROCESS),
        Target("kube-scheduler", PROCESS, 2),
        *(Target(name, both + WRITES, 3) for name in replicas),
        *(Target(f"{node}/agent", both, 2) for node in nodes),
        *(Target(f"{node}/kubelet", both) for node in nodes),
        *(Target(link, LINK) for link in links),
    ]
