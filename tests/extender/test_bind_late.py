"""Bindings whose write goes out late, or not at all: the lead was lost, or the client waited for a login."""

import asyncio
from collections.abc import Callable

import pytest

from fractile.errors import NotLeading, NotSent, Unreachable
from fractile.model.placement import Placement
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.reconcile.assumed_pods import EXPIRY
from fractile.wire.kubernetes.objects import Pod
from tests.builders import CARD_MEMORY, container
from tests.extender.test_bind import BINDING, bind, bindings, during
from tests.fakes.apiserver import Fault
from tests.main.plane import Plane, plane

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


def reserve(p: Plane, pod: Pod) -> None:
    """As global placement does, on n1."""
    uid = PodUID(pod.metadata.uid)
    waiting = p.waiting.find(uid)
    assert waiting is not None
    assert isinstance(waiting.request, PodRequest)
    assert isinstance(p.binder.reserve(uid, waiting.request, "n1"), Placement)


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


async def test_a_hold_of_a_reservation_that_came_meanwhile_stays_when_the_write_is_not_sent() -> None:
    login = Login()
    async with plane(token=login) as p:
        pod = p.submit("p", container(memory=FULL))
        other = p.submit("other", container(memory=FULL))

        def reserved() -> None:
            """The hold is given up; another pod takes its card, and a reservation the card beside it."""
            p.ledger.forget(PodUID(pod.metadata.uid))
            reserve(p, other)
            reserve(p, pod)

        login.meanwhile = reserved
        with pytest.raises(NotSent):
            await bind(p, pod)
        assert p.entry(pod) is not None
        assert p.free("n1") == [0, 0]


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
