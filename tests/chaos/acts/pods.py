"""Which pods come and go, and when: a plan that follows from the seed alone. Pure."""

from collections.abc import Callable, Mapping
from random import Random

import msgspec

from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import Manifest
from fractile.wire.fractile.resource_class import GPU_SLOT, RESOURCE_PREFIX

PART, WHOLE = "chaos-part", "chaos-whole"  # the classes that some of the pods ask for
CLASSES: Mapping[str, Mapping[str, object]] = {PART: {"memory": "2Gi", "cores": 25}, WHOLE: {}}


class Step(msgspec.Struct, frozen=True):
    """At ``at`` seconds of the round the pod ``name`` is to exist, of that kind, or, without a kind, not any more."""

    at: float
    name: str
    kind: str = ""


def _limits(limits: Mapping[str, int], name: str = "main") -> Manifest:
    return w.container(name) | {"resources": {"limits": {key: str(amount) for key, amount in limits.items()}}}


def _memory(rng: Random, most: int = 9000) -> int:
    return rng.choice([m for m in (500, 1500, 3000, 4069, 6000, 8138, 12_207) if m <= most])


def _vcuda(rng: Random) -> Mapping[str, int]:
    return {"tencent.com/vcuda-core": rng.choice((10, 30, 50)), "tencent.com/vcuda-memory": rng.choice((4, 16, 30))}


def _hami(rng: Random) -> Mapping[str, int]:
    return {"nvidia.com/gpu": rng.choice((1, 1, 2)), "nvidia.com/gpumem": _memory(rng), "nvidia.com/gpucores": 20}


def _by_class(name: str, units: int) -> Manifest:
    """With the slots that the webhook would add: a pod that comes while there is none would wait for ever."""
    return _limits({f"{RESOURCE_PREFIX}{name}": units, GPU_SLOT: units})


def _two(rng: Random, name: str) -> Manifest:
    return w.pod(name, w.container("first", memory=_memory(rng, 3000)), w.container("second", memory=1500))


def _initial(rng: Random, name: str) -> Manifest:
    init = w.container("init", memory=_memory(rng, 4069)) | {"command": ["true"]}
    return w.pod(name, w.container(memory=_memory(rng, 6000)), init=[init])


KINDS: Mapping[str, Callable[[Random, str], Manifest]] = {
    "aliyun-part": lambda rng, name: w.pod(name, w.container(memory=_memory(rng, 12_207))),
    "aliyun-card": lambda rng, name: w.pod(name, w.container(count=1)),
    "aliyun-two": _two,
    "aliyun-init": _initial,
    "tencent-part": lambda rng, name: w.pod(name, _limits(_vcuda(rng))),
    "tencent-card": lambda rng, name: w.pod(name, _limits({"tencent.com/vcuda-core": 100})),
    "nvidia-part": lambda rng, name: w.pod(name, _limits(_hami(rng))),
    "nvidia-card": lambda rng, name: w.pod(name, _limits({"nvidia.com/gpu": 1})),
    "class-part": lambda rng, name: w.pod(name, _by_class(PART, rng.choice((1, 1, 2)))),
    "class-card": lambda rng, name: w.pod(name, _by_class(WHOLE, 1)),
}
_OFTEN = {kind: 1 if kind.endswith("card") else 3 for kind in KINDS}


def plan(seed: int, turn: int, wanted: Mapping[str, str], *, seconds: float, count: int, most: int) -> list[Step]:
    """So many steps of round ``turn``, by time. ``wanted``: what is to exist before it, name -> kind. About ``most``
    pods are to exist at a time: more than fit, so that some wait."""
    rng = Random(f"pods/{seed}/{turn}")
    there = dict(wanted)
    steps: list[Step] = []
    for number, at in enumerate(sorted(round(rng.uniform(0, seconds), 2) for _ in range(count))):
        if rng.random() < len(there) / (2 * most):
            step = Step(at, rng.choice(sorted(there)))
            del there[step.name]
        else:
            kind = rng.choices(list(_OFTEN), list(_OFTEN.values()))[0]
            step = Step(at, f"r{turn}-{number}-{kind}", kind)
            there[step.name] = kind
        steps.append(step)
    return steps


def after(wanted: Mapping[str, str], steps: list[Step]) -> dict[str, str]:
    """What is to exist when all steps are done."""
    there = dict(wanted)
    for step in steps:
        if step.kind:
            there[step.name] = step.kind
        else:
            there.pop(step.name, None)
    return there


def manifest(seed: int, name: str, kind: str) -> Manifest:
    """The pod of that name, the same whenever it is asked for."""
    return KINDS[kind](Random(f"pod/{seed}/{name}"), name)
