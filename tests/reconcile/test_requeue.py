"""Making kube-scheduler look again at the pods that wait, as soon as there is room."""

import asyncio
import gc
import random
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager

import msgspec
import pytest

from fractile.kube import paths
from fractile.model.quota import NamespaceQuota, Quota, QuotaLimit
from fractile.model.request import PodRequest
from fractile.model.units import NodeName, PodUID
from fractile.reconcile import requeue as module
from fractile.reconcile.faults import Faults
from fractile.reconcile.requeue import ANNOTATION
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.objects import Container, ResourceRequirements
from tests.builders import CARD_MEMORY, card, cards, container, in_use, on_card, pod, resource
from tests.fakes.apiserver import Fault
from tests.main.plane import NOW_NS, Plane, plane, until

FULL = CARD_MEMORY
N1 = NodeName("n1")


@pytest.fixture
async def p(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Plane, None]:
    monkeypatch.setattr(module, "_GATHER", 0.01)
    monkeypatch.setattr(module, "_AGAIN", 0.05)
    async with plane() as made:
        in_use(made.ledger, "n1", FULL, FULL)
        yield made


@asynccontextmanager
async def waking(p: Plane) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(p.wakeup.run())
    yield
    task.cancel()
    await asyncio.wait([task])


def wait_in_line(p: Plane, name: str, memory: int, *, second: int) -> None:
    found = p.create(name, container(memory=memory))  # the server stamps the time of creation, the same for all
    meta = msgspec.structs.replace(found.metadata, creation_timestamp=f"2026-01-01T00:00:{second:02d}Z")
    p.handlers.changed(msgspec.structs.replace(found, metadata=meta))


async def candidates(p: Plane, *nodes: str) -> list[str]:
    return [pod.name for pod in await p.wakeup.candidates([NodeName(n) for n in nodes or ("n1",)])]


def leave(p: Plane, index: int) -> None:
    p.handlers.gone(PodUID(f"filler-n1-{index}"))


async def test_the_oldest_pods_that_fit_are_chosen_in_order(p: Plane) -> None:
    wait_in_line(p, "young", 100, second=9)
    wait_in_line(p, "too-large", FULL + 1, second=1)
    wait_in_line(p, "old", 100, second=2)
    assert await candidates(p) == []
    leave(p, 0)
    assert await candidates(p) == ["old", "young"]


async def test_a_pod_whose_binding_is_on_its_way_is_left_alone(p: Plane) -> None:
    found = p.submit("p")
    leave(p, 0)
    assert await candidates(p) == ["p"]
    assert p.ledger.assume(PodUID(found.metadata.uid), on_card(0, 8138)) is None
    assert await candidates(p) == []


async def test_a_pod_that_makes_no_sense_is_left_alone(p: Plane) -> None:
    p.submit("p", container(memory="-1"))
    leave(p, 0)
    assert await candidates(p) == []


async def test_no_more_than_a_handful_is_touched_at_once(p: Plane) -> None:
    for i in range(30):
        wait_in_line(p, f"p{i}", 10, second=i)
    leave(p, 0)
    assert await candidates(p) == [f"p{i}" for i in range(10)]


async def test_a_node_that_vanished_wakes_nobody(p: Plane) -> None:
    p.submit("p")
    assert await candidates(p, "n9") == []


async def test_a_release_touches_the_pod_that_now_fits(p: Plane) -> None:
    p.submit("p")
    async with waking(p):
        leave(p, 0)
        await until(lambda: p.writes())
    assert p.annotations()[ANNOTATION] == str(NOW_NS)
    assert set(p.writes()) == {"PATCH /api/v1/namespaces/default/pods/p"}


async def test_a_card_that_comes_touches_the_pod_that_now_fits(p: Plane) -> None:
    p.submit("p")
    async with waking(p):
        p.cards.changed(resource(card("n3", 0), "n3"))
        await until(lambda: p.writes())
    assert ANNOTATION in p.annotations()


async def test_a_pod_that_is_still_waiting_is_touched_a_few_times_and_no_more(p: Plane) -> None:
    p.submit("p")
    async with waking(p):
        leave(p, 0)
        await until(lambda: len(p.writes()) == 3)
        await asyncio.sleep(0.2)
    assert len(p.writes()) == 3


async def test_nobody_waits_nobody_is_touched(p: Plane) -> None:
    async with waking(p):
        leave(p, 0)
        await asyncio.sleep(0.05)
        p.submit("late")
        await asyncio.sleep(0.2)
    assert p.writes() == []


async def test_failures_of_the_server_do_not_end_the_loop(p: Plane) -> None:
    p.server.inject(
        Fault(method="PATCH", status=403),
        Fault(method="PATCH", drop="before", times=5),
    )
    p.submit("p")
    async with waking(p):
        leave(p, 0)
        await until(lambda: ANNOTATION in p.annotations())


