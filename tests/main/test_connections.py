import asyncio
from time import monotonic

from starlette.types import Message, Receive, Scope, Send

from fractile.main.connections import KEPT, Kept

LONG = 30.0  # seconds; longer than any test


class World:
    """An application that answers at once, behind so many connections."""

    def __init__(self, connections: int, *, patience: float = LONG) -> None:
        self.connections = connections
        self.answered: list[str] = []
        self.kept = Kept(self._app, lambda: self.connections, patience=patience)
        self.fails = False

    async def call(self, path: str, name: str = "") -> None:
        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                self.answered.append(name or path)

        await self.kept({"type": "http", "path": path}, _nothing, send)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.fails:
            raise RuntimeError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _a_moment() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_bind_whose_connection_would_be_kept_is_answered_at_once():
    world = World(connections=KEPT)
    await world.call("/scheduler/bind")
    assert world.answered == ["/scheduler/bind"]


async def test_a_bind_that_would_leave_a_third_idle_connection_waits_for_the_next_bind():
    world = World(connections=KEPT + 1)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(world.call("/scheduler/bind", "first"))
        await _a_moment()
        assert world.answered == []
        tasks.create_task(world.call("/scheduler/bind", "second"))
        await _a_moment()
        assert world.answered == ["first"]
        world.connections -= 1  # the other end has closed one
        tasks.create_task(world.call("/scheduler/bind", "third"))
        await _a_moment()
        assert "second" in world.answered


async def test_no_bind_waits_longer_than_a_moment():
    world = World(connections=KEPT + 1, patience=0.05)
    began = monotonic()
    await world.call("/scheduler/bind")
    assert 0.04 < monotonic() - began < 5
    assert len(world.answered) == 1


async def test_one_bind_lets_one_other_go():
    world = World(connections=KEPT + 2)
    async with asyncio.TaskGroup() as tasks:
        for name in ("a", "b"):
            tasks.create_task(world.call("/scheduler/bind", name))
        await _a_moment()
        assert world.answered == []
        world.connections = 0
        tasks.create_task(world.call("/scheduler/bind", "c"))
        await _a_moment()
        assert sorted(world.answered) == ["a", "c"]
        tasks.create_task(world.call("/scheduler/bind", "d"))
        await _a_moment()
        assert sorted(world.answered) == ["a", "b", "c", "d"]


async def test_filter_and_prioritize_never_wait():
    world = World(connections=50)
    for path in ("/scheduler/filter", "/scheduler/prioritize", "/readyz"):
        await world.call(path)
    assert len(world.answered) == 3


async def test_a_bind_that_breaks_is_not_counted_any_more():
    world = World(connections=KEPT, patience=LONG)
    world.fails = True
    for _ in range(5):
        try:
            await world.call("/scheduler/bind")
        except RuntimeError:
            continue
    world.fails = False
    world.connections = KEPT + 1
    async with asyncio.TaskGroup() as tasks:
        call = tasks.create_task(world.call("/scheduler/bind"))
        await _a_moment()
        assert world.answered == []  # it would not wait if the five were still under way
        call.cancel()


async def test_a_bind_that_is_given_up_while_it_is_held_does_not_harm_the_next():
    world = World(connections=KEPT + 1)
    async with asyncio.TaskGroup() as tasks:
        held = tasks.create_task(world.call("/scheduler/bind", "held"))
        await _a_moment()
        world.connections = KEPT
        tasks.create_task(world.call("/scheduler/bind", "next"))
        held.cancel()  # it does not know yet when the next one comes
        await _a_moment()
        assert world.answered == ["next"]


async def test_binds_that_lose_patience_while_others_come_are_all_answered():
    world = World(connections=KEPT + 1, patience=0.001)
    async with asyncio.TaskGroup() as tasks:
        for number in range(300):
            tasks.create_task(world.call("/scheduler/bind", str(number)))
            await asyncio.sleep(0.001 * (number % 3))
    assert len(world.answered) == 300
    world.connections = 0
    async with asyncio.timeout(5):
        await world.call("/scheduler/bind")
