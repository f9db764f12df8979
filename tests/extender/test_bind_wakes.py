"""Cards that a bind gives back wake the pods that wait for them: kube-scheduler itself would try them minutes later."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from fractile.errors import NotLeading
from fractile.reconcile import requeue
from tests.builders import CARD_MEMORY, container, in_use
from tests.extender.test_bind import BINDING, bind, during
from tests.extender.test_bind_late import Login, reserve
from tests.fakes.apiserver import Fault
from tests.main.plane import Plane, plane, until

FULL = CARD_MEMORY


@asynccontextmanager
async def one_card(p: Plane, *, also: int = FULL) -> AsyncGenerator[None]:
    """One card of n1 is free, and two pods need it: the one that is bound inside, and ``waits``, which must be woken.
    ``also``: MiB in use on the second card of n2."""
    in_use(p.ledger, "n1", FULL)
    in_use(p.ledger, "n2", FULL, also)
    task = asyncio.create_task(p.wakeup.run())
    try:
        yield
        async with asyncio.timeout(5):
            await until(lambda: requeue.ANNOTATION in p.annotations("waits"))
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requeue, "_GATHER", 0.01)


async def test_a_refused_binding_does() -> None:
    async with plane() as p, one_card(p):
        pod = p.submit("p", container(memory=FULL))
        p.server.inject(Fault(method="POST", path=BINDING, delay=0.1, status=403))
        call = asyncio.create_task(bind(p, pod))
        await during(call, lambda: p.entry(pod))
        p.submit("waits", container(memory=FULL))
        assert await call is not None


async def test_a_write_that_was_not_begun_does() -> None:
    """The lead may come back to this program at once."""
    left = [60.0]  # seconds that the lead is sure to last
    login = Login()
    async with plane(token=login, fence=lambda: left[0]) as p, one_card(p):
        pod = p.submit("p", container(memory=FULL))
        p.submit("waits", container(memory=FULL))
        login.meanwhile = lambda: left.__setitem__(0, 0.0)
        with pytest.raises(NotLeading):
            await bind(p, pod)
        login.meanwhile = lambda: None
        left[0] = 60.0


async def test_a_bind_to_another_node_than_the_reserved_one_does() -> None:
    async with plane() as p, one_card(p, also=0):
        pod = p.submit("p", container(memory=FULL))
        p.submit("waits", container(memory=FULL))
        reserve(p, pod)
        assert await bind(p, pod, "n2") is None
