"""Which pods come and how long they live."""

from collections import Counter

import msgspec

from fractile.dialects.table import parse_pod
from fractile.lab.machine import images
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit
from tests.chaos.acts.pods import KINDS
from tests.chaos.judging.snapshot import SeenPod
from tests.soak import churn

FIRST = [churn.birth(1, n) for n in range(1, 201)]


def test_all_families_come_and_some_use_their_card() -> None:
    assert Counter(b.kind for b in FIRST).keys() == KINDS.keys()
    assert 40 < sum(b.fills for b in FIRST) < 95


def test_the_same_number_is_the_same_pod() -> None:
    assert [churn.birth(1, n) for n in range(1, 201)] == FIRST
    assert churn.birth(2, 7) != churn.birth(1, 7)


def test_every_pod_asks_for_something_that_makes_sense() -> None:
    for one in FIRST:
        made = churn.manifest(1, one, native=True)
        seen = msgspec.convert(made, SeenPod)
        assert isinstance(parse_pod(seen.plain, MemoryUnit.MiB), PodRequest), one


def test_a_pod_that_uses_its_card_has_the_program_for_it_where_there_is_a_driver() -> None:
    one = next(b for b in FIRST if b.fills)
    assert churn.manifest(1, one, native=True)["spec"]["containers"][0]["image"] == images.CUDA
    assert churn.manifest(1, one, native=False)["spec"]["containers"][0]["image"] == images.BUSYBOX


def test_a_pod_lives_from_when_it_runs_and_is_given_up_when_it_never_does() -> None:
    one = FIRST[0]
    assert not churn.overdue(one, ran=one.life - 0.1, age=1000)
    assert churn.overdue(one, ran=one.life, age=1000)
    assert not churn.overdue(one, ran=None, age=89)
    assert churn.overdue(one, ran=None, age=91)