async def test_a_later_pod_of_the_same_name_is_not_touched_for_the_first(p: Plane) -> None:
    p.submit("p")
    p.server.delete(paths.pod("default", "p"))
    p.create("p")
    async with waking(p):
        leave(p, 0)
        await until(lambda: p.writes())
    assert ANNOTATION not in p.annotations()


async def test_thousands_of_equal_pods_that_do_not_fit_are_judged_at_once(p: Plane) -> None:
    for i in range(3000):
        p.handlers.changed(pod(f"p{i}", container(memory=FULL + 1)))
    for i in range(300):
        p.node(f"m{i}", [card(f"m{i}", 0)])
    started = time.perf_counter()
    assert await candidates(p, *(f"m{i}" for i in range(300))) == []
    assert time.perf_counter() - started < 2.0  # 900,000 single decisions would take half a minute


# ── quotas ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def limit(p: Plane, percent: int) -> None:
    """The quota of the namespace of all pods here."""
    p.ledger.usage.limit(Quota({"default": NamespaceQuota(limits=(QuotaLimit("*", percent),))}))


async def borne(p: Plane) -> list[str]:
    return [pod.name for pod in await p.wakeup.within_quota()]


async def test_of_the_pods_of_a_namespace_that_may_hold_more_as_many_are_woken_as_its_quota_bears(p: Plane) -> None:
    for second in range(6):
        wait_in_line(p, f"p{second}", 4069, second=second)  # a quarter of a card; n2 has two unused ones
    assert await borne(p) == []
    limit(p, 50)
    p.wakeup.eased_everywhere()
    assert await borne(p) == ["p0", "p1"]
    assert await borne(p) == ["p2", "p3"]  # the first two may have other reasons to wait
    assert [await borne(p) for _ in range(7)] == [
        ["p4", "p5"],
        ["p0", "p1"],
        ["p2", "p3"],
        ["p4", "p5"],
        ["p0", "p1"],
        ["p2", "p3"],
        ["p4", "p5"],
    ]
    assert await borne(p) == []


async def test_nobody_is_woken_whom_quota_or_cards_do_not_bear(p: Plane) -> None:
    wait_in_line(p, "wide", FULL, second=1)
    wait_in_line(p, "huge", FULL + 1, second=2)
    limit(p, 99)
    p.wakeup.eased_everywhere()
    assert await borne(p) == []
    limit(p, 100)
    p.wakeup.eased_everywhere()
    assert await borne(p) == ["wide"]


async def test_a_pod_that_its_quota_refuses_takes_nobodys_place_when_a_node_gets_room(p: Plane) -> None:
    wait_in_line(p, "bounded", 100, second=1)
    limit(p, 0)
    leave(p, 0)
    assert await candidates(p) == []
    limit(p, 100)
    assert await candidates(p) == ["bounded"]


async def test_when_a_pod_of_the_namespace_ends_another_is_woken_wherever_it_fits(p: Plane) -> None:
    text = placement.encode(on_card(0, 4069, node="n2"))
    held = p.submit("held", container(memory=4069), node="n2", annotations={placement.ANNOTATION: text})
    assert p.entry(held) is not None
    limit(p, 25)
    wait_in_line(p, "next", 4069, second=1)
    async with waking(p):
        await asyncio.sleep(0.05)
        assert ANNOTATION not in p.annotations("next")
        p.handlers.gone(PodUID(held.metadata.uid))
        await until(lambda: ANNOTATION in p.annotations("next"))


async def test_the_end_of_a_pod_of_another_namespace_wakes_nobody_for_the_quota(p: Plane) -> None:
    limit(p, 25)
    wait_in_line(p, "next", 4069, second=1)
    p.wakeup.eased("elsewhere")
    assert await borne(p) == []


