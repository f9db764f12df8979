"""Which pod is made when, and how long it lives: a plan that follows from the seed alone. Pure."""

from random import Random

import msgspec

from fractile.lab.demos.workload import Manifest
from fractile.lab.machine import images
from tests.chaos.acts.pods import CLASSES, KINDS

__all__ = ["CLASSES", "Birth", "birth", "manifest", "overdue"]

_WEIGHTS = {kind: 1 if kind.endswith("card") else 5 for kind in KINDS}  # a whole card keeps many others waiting
_SHORTEST, _LONGEST = 2.0, 15.0  # seconds that a pod runs
_PATIENCE = 90.0  # seconds after which a pod that never ran is given up
_FILLS = 1 / 3  # of the pods load the driver and fill their memory for a moment
_FILL = "sh -c 'probe fill 3 >/dev/null 2>&1; sleep 1000000'"


class Birth(msgspec.Struct, frozen=True):
    """A pod; ``life``: seconds that it runs before it is deleted; ``fills``: whether it uses its card."""

    name: str
    kind: str
    life: float
    fills: bool


def birth(seed: int, number: int) -> Birth:
    """The pod of that number, the same whenever it is asked for."""
    rng = Random(f"soak/{seed}/{number}")
    (kind,) = rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    life = round(rng.uniform(_SHORTEST, _LONGEST), 1)
    return Birth(f"s{number}-{kind}", kind, life, rng.random() < _FILLS)


def manifest(seed: int, one: Birth, *, native: bool) -> Manifest:
    """``native``: whether the nodes have simulated drivers, which a program can load."""
    made = KINDS[one.kind](Random(f"soak-pod/{seed}/{one.name}"), one.name)
    if one.fills and native:
        for container in made["spec"]["containers"]:
            container["image"] = images.CUDA
            container["command"] = ["/bin/sh", "-c", f"trap 'exit 0' TERM; {_FILL} & wait $!"]
    return made


def overdue(one: Birth, *, ran: float | None, age: float) -> bool:
    """Whether it is to be deleted. ``ran``: seconds since it was first seen to run, None: not yet; ``age``: since
    it was made."""
    return age > _PATIENCE if ran is None else ran >= one.life
