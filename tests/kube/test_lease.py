"""Leader election: at most one leads at any instant, whatever the clocks and the server do."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.lease import LeaderElector, LeaseTiming
from fractile.wire.kubernetes.objects import Lease
from tests.fakes.apiserver import FakeApiServer, Fault

pytestmark = pytest.mark.slow

FAST = LeaseTiming(duration=1.0, deadline=0.4, retry=0.05, look=0.05)  # the lease's own duration is whole seconds
LEASE = paths.lease("system", "lead")


def free(server: FakeApiServer) -> None:
    """A lease that nobody holds, as the manifests make it: one that is missing is waited for."""
    body = {"metadata": {"name": "lead"}, "spec": {"holderIdentity": "", "leaseTransitions": 0}}
    server.create(paths.leases("system"), body)


def held(server: FakeApiServer, **spec: object) -> None:
    """The lease of somebody else, with these fields."""
    server.create(paths.leases("system"), {"metadata": {"name": "lead"}, "spec": {"holderIdentity": "other", **spec}})


def elector(
    client: KubeClient, identity: str, *, timing: LeaseTiming = FAST, clock: Callable[[], float] = time.monotonic
) -> LeaderElector:
    ticks = itertools.count()
    return LeaderElector(
        client,
        namespace="system",
        name="lead",
        identity=identity,
        timing=timing,
        rng=random.Random(identity),
        clock=clock,
        # A wall clock that is wrong and slow. It must move: a write that changes nothing is none.
        now=lambda: datetime(2001, 1, 1, tzinfo=UTC) + timedelta(microseconds=next(ticks)),
    )


async def test_the_record_is_that_of_the_kubernetes_components(server: FakeApiServer, client: KubeClient) -> None:
    await elector(client, "a").acquire()
    assert server.get(LEASE)["spec"] == {
        "holderIdentity": "a",
        "leaseDurationSeconds": 1,
        "acquireTime": "2001-01-01T00:00:00.000000Z",
        "renewTime": "2001-01-01T00:00:00.000000Z",
        "leaseTransitions": 0,
    }


async def test_a_renewal_keeps_the_time_of_acquisition_and_the_transitions(
    server: FakeApiServer, client: KubeClient
) -> None:
    first = elector(client, "a")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.3)
    assert first.leading
    assert server.get(LEASE)["spec"]["leaseTransitions"] == 0
    assert len(server.writes()) >= 3
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_a_lease_that_is_renewed_is_not_taken(client: KubeClient) -> None:
    first, second = elector(client, "a"), elector(client, "b")
    await first.acquire()
    holding = asyncio.create_task(first.hold())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.acquire(), 1.5)
    assert first.leading
    assert not second.leading
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_a_lease_of_a_dead_holder_is_taken_after_its_duration_as_we_saw_it(client: KubeClient) -> None:
    now = 100.0
    await elector(client, "dead").acquire()
    second = elector(client, "b", timing=LeaseTiming(duration=15, retry=0.01), clock=lambda: now)
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.1)
    assert not waiting.done(), "seen for no time yet, although its renewTime is in 2001"
    now += 1.5  # the duration that the dead holder wrote is 1 s
    await asyncio.wait_for(waiting, 5)
    assert second.leading
    assert second.transitions == 1


async def test_the_lead_ends_before_others_may_take_it_when_the_server_is_away(
    server: FakeApiServer, client: KubeClient
) -> None:
    first = elector(client, "a")
    await first.acquire()
    await server.stop()
    begun = time.monotonic()
    await asyncio.wait_for(first.hold(), 5)
    assert not first.leading
    assert time.monotonic() - begun < FAST.duration


async def test_the_lead_ends_in_time_when_the_server_does_not_answer(server: FakeApiServer, client: KubeClient) -> None:
    first = elector(client, "a")
    await first.acquire()
    server.inject(Fault(delay=30, times=100))
    begun = time.monotonic()
    await asyncio.wait_for(first.hold(), 5)
    assert not first.leading
    assert time.monotonic() - begun < FAST.duration


async def test_the_lead_ends_at_once_when_another_holder_is_seen(server: FakeApiServer, client: KubeClient) -> None:
    first = elector(client, "a", timing=LeaseTiming(retry=0.05))
    await first.acquire()
    server.merge(LEASE, {"spec": {"holderIdentity": "b"}})
    await asyncio.wait_for(first.hold(), 2)
    assert not first.leading


async def test_of_two_that_write_at_once_one_is_refused(server: FakeApiServer, client: KubeClient) -> None:
    free(server)
    electors = [elector(client, name) for name in "abcdef"]
    server.inject(Fault(method="GET", delay=0.05, times=6))  # all read before anyone writes
    tasks = [asyncio.create_task(e.acquire()) for e in electors]
    await asyncio.sleep(0.3)
    assert sum(e.leading for e in electors) == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_work_runs_while_leading_and_the_lease_is_free_afterwards(
    server: FakeApiServer, client: KubeClient
) -> None:
    first = elector(client, "a")
    led: list[bool] = []

    async def work() -> None:
        await asyncio.sleep(0.6)  # longer than the deadline: it was renewed
        led.append(first.leading)

    await asyncio.wait_for(first.run(work), 5)
    assert led == [True]
    assert server.get(LEASE)["spec"]["holderIdentity"] == ""


async def test_a_lease_is_kept_while_a_write_may_still_arrive(server: FakeApiServer, client: KubeClient) -> None:
    """Who leads next must wait for it, and could not know."""
    first = elector(client, "a")

    async def work() -> None:
        pass

    await asyncio.wait_for(first.run(work, settled=lambda: False), 5)
    assert server.get(LEASE)["spec"]["holderIdentity"] == "a"
    assert not first.leading


async def test_who_takes_a_lease_that_was_not_given_back_knows_it(server: FakeApiServer, client: KubeClient) -> None:
    now = 100.0
    free(server)
    first, second = (elector(client, name, clock=lambda: now) for name in "ab")
    await first.acquire()
    assert not first.inherited
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.2)
    now += 2
    await asyncio.wait_for(waiting, 5)
    assert second.inherited
    await second.release()
    await first.acquire()
    assert not first.inherited


async def test_a_renewal_does_not_change_whether_the_lease_was_given_back(
    server: FakeApiServer, client: KubeClient
) -> None:
    free(server)
    now = 100.0
    first = elector(client, "a", clock=lambda: now)
    await first.acquire()
    await first.acquire()
    assert not first.inherited
    now += 0.5  # past the deadline: what it wrote then may still be on its way
    await first.acquire()
    assert first.inherited


async def test_work_is_cancelled_when_the_lead_is_lost(server: FakeApiServer, client: KubeClient) -> None:
    first = elector(client, "a")
    ended: list[str] = []

    async def work() -> None:
        await server.stop()
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    await asyncio.wait_for(first.run(work), 5)
    assert ended == ["cancelled"]


async def test_an_error_of_the_work_is_raised_and_the_lease_is_free(server: FakeApiServer, client: KubeClient) -> None:
    async def work() -> None:
        raise KeyError("a bug")

    with pytest.raises(ExceptionGroup) as error:
        await asyncio.wait_for(elector(client, "a").run(work), 5)
    assert error.group_contains(KeyError)
    assert server.get(LEASE)["spec"]["holderIdentity"] == ""


async def test_a_cancelled_leader_releases_so_that_the_next_need_not_wait(
    server: FakeApiServer, client: KubeClient
) -> None:
    free(server)
    slow = LeaseTiming(duration=60, deadline=40, retry=0.05, look=0.05)
    first, second = elector(client, "a", timing=slow), elector(client, "b", timing=slow)

    async def work() -> None:
        await asyncio.sleep(60)

    leading = asyncio.create_task(first.run(work))
    await asyncio.sleep(0.2)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    await asyncio.wait_for(second.acquire(), 2)
    assert second.leading


async def test_a_late_release_does_not_take_the_lead_from_the_next(server: FakeApiServer, client: KubeClient) -> None:
    first = elector(client, "a")
    await first.acquire()
    server.merge(LEASE, {"spec": {"holderIdentity": "b"}})
    await first.release()
    assert (await client.get(LEASE, Lease)).spec.holder_identity == "b"


@pytest.mark.parametrize("seed", range(3))
async def test_under_failures_at_most_one_leads_and_somebody_does(server: FakeApiServer, seed: int) -> None:
    rng = random.Random(seed)
    most = 0
    free(server)
    async with KubeClient(server.credentials(), timeout=0.2, rng=rng) as client:
        electors = [elector(client, name) for name in "abc"]

        async def forever(e: LeaderElector) -> None:
            while True:
                await e.acquire()
                await e.hold()

        tasks = [asyncio.create_task(forever(e)) for e in electors]
        end = time.monotonic() + 3
        while time.monotonic() < end:
            if rng.random() < 0.05:
                server.inject(
                    rng.choice(
                        [
                            Fault(status=500, times=5),
                            Fault(method="PUT", drop="after", times=3),
                            Fault(method="PUT", delay=0.5, times=2),
                            Fault(method="GET", delay=0.3, times=4),
                            Fault(status=429, times=5),
                            Fault(drop="before", times=20),
                        ]
                    )
                )
            leaders = sum(e.leading for e in electors)
            most = max(most, leaders)
            await asyncio.sleep(0.005)
        server.heal()
        async with asyncio.timeout(10):
            while not any(e.leading for e in electors):  # noqa: ASYNC110 - ``leading`` is a property, not an event
                await asyncio.sleep(0.005)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert most == 1


# ── leases that are not as they should be ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("year", ["2099", "9999"])
async def test_a_lease_held_by_a_clock_from_the_future_is_taken_after_its_duration(
    server: FakeApiServer, client: KubeClient, year: str
) -> None:
    held(server, leaseDurationSeconds=1, renewTime=f"{year}-12-31T23:59:59.000000Z", leaseTransitions=4)
    second = elector(client, "b")
    begun = time.monotonic()
    await asyncio.wait_for(second.acquire(), 5)
    assert time.monotonic() - begun >= 1
    assert second.term == "b/5"


async def test_a_lease_with_the_last_number_that_the_api_server_takes_is_led_under_a_small_one(
    server: FakeApiServer, client: KubeClient
) -> None:
    held(server, leaseDurationSeconds=1, leaseTransitions=2**31 - 1)
    second = elector(client, "b")
    await asyncio.wait_for(second.acquire(), 5)
    first = second.transitions
    assert 0 < first < 2**30
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.hold(), 0.2)
    assert second.term == f"b/{first}", "renewals keep it"


@pytest.mark.parametrize("edited", [0, 12, 2**31 - 1])
async def test_a_number_that_somebody_edits_during_a_lead_is_put_right_by_the_next_renewal(
    server: FakeApiServer, client: KubeClient, edited: int
) -> None:
    """Bindings name the number with which the lead began; while the Lease has another one they are refused."""
    held(server, leaseDurationSeconds=1, leaseTransitions=4)
    second = elector(client, "b")
    await asyncio.wait_for(second.acquire(), 5)
    assert second.term == "b/5"
    server.merge(LEASE, {"spec": {"leaseTransitions": edited}})
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(second.hold(), 0.3)
    assert server.get(LEASE)["spec"]["leaseTransitions"] == 5
    assert second.term == "b/5"


@pytest.mark.parametrize(("said", "waits"), [(2**31 - 1, 60), (-5, 1), (0, 1), (None, 1)])
async def test_the_duration_that_a_record_claims_is_believed_within_reason(
    server: FakeApiServer, client: KubeClient, said: int | None, waits: int
) -> None:
    now = 100.0
    held(server, leaseDurationSeconds=said)
    second = elector(client, "b", clock=lambda: now)
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.2)
    now += waits - 0.1
    await asyncio.sleep(0.3)
    assert not waiting.done()
    now += 0.2
    await asyncio.wait_for(waiting, 5)
    assert second.leading


async def test_a_lease_deleted_under_its_holder_makes_no_second_leader(
    server: FakeApiServer, client: KubeClient
) -> None:
    free(server)
    first, second = elector(client, "a"), elector(client, "b")
    await first.acquire()
    waiting = asyncio.create_task(second.acquire())
    await asyncio.sleep(0.05)
    server.delete(LEASE)
    # The holder learns of it only when it looks again; until then it leads on, and nobody else may.
    await asyncio.sleep(0.1)  # two looks of the second; the first may lead for 0.4 s without one
    assert first.leading
    assert not second.leading
    holding = asyncio.create_task(first.hold())
    await asyncio.sleep(0.3)
    assert first.leading
    assert server.get(LEASE)["spec"]["holderIdentity"] == "a"
    assert not second.leading
    for task in (waiting, holding):
        task.cancel()
    await asyncio.gather(waiting, holding, return_exceptions=True)


async def test_a_lease_that_stays_missing_is_made_after_a_duration(server: FakeApiServer, client: KubeClient) -> None:
    begun = time.monotonic()
    await asyncio.wait_for(elector(client, "a").acquire(), 5)
    assert time.monotonic() - begun >= FAST.duration
    assert server.get(LEASE)["spec"]["holderIdentity"] == "a"


async def test_a_server_that_answers_html_makes_nobody_lead(server: FakeApiServer, client: KubeClient) -> None:
    free(server)
    page = b"<html><body>proxy</body></html>"
    server.inject(Fault(path="/leases", status=200, body=page, times=5), Fault(path="/leases", status=502, body=page))
    first = elector(client, "a")
    waiting = asyncio.create_task(first.acquire())
    await asyncio.sleep(0.15)
    assert not first.leading
    await asyncio.wait_for(waiting, 5)  # and afterwards all is well
    assert first.leading


async def test_a_leader_whose_server_answers_html_stops_in_time(server: FakeApiServer, client: KubeClient) -> None:
    free(server)
    first = elector(client, "a")
    await first.acquire()
    server.inject(Fault(path="/leases", status=200, body=b"<html></html>", times=1000))
    begun = time.monotonic()
    await asyncio.wait_for(first.hold(), 5)
    assert not first.leading
    assert time.monotonic() - begun < FAST.duration


async def test_the_time_that_is_left_ends_before_others_may_lead(server: FakeApiServer, client: KubeClient) -> None:
    now = 100.0
    free(server)
    first = elector(client, "a", clock=lambda: now)
    assert first.left <= 0
    await first.acquire()
    assert first.left == pytest.approx(FAST.deadline)
    now += FAST.deadline
    assert not first.leading


async def test_who_releases_leads_no_more_from_before_the_write_on(server: FakeApiServer, client: KubeClient) -> None:
    free(server)
    first = elector(client, "a", timing=LeaseTiming())
    await first.acquire()
    server.inject(Fault(method="PUT", delay=0.3))
    releasing = asyncio.create_task(first.release())
    await asyncio.sleep(0.1)
    assert not first.leading
    await releasing
    assert server.get(LEASE)["spec"]["holderIdentity"] == ""
