"""Which pods come and go follows from the seed; every kind of pod is one that Fractile takes."""

from random import Random

import msgspec
import pytest

from fractile.dialects.table import parse_pod
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from fractile.wire.kubernetes.objects import Pod
from tests.chaos.acts import pods


def play(seed: int, turns: int) -> list[list[pods.Step]]:
    wanted: dict[str, str] = {}
    found: list[list[pods.Step]] = []
    for turn in range(1, turns + 1):
        steps = pods.plan(seed, turn, wanted, seconds=30, count=14, most=14)
        wanted = pods.after(wanted, steps)
        found.append(steps)
    return found


def test_the_same_seed_gives_the_same_pods_at_the_same_times() -> None:
    assert play(3, 5) == play(3, 5)
    assert play(3, 5) != play(4, 5)
    name, kind = "r1-0-nvidia-part", "nvidia-part"
    assert pods.manifest(3, name, kind) == pods.manifest(3, name, kind)


def test_only_pods_that_exist_are_deleted_and_no_name_comes_twice() -> None:
    there: set[str] = set()
    ever: set[str] = set()
    for step in (step for steps in play(5, 40) for step in steps):
        if step.kind:
            assert step.name not in ever
            there.add(step.name)
            ever.add(step.name)
        else:
            there.remove(step.name)
    assert 5 <= len(there) <= 40, "they neither die out nor pile up"


def test_every_family_comes_in_a_few_rounds() -> None:
    kinds = {step.kind for steps in play(1, 10) for step in steps if step.kind}
    assert kinds == set(pods.KINDS)


@pytest.mark.parametrize("kind", pods.KINDS)
def test_fractile_takes_a_pod_of_each_kind(kind: str) -> None:
    for i in range(20):
        made = pods.KINDS[kind](Random(i), f"pod-{i}")
        request = parse_pod(msgspec.convert(made, Pod), MemoryUnit.MiB)
        assert isinstance(request, PodRequest)
        assert request.dialect == kind.partition("-")[0]
