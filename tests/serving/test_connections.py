import asyncio
from time import monotonic

from fractile.serving.connections import KEPT, KeptConnections

LONG = 30.0  # seconds; longer than any test


class World:
    """Binds that are answered at once, over so many connections."""

    def __init__(self, connections: int, *, patience: float = LONG) -> None:
        self.answered: list[str] = []
        self.kept = KeptConnections(patience=patience)
        self._known = 0
        self.connections = connections
        self.fails = False

    @property
    def connections(self) -> int:
        return self._known

    @connections.setter
    def connections(self, wanted: int) -> None:
        for number in range(max(wanted, self._known)):
            (self.kept.come if number < wanted else self.kept.gone)(number)
        self._known = wanted

    async def call(self, name: str = "") -> None:
        await self.kept.held(self._bind())
        self.answered.append(name)

    async def _bind(self) -> bytes:
        if self.fails:
            raise RuntimeError
        return b"{}"


async def _a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_bind_whose_connection_would_be_kept_is_answered_at_once():
    world = World(connections=KEPT)
    await world.call()
    assert world.answered == [""]


async def test_a_bind_that_would_leave_a_third_idle_connection_waits_for_the_next_bind():
    world = World(connections=KEPT + 1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.call("first"))
        await _a_moment()
        assert world.answered == []
        tasks.create_task(world.call("second"))
        await _a_moment()
        assert world.answered == ["first"]
        world.connections -= 1  # the other end has closed one
        tasks.create_task(world.call("third"))
        await _a_moment()
        assert "second" in world.answered


async def test_no_bind_waits_longer_than_a_moment():
    world = World(connections=KEPT + 1, patience=0.05)
    began = monotonic()
    await world.call()
    assert 0.04 < monotonic() - began < 5
    assert len(world.answered) == 1


async def test_one_bind_lets_one_other_go():
    world = World(connections=KEPT + 2)
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b"):
            tasks.create_task(world.call(name))
        await _a_moment()
        assert world.answered == []
        tasks.create_task(world.call("c"))
        await _a_moment()
        assert world.answered == ["a"]
        tasks.create_task(world.call("d"))
        await _a_moment()
        assert world.answered == ["a", "b"]
        world.connections -= 1  # and so does a connection that is closed
        await _a_moment()
        assert world.answered == ["a", "b", "c"]
        world.connections -= 1


async def test_a_bind_that_breaks_is_not_counted_any_more():
    world = World(connections=KEPT, patience=LONG)
    world.fails = True
    for _ in range(5):
        try:
            await world.call()
        except RuntimeError:
            continue
    world.fails = False
    world.connections = KEPT + 1
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(world.call())
        await _a_moment()
        assert world.answered == []  # it would not wait if the five were still under way
        call.cancel()


async def test_a_bind_that_is_given_up_while_it_is_held_does_not_harm_the_next():
    world = World(connections=KEPT + 1)
    async with asyncio.TaskGroup() as tasks:
        held = tasks.create_task(world.call("held"))
        await _a_moment()
        world.connections = KEPT
        tasks.create_task(world.call("next"))
        held.cancel()  # it does not know yet when the next one comes
        await _a_moment()
        assert world.answered == ["next"]


async def test_binds_that_lose_patience_while_others_come_are_all_answered():
    world = World(connections=KEPT + 1, patience=0.001)
    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(world.call(str(number)))
            await asyncio.sleep(0.001 * (number % 3))
    assert len(world.answered) == 300
    world.connections = 0
    async with asyncio.timeout(5):
        await world.call()