async def test_when_very_many_may_hold_more_each_namespace_has_its_turn(
    p: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_IN_ALL", 1)
    wait_in_line(p, "mine", 100, second=1)
    found = p.create("theirs", container(memory=100))
    meta = msgspec.structs.replace(found.metadata, namespace="other")
    p.handlers.changed(msgspec.structs.replace(found, metadata=meta))
    limit(p, 100)
    p.wakeup.eased_everywhere()
    assert sorted([*await borne(p), *await borne(p)]) == ["mine", "theirs"]


# ── hard pods ────────────────────────────────────────────────────────────────────────────────────────────────────────


def hard(p: Plane, name: str, *, seed: int, second: int) -> None:
    """A pod that fills the eight cards of a node almost, so that nobody can tell quickly whether it fits."""
    rng = random.Random(seed)
    shares = [rng.randint(100, 600) for _ in range(24)]
    total = 8 * CARD_MEMORY - 80
    sizes = [share * total // sum(shares) for share in shares]
    found = pod(name, *(slotted(f"c{n}", size) for n, size in enumerate(sizes)))
    meta = msgspec.structs.replace(found.metadata, creation_timestamp=f"2026-01-01T00:00:{second:02d}Z")
    p.handlers.changed(msgspec.structs.replace(found, metadata=meta))


def slotted(name: str, memory: int) -> Container:
    return Container(
        name=name, resources=ResourceRequirements(limits={"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(memory)})
    )


@pytest.fixture
def uncollected() -> Generator[None]:
    """The collector may otherwise run through all objects of all tests while time is taken."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def longest_stall(until: asyncio.Task[None] | asyncio.Task[list[str]]) -> float:
    """The longest turn of the event loop until then, in seconds of processor time."""
    longest = 0.0
    while not until.done():
        began = time.thread_time()
        await asyncio.sleep(0)
        longest = max(longest, time.thread_time() - began)
    return longest


@pytest.mark.usefixtures("uncollected")
async def test_hard_pods_neither_stall_the_loop_nor_keep_an_honest_pod_waiting(p: Plane) -> None:
    p.node("n8", cards("n8", 8))
    for n in range(30):
        hard(p, f"hard{n}", seed=n, second=n)
    wait_in_line(p, "honest", 100, second=59)
    found = asyncio.create_task(candidates(p, "n8"))
    stall = await longest_stall(found)
    assert "honest" in [*await found, *[name for _ in range(30) for name in await candidates(p, "n8")]]
    assert stall < 0.2


async def test_a_round_ends_when_its_budget_is_used_up_and_the_next_goes_on(
    p: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OF_ROUND", 5_000)
    p.node("n8", cards("n8", 8))
    for n in range(6):
        hard(p, f"hard{n}", seed=n, second=n)
    wait_in_line(p, "honest", 100, second=59)
    rounds = [await candidates(p, "n8") for _ in range(4)]
    assert rounds[0] == []
    assert ["honest"] in rounds


async def test_after_a_round_that_did_not_reach_everybody_the_loop_goes_on_by_itself(
    p: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OF_ROUND", 1_000)
    for n in range(12):
        hard(p, f"hard{n}", seed=n, second=n)
    wait_in_line(p, "honest", 100, second=59)
    async with waking(p):
        p.node("n8", cards("n8", 8))
        p.wakeup.freed(NodeName("n8"))
        await until(lambda: ANNOTATION in p.annotations("honest"))


@pytest.mark.usefixtures("uncollected")
async def test_what_did_not_fit_is_not_searched_again_as_long_as_nothing_is_freed_there(p: Plane) -> None:
    p.node("n8", cards("n8", 8))
    for n in range(30):
        hard(p, f"hard{n}", seed=n, second=n)
    began = time.thread_time()
    await candidates(p, "n8")
    first = time.thread_time() - began
    began = time.thread_time()
    for _ in range(3):
        await candidates(p, "n8")
    assert (time.thread_time() - began) / 3 < first / 2


async def test_a_pod_of_very_many_parts_ends_nothing(p: Plane) -> None:
    """It once went deeper than the interpreter can."""
    p.node("big", cards("big", 128))
    limits = {"nvidia.com/gpu": "128", "nvidia.com/gpumem": "1"}
    many = [Container(name=f"c{n}", resources=ResourceRequirements(limits=limits)) for n in range(100)]
    p.handlers.changed(pod("many", *many))
    wait_in_line(p, "honest", 100, second=59)
    assert "honest" in await candidates(p, "big")


async def test_a_pod_that_a_filter_could_not_judge_to_the_end_is_touched_once(p: Plane) -> None:
    found = p.submit("p", container(memory=FULL + 1))
    async with waking(p):
        p.wakeup.undecided(PodUID(found.metadata.uid))
        await until(lambda: p.writes())
        await asyncio.sleep(0.2)
    assert len(p.writes()) == 1


async def test_a_pod_that_brings_out_an_error_of_ours_is_counted_and_the_others_are_woken(
    p: Plane, caplog: pytest.LogCaptureFixture
) -> None:
    wait_in_line(p, "odd", 100, second=1)
    wait_in_line(p, "honest", 200, second=2)
    odd = next(w for w in p.waiting.oldest_first() if w.name == "odd")
    assert isinstance(odd.request, PodRequest)
    broken = msgspec.structs.replace(odd.request.containers[0], request=None)  # nothing that a parser gives out
    p.waiting.put(msgspec.structs.replace(odd, request=msgspec.structs.replace(odd.request, containers=(broken,))))
    faults = Faults()
    wakeup = module.Requeue(
        ledger=p.ledger, waiting=p.waiting, client=p.client, wall_ns=lambda: NOW_NS, classes=p.index, faults=faults
    )
    leave(p, 0)
    assert [w.name for w in await wakeup.candidates([N1])] == ["honest"]
    assert faults.counts == {"wake-up": 1}
    assert "default/odd" in caplog.text
