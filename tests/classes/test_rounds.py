"""The motor of the class controllers: what is looked at how often, and what happens when a write fails."""

import asyncio
import random
from collections.abc import Sequence

from fractile.classes.rounds import Rounds, Write
from fractile.errors import ApiError, Unreachable
from fractile.kube.backoff import Backoff
from fractile.kube.pacing import Pacer
from fractile.reconcile.faults import Faults
from tests.builders import Clock
from tests.main.plane import until


class World:
    """Keys that are wrong until they are written; sleeping moves the clock."""

    def __init__(self, *, rate: float = 1000, looking: float = 0.0) -> None:
        self.clock = Clock()
        self.wrong: set[str] = set()
        self.looked: list[str] = []
        self.written: list[str] = []
        self.fails: list[Exception] = []
        self.broken = ""
        self.faults = Faults()
        self.slept = 0.0
        self._looking = looking
        self.rounds = Rounds(
            self.plan,
            everything=lambda: sorted(self.wrong),
            pacer=Pacer(rate, 1, clock=self.clock, sleep=self.sleep),
            backoff=Backoff(base=1.0, cap=60.0, rng=random.Random(1)),
            sleep=self.sleep,
            clock=self.clock,
            faults=self.faults,
        )

    def plan(self, key: str) -> Sequence[Write]:
        self.looked.append(key)
        if key == self.broken:
            raise RecursionError("too deep")
        self.clock.now += self._looking
        return [Write(key, lambda: self.write(key))] if key in self.wrong else []

    async def write(self, key: str) -> None:
        if self.fails:
            raise self.fails.pop(0)
        self.wrong.discard(key)
        self.written.append(key)

    async def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.clock.now += seconds
        await asyncio.sleep(0)


async def test_a_key_that_came_many_times_is_looked_at_once() -> None:
    world = World()
    for _ in range(5):
        world.rounds.add("a", "b")
    assert await world.rounds.once()
    assert world.looked == ["a", "b"]
    assert world.written == []


async def test_everything_is_named_when_the_round_begins() -> None:
    world = World()
    world.rounds.add_everything()
    world.wrong |= {"a", "b"}
    assert await world.rounds.once()
    assert world.written == ["a", "b"]


async def test_a_key_that_comes_during_a_round_is_for_the_next() -> None:
    world = World(rate=1)
    world.wrong = {"a", "b"}
    world.rounds.add("a", "b")
    asyncio.get_running_loop().call_soon(world.rounds.add, "c", "a")
    await world.rounds.once()
    assert world.looked == ["a", "b"]
    await world.rounds.once()
    assert world.looked[2:] == ["c", "a"]


async def test_what_fails_is_tried_again_and_what_the_server_will_not_have_is_not() -> None:
    world = World()
    world.wrong = {"a"}
    world.rounds.add("a")
    world.fails = [Unreachable("away"), ApiError(500, "", ""), ApiError(422, "Invalid", "")]
    assert not await world.rounds.once()
    assert not await world.rounds.once()
    assert await world.rounds.once()
    world.looked.clear()
    assert await world.rounds.once()
    assert world.looked == []


async def test_a_key_that_brings_out_an_error_of_ours_keeps_no_other_from_being_written() -> None:
    world = World()
    world.wrong = {"a", "b", "c"}
    world.broken = "b"
    world.rounds.add_everything()
    assert await world.rounds.once()
    assert world.written == ["a", "c"]
    assert world.faults.counts == {"upkeep": 1}


async def test_writes_keep_to_the_pace() -> None:
    world = World(rate=10)
    world.wrong = {f"k{i}" for i in range(50)}
    world.rounds.add_everything()
    began = world.clock.now
    await world.rounds.once()
    assert 4.8 <= world.clock.now - began <= 5.2


async def test_looking_takes_a_small_part_of_the_time_however_many_keys_there_are() -> None:
    world = World(looking=0.001)
    world.rounds.add(*(f"k{i}" for i in range(1000)))
    began = world.clock.now
    await world.rounds.once()
    assert 1.0 / (world.clock.now - began) <= 0.06


async def test_it_rests_until_somebody_adds_a_key_and_gathers_before_it_looks() -> None:
    world = World()
    running = asyncio.create_task(world.rounds.run())
    await asyncio.sleep(0.01)
    assert world.slept == 0
    world.wrong = {"a"}
    world.rounds.add("a")
    await until(lambda: world.written)
    assert world.slept >= 1.0
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
