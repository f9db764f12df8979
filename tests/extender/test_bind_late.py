"""Bindings whose write goes out late, or not at all: the lead was lost, or the client waited for a login."""

import asyncio
from collections.abc import Callable

import pytest

from fractile.errors import NotLeading, NotSent, Unreachable
from fractile.model.placement import Placement
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.reconcile import requeue
from fractile.reconcile.assumed_pods import EXPIRY
from tests.builders import CARD_MEMORY, container, in_use
from tests.extender.test_bind import BINDING, bind, bindings, during
from tests.fakes.apiserver import Fault
from tests.main.plane import plane, until

FULL = CARD_MEMORY


@pytest.fixture
def left() -> list[float]:
    """Seconds that the lead is sure to last."""
    return [60.0]


async def test_a_write_that_was_not_begun_leaves_no_hold(left: list[float]) -> None:
    """Whoever leads now places the pod; a hold here would outlive that by half a minute, should this one lead again."""
    async with plane(fence=lambda: left[0]) as p:
        pod = p.submit("p")
        left[0] = 0.0
        with pytest.raises(NotLeading):
            await bind(p, pod)
        assert p.entry(pod) is None
        assert p.free("n1") == [FULL, FULL]


async def test_one_that_was_not_begun_says_nothing_of_an_earlier_one(left: list[float]) -> None:
    async with plane(fence=lambda: left[0]) as p:
        p.server.inject(Fault(method="POST", path=BINDING, drop="before"))
        pod = p.submit("p")
        with pytest.raises(Unreachable):
            await bind(p, pod)
        left[0] = 0.0
        with pytest.raises(NotLeading):
            await bind(p, pod)
        assert p.free("n1") == [FULL - 8138, FULL]


class Login:
    """A token that takes a while; ``meanwhile`` happens then."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], object] = lambda: None

    async def token(self) -> str:
        await asyncio.sleep(0)
        self.meanwhile()
        return ""

    def rejected(self) -> bool:
        return False


async def test_a_write_waits_for_its_login_and_is_not_sent_when_its_hold_has_ended() -> None:
    login = Login()
    async with plane(token=login) as p:
        pod = p.submit("p")
        uid = PodUID(pod.metadata.uid)
        login.meanwhile = lambda: p.ledger.forget(uid)
        with pytest.raises(NotSent):
            await bind(p, pod)
        assert bindings(p) == 0
        assert p.free("n1") == [FULL, FULL]


async def test_a_write_that_was_not_begun_wakes_pods_that_wait_for_its_room(
    left: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lead may come back to this program at once; pods that were refused meanwhile would wait for minutes."""
    monkeypatch.setattr(requeue, "_GATHER", 0.01)
    login = Login()
    async with plane(token=login, fence=lambda: left[0]) as p:
        in_use(p.ledger, "n1", FULL)
        in_use(p.ledger, "n2", FULL, FULL)
        first = p.submit("p", container(memory=FULL))
        p.submit("waits", container(memory=FULL))
        task = asyncio.create_task(p.wakeup.run())
        login.meanwhile = lambda: left.__setitem__(0, 0.0)
        with pytest.raises(NotLeading):
            await bind(p, first)
        login.meanwhile = lambda: None
        left[0] = 60.0
        async with asyncio.timeout(5):
            await until(lambda: requeue.ANNOTATION in p.annotations("waits"))
        task.cancel()
        await asyncio.wait([task])


async def test_a_hold_of_a_reservation_that_came_meanwhile_stays_when_the_write_is_not_sent() -> None:
    login = Login()
    async with plane(token=login) as p:
        pod = p.submit("p", container(memory=FULL))
        uid = PodUID(pod.metadata.uid)

        other = p.submit("other", container(memory=FULL))

        def reserved() -> None:
            """The hold is given up; another pod takes its card, and a reservation the card beside it."""
            p.ledger.forget(uid)
            for one in (PodUID(other.metadata.uid), uid):
                waiting = p.waiting.find(one)
                assert waiting is not None
                assert isinstance(waiting.request, PodRequest)
                assert isinstance(p.binder.reserve(one, waiting.request, "n1"), Placement)

        login.meanwhile = reserved
        with pytest.raises(NotSent):
            await bind(p, pod)
        assert p.entry(pod) is not None
        assert p.free("n1") == [0, 0]


async def test_another_node_frees_what_was_reserved_and_wakes_pods_that_wait_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(requeue, "_GATHER", 0.01)
    async with plane() as p:
        in_use(p.ledger, "n1", FULL)
        in_use(p.ledger, "n2", FULL)
        pod = p.submit("p", container(memory=FULL))
        uid = PodUID(pod.metadata.uid)
        waiting = p.waiting.find(uid)
        assert waiting is not None
        assert isinstance(waiting.request, PodRequest)
        p.submit("waits", container(memory=FULL))
        assert isinstance(p.binder.reserve(uid, waiting.request, "n1"), Placement)
        task = asyncio.create_task(p.wakeup.run())
        assert await bind(p, pod, "n2") is None
        async with asyncio.timeout(5):
            await until(lambda: requeue.ANNOTATION in p.annotations("waits"))
        task.cancel()
        await asyncio.wait([task])


async def test_the_time_in_which_a_write_may_arrive_begins_when_it_is_sent() -> None:
    login = Login()
    async with plane(token=login) as p:
        pod = p.submit("p")
        login.meanwhile = lambda: setattr(p.clock, "now", p.clock.now + EXPIRY - 1)
        p.server.inject(Fault(method="POST", path=BINDING, delay=0.2))
        call = asyncio.create_task(bind(p, pod))
        await during(call, lambda: p.server.requests)
        p.clock.now += 2
        assert p.ledger.overdue(EXPIRY) == []
        assert await call is None
