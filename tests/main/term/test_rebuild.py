"""What a new leader does before it is ready, in which order; and what one lead leaves to the next."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable

import pytest

from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import Ledger
from fractile.main.leading import QUIET, LeadTerm, one_after_another
from fractile.main.term.rebuild import rebuild
from fractile.model.units import PodUID
from fractile.wire.kubernetes.queued import QueuedPod
from tests.builders import cards, cluster, on_card
from tests.fakes.apiserver import FakeApiServer


@pytest.fixture
async def server() -> AsyncGenerator[FakeApiServer, None]:
    async with FakeApiServer() as made:
        yield made


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncGenerator[KubeClient, None]:
    async with KubeClient(server.credentials()) as made:
        yield made


async def test_pods_are_listed_when_nothing_of_the_leader_before_arrives_any_more(
    server: FakeApiServer, client: KubeClient
) -> None:
    done: list[str] = []
    cards_known, ready = asyncio.Event(), asyncio.Event()
    pods = Reflector(client, paths.pods(), QueuedPod, changed=lambda found: done.append("pod"), gone=lambda gone: None)

    async def work() -> None:
        done.append("work")

    def rebuilt() -> None:
        done.append("rebuilt")
        ready.set()

    task = asyncio.create_task(
        rebuild(
            [cards_known],
            pods,
            Ledger(lambda: 0.0),
            quiet=0.4,
            begin=lambda: done.append("begin"),
            after=[work],
            rebuilt=rebuilt,
        )
    )
    await asyncio.sleep(0.1)
    cards_known.set()
    await asyncio.sleep(0.1)
    assert not pods.synced.is_set()
    assert [r for r in server.requests if r.path == paths.pods()] == []
    await asyncio.wait_for(ready.wait(), 5)
    await asyncio.sleep(0.05)
    assert done == ["begin", "rebuilt", "work"]
    task.cancel()
    await asyncio.wait([task])


class Elector:
    """A lease that is taken as often as asked, at once."""

    term = "me/1"

    def __init__(self, *, inherited: bool, rounds: int) -> None:
        self.inherited = inherited
        self.given_back: list[bool] = []
        self._rounds = rounds

    async def run(self, work: Callable[[], Awaitable[None]], *, settled: Callable[[], bool]) -> None:
        if not self._rounds:
            raise asyncio.CancelledError
        self._rounds -= 1
        await work()
        self.given_back.append(settled())


async def leads(
    elector: Elector, work: Callable[[LeadTerm], Awaitable[None]], clock: Callable[[], float] = time.monotonic
) -> None:
    task = asyncio.create_task(one_after_another(elector, work, left=lambda: 5.0, clock=clock))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await asyncio.wait([task])


async def test_what_an_earlier_lead_left_running_may_write_nothing_in_a_later_one() -> None:
    terms: list[LeadTerm] = []

    async def work(term: LeadTerm) -> None:
        terms.append(term)
        assert [t.left() for t in terms] == [*(0.0 for _ in terms[:-1]), 5.0]

    await leads(Elector(inherited=False, rounds=3), work)
    assert len(terms) == 3
    assert [t.leading() for t in terms] == [False, False, False]


async def test_a_lead_waits_only_for_one_that_did_not_give_the_lease_back() -> None:
    quiet: list[float] = []

    async def work(term: LeadTerm) -> None:
        quiet.append(term.quiet)

    await leads(Elector(inherited=True, rounds=1), work)
    await leads(Elector(inherited=False, rounds=1), work)
    assert quiet == [QUIET, 0.0]


@pytest.mark.parametrize(("seconds", "given_back"), [(QUIET - 0.1, False), (QUIET, True)])
async def test_a_lead_that_ends_while_it_waits_for_the_one_before_does_not_give_the_lease_back(
    seconds: float, given_back: bool
) -> None:
    """Whoever leads next would not wait for writes of the one before the one before."""
    now = 100.0

    async def work(term: LeadTerm) -> None:
        nonlocal now
        now += seconds
        term.unsettled(False)

    elector = Elector(inherited=True, rounds=1)
    await leads(elector, work, clock=lambda: now)
    assert elector.given_back == [given_back]


async def test_the_lease_is_given_back_when_it_is_known_what_became_of_each_write() -> None:
    answers = iter([True, False])

    async def work(term: LeadTerm) -> None:
        term.unsettled(next(answers))

    elector = Elector(inherited=False, rounds=2)
    await leads(elector, work)
    assert elector.given_back == [False, True]


def test_a_ledger_is_unsettled_while_a_write_has_no_answer() -> None:
    ledger = cluster({"n1": cards("n1")})
    uid = PodUID("a")
    assert ledger.assume(uid, on_card(0, 1)) is None
    assert not ledger.unsettled  # nothing was written yet
    ledger.sent(uid)
    assert ledger.unsettled
    ledger.confirm(uid)
    assert not ledger.unsettled
    ledger.move(uid, on_card(1, 1))
    assert ledger.unsettled
    ledger.moved(uid)
    assert not ledger.unsettled
