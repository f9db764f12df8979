"""The mix follows the pods that came, and what the engine makes of nodes follows the mix."""

import asyncio
import gc
import time

import pytest

from fractile.extender.engine import Engine
from fractile.extender.learning import Learning
from fractile.ledger.ledger import Ledger
from fractile.ledger.node_totals import NodeTotals
from fractile.model.pod_demand import PartOfCard, PodDemand
from fractile.model.units import NodeName, PodUID
from fractile.policy.nodes.mix import mix_of
from fractile.policy.nodes.view import TaskDemand
from fractile.watch.pod_mix import SeenPods
from fractile.wire.kubernetes.pod_totals import NodeCapacity
from tests.builders import Clock, card, cluster

SIZE = 10_000
THIRD = PodDemand(1000, 1024, parts=(PartOfCard(memory=SIZE // 3),))
WHOLE = PodDemand(1000, 1024, whole=1)


@pytest.fixture
def ledger() -> Ledger:
    return cluster({n: [card(n, i, memory=SIZE) for i in range(2)] for n in ("a", "b")})


@pytest.fixture
def engine(ledger: Ledger) -> Engine:
    totals = NodeTotals()
    for name in ("a", "b", "c"):
        totals.put_node(NodeName(name), NodeCapacity(8000, 65_536, 110))
    return Engine(ledger, totals)


@pytest.fixture
def seen() -> SeenPods:
    return SeenPods(Clock())


def put(seen: SeenPods, count: int, wish: PodDemand) -> None:
    for n in range(count):
        seen.put(PodUID(f"{wish.whole}-{n}"), wish)


async def test_pods_that_came_are_expected(seen: SeenPods, engine: Engine) -> None:
    learning = Learning(seen, engine)
    assert not await learning.look()
    put(seen, 10, THIRD)
    assert await learning.look()
    assert engine.mix == mix_of([TaskDemand(1000, 0, 1, 334)] * 10)
    assert not await learning.look()
    put(seen, 10, WHOLE)
    assert await learning.look()
    assert engine.mix.total == 20


async def test_the_mix_of_very_many_kinds_of_pods_is_worked_out_beside_the_loop(seen: SeenPods, engine: Engine) -> None:
    for n in range(20_000):
        seen.put(PodUID(f"p{n}"), PodDemand(n, 0, parts=(PartOfCard(memory=1 + n % SIZE),)))
    learning = Learning(seen, engine)
    gc.collect()
    began = time.thread_time()
    looking = asyncio.create_task(learning.look())
    await asyncio.sleep(0)  # its first step
    assert time.thread_time() - began < 0.1  # measured 0.01; on the loop it was 0.3
    assert await looking
    assert len(engine.mix.asks) == 48


async def test_a_pinned_mix_stays_whatever_comes(seen: SeenPods, engine: Engine) -> None:
    pinned = mix_of([TaskDemand(4000, 0, 2, 1000)])
    learning = Learning(seen, engine, pinned=pinned)
    put(seen, 10, THIRD)
    assert await learning.look()
    assert engine.mix == pinned
    put(seen, 100, WHOLE)
    assert not await learning.look()


async def test_scores_change_with_the_mix(seen: SeenPods, engine: Engine) -> None:
    """A third of a card is worth nothing where only whole ones are asked for, so that cutting one costs more."""
    before = engine.standing("fgd-plus", THIRD, draw=0)
    put(seen, 10, WHOLE)
    await Learning(seen, engine).look()
    after = engine.standing("fgd-plus", THIRD, draw=0)
    assert before is not None
    assert after is not None
    assert after.value.max() < before.value.max()


async def test_cards_that_come_make_other_models_scarce(seen: SeenPods, engine: Engine, ledger: Ledger) -> None:
    learning = Learning(seen, engine)
    put(seen, 10, THIRD)
    await learning.look()
    assert not engine.outdated()
    ledger.put_card(NodeName("c"), card("c", 0, memory=SIZE))
    ledger.put_card(NodeName("c"), card("c", 1, memory=SIZE))
    ledger.put_card(NodeName("c"), card("c", 2, memory=SIZE))
    assert engine.outdated()  # the largest node has three
    assert await learning.look()
    assert not engine.outdated()
