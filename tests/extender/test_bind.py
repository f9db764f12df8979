"""Binding a pod: one write, charged once, whatever the API server and kube-scheduler do."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

import pytest

from fractile.errors import ApiError, FractileError, Unreachable
from fractile.kube import paths
from fractile.ledger.ledger import EntryState
from fractile.model.refusal import Code, Refusal
from fractile.model.units import MemoryUnit, PodUID
from fractile.reconcile.assumed_pods import EXPIRY
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from tests.builders import CARD_MEMORY, card_uuid, cards, container, in_use, on_card
from tests.fakes.apiserver import Fault
from tests.main.plane import NOW_NS, Plane, plane, until

FULL = CARD_MEMORY
BINDING = "/binding"


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        yield made


def args(pod: Pod, node: str = "n1") -> BindingArgs:
    meta = pod.metadata
    return BindingArgs(meta.name, meta.namespace, meta.uid, node)


async def bind(p: Plane, pod: Pod, node: str = "n1") -> Refusal | None:
    return await p.binder.bind(args(pod, node))


def bindings(p: Plane) -> int:
    return len(p.server.writes(path=BINDING))


async def during(call: asyncio.Task[Refusal | None], condition: Callable[[], object]) -> None:
    """Until the condition holds, which is to happen before the call ends."""
    await until(lambda: condition() or call.done())
    assert condition()


# ── the good case ────────────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_bind_is_one_write_and_nothing_else(p: Plane) -> None:
    pod = p.submit("p")
    assert await bind(p, pod) is None
    assert [f"{r.method} {r.path}" for r in p.server.requests] == ["POST /api/v1/namespaces/default/pods/p/binding"]
    assert p.steps == ["assumed", "bound"]


async def test_a_bound_pod_carries_its_placement_and_the_annotations_of_its_dialect(p: Plane) -> None:
    in_use(p.ledger, "n1", 0, 4000)
    assert await bind(p, p.submit("p", container(memory=8138))) is None
    assert p.stored().spec.node_name == "n1"
    assert p.annotations() == {
        "fractile.dev/placement": placement.encode(on_card(1, 8138)),
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16276",
        "ALIYUN_COM_GPU_MEM_POD": "8138",
        "ALIYUN_COM_GPU_MEM_ASSUME_TIME": str(NOW_NS),
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    }


async def test_in_gib_the_annotations_count_gib_and_the_ledger_mib() -> None:
    async with plane(unit=MemoryUnit.GiB) as p:
        assert await bind(p, p.submit("p", container(memory=8))) is None
        assert p.annotations()["ALIYUN_COM_GPU_MEM_POD"] == "8"
        assert p.annotations()["ALIYUN_COM_GPU_MEM_DEV"] == "15"
        assert p.free() == [FULL - 8192, FULL]


async def test_annotations_of_the_user_stay(p: Plane) -> None:
    assert await bind(p, p.submit("p", annotations={"team": "blue"})) is None
    assert p.annotations()["team"] == "blue"


async def test_a_bound_pod_is_charged_as_bound(p: Plane) -> None:
    pod = p.submit("p")
    assert await bind(p, pod) is None
    entry = p.entry(pod)
    assert entry is not None
    assert entry.state is EntryState.BOUND
    assert p.free() == [FULL - 8138, FULL]


async def test_the_card_is_chosen_from_the_ledger_of_the_moment(p: Plane) -> None:
    pod = p.submit("p")
    in_use(p.ledger, "n1", 10_000)
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 10_000, FULL - 8138]


async def test_a_pod_by_memory_and_a_pod_by_card_live_on_one_node(p: Plane) -> None:
    assert await bind(p, p.submit("small", container(memory=4000))) is None
    assert await bind(p, p.submit("large", container(count=1))) is None
    assert p.free() == [FULL - 4000, 0]
    placed = placement.decode(p.annotations("large")[placement.ANNOTATION])
    assert [(s.card, s.memory, s.cores) for s in placed.containers[0].slices] == [(card_uuid("n1", 1), FULL, 100)]


async def test_init_containers_and_sidecars_are_charged_as_kubernetes_counts(p: Plane) -> None:
    pod = p.submit(
        "p",
        container("main", memory=3000),
        init=[container("log", memory=1000, sidecar=True), container("warm", memory=9000)],
    )
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 10_000, FULL]
    assert p.annotations()["ALIYUN_COM_GPU_MEM_POD"] == "10000"


@pytest.mark.parametrize("seen", [True, False], ids=["known by the watch", "not seen yet"])
async def test_a_pod_that_names_nothing_of_ours_is_refused(p: Plane, *, seen: bool) -> None:
    make = p.submit if seen else p.create
    pod = make("p", container(limits={"cpu": "1", "example.com/gpu": "1"}))
    refusal = await bind(p, pod)
    assert refusal == Refusal(
        Code.NOT_OURS, "the pod asks for nothing that Fractile gives out; kube-scheduler binds it"
    )
    assert p.stored().spec.node_name == ""
    assert (p.writes(), p.entry(pod)) == ([], None)


async def test_a_pod_that_asks_for_an_amount_of_0_is_bound_without_a_charge(p: Plane) -> None:
    pod = p.submit("p", container(memory=0))
    assert await bind(p, pod) is None
    assert p.stored().spec.node_name == "n1"
    assert p.annotations() == {}
    assert p.ledger.statistics().bound == 0


async def test_a_pod_that_the_watch_has_not_shown_yet_is_asked_for(p: Plane) -> None:
    pod = p.create("p")
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 8138, FULL]
    assert bindings(p) == 1


# ── refusals leave nothing behind ────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_that_filled_up_meanwhile_is_refused_with_numbers(p: Plane) -> None:
    pod = p.submit("p")
    in_use(p.ledger, "n1", 12_207, 12_207)
    refusal = await bind(p, pod)
    assert refusal is not None
    assert refusal.code is Code.NO_ROOM
    assert "8138 MiB requested on one card, the most free on one is 4069 MiB" in refusal.message
    assert (p.writes(), p.entry(pod)) == ([], None)


async def test_a_node_that_vanished_meanwhile_is_refused(p: Plane) -> None:
    pod = p.submit("p")
    for index in (0, 1):
        p.ledger.drop_card(card_uuid("n1", index))
    refusal = await bind(p, pod)
    assert refusal is not None
    assert refusal.code is Code.NO_CARDS
    assert (p.writes(), p.entry(pod)) == ([], None)


async def test_a_malformed_request_is_refused_with_its_reason(p: Plane) -> None:
    refusal = await bind(p, p.submit("p", container(memory="0.5")))
    assert refusal is not None
    assert refusal.message.startswith("container main asks for aliyun.com/gpu-mem: '0.5' is not a whole number")
    assert p.writes() == []


async def test_a_pod_that_nobody_knows_is_refused(p: Plane) -> None:
    refusal = await p.binder.bind(BindingArgs("ghost", "default", "u-1", "n1"))
    assert refusal == Refusal(Code.GONE, "there is no pod default/ghost: it was deleted, or it never existed")
    assert p.ledger.statistics().assumed == 0


async def test_a_pod_recreated_under_the_same_name_is_another_pod(p: Plane) -> None:
    old = p.create("p")
    p.server.delete(paths.pod("default", "p"))
    new = p.create("p")
    said = f"there is no pod default/p with UID {old.metadata.uid}: the pod of that name has UID {new.metadata.uid}"
    assert await bind(p, old) == Refusal(Code.GONE, said)
    assert p.writes() == []


async def test_a_pod_recreated_unseen_is_refused_by_its_uid_and_nothing_stays_charged(p: Plane) -> None:
    old = p.submit("p")
    p.server.delete(paths.pod("default", "p"))
    p.create("p")
    refusal = await bind(p, old)
    assert refusal is not None
    assert "UID" in refusal.message
    assert p.free() == [FULL, FULL]
    assert p.stored().spec.node_name == ""


async def test_a_pod_deleted_unseen_is_refused_and_nothing_stays_charged(p: Plane) -> None:
    pod = p.submit("p")
    p.server.delete(paths.pod("default", "p"))
    refusal = await bind(p, pod)
    assert refusal is not None
    assert refusal.code is Code.GONE
    assert p.free() == [FULL, FULL]


@pytest.mark.parametrize("code", [400, 403, 404, 409, 422, 429])
async def test_a_refused_binding_gives_the_cards_back(p: Plane, code: int) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, status=code))
    pod = p.submit("p")
    refusal = await bind(p, pod)
    assert refusal is not None
    assert refusal.message == "injected by the test"
    assert (p.free(), p.entry(pod), bindings(p)) == ([FULL, FULL], None, 1)
    assert await bind(p, pod) is None


# ── outcomes that nobody knows ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_repeated_bind_succeeds_and_charges_once(p: Plane) -> None:
    pod = p.submit("p")
    for _ in range(3):
        assert await bind(p, pod) is None
    assert p.free() == [FULL - 8138, FULL]
    assert bindings(p) == 1


async def test_a_bind_repeated_after_the_watch_saw_it_succeeds_and_charges_once(p: Plane) -> None:
    pod = p.submit("p")
    assert await bind(p, pod) is None
    p.see()
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 8138, FULL]
    assert bindings(p) == 1


async def test_an_answer_lost_after_the_commit_is_a_success_charged_once(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, drop="after"))
    pod = p.submit("p")
    assert await bind(p, pod) is None
    entry = p.entry(pod)
    assert entry is not None
    assert entry.state is EntryState.BOUND
    assert p.free() == [FULL - 8138, FULL]
    p.see()
    assert p.free() == [FULL - 8138, FULL]
    assert p.events == []


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="POST", path=BINDING, status=500), id="500"),
        pytest.param(Fault(method="POST", path=BINDING, status=503), id="503"),
        pytest.param(Fault(method="POST", path=BINDING, drop="before"), id="cut before"),
    ],
)
async def test_a_binding_of_unknown_outcome_keeps_the_cards_and_a_repeated_call_uses_them(
    p: Plane, fault: Fault
) -> None:
    p.server.inject(fault)
    pod = p.submit("p")
    with pytest.raises((ApiError, Unreachable)):
        await bind(p, pod)
    held = p.entry(pod)
    assert held is not None
    assert held.state is EntryState.ASSUMED
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 8138, FULL]
    assert placement.decode(p.annotations()[placement.ANNOTATION]) == held.placement


async def test_a_binding_that_times_out_keeps_the_cards() -> None:
    async with plane(timeout=0.2) as p:
        p.server.inject(Fault(method="POST", path=BINDING, delay=1.0))
        pod = p.submit("p")
        with pytest.raises(Unreachable):
            await bind(p, pod)
        assert p.free() == [FULL - 8138, FULL]


async def test_an_answer_that_is_no_answer_of_an_api_server_keeps_the_cards(p: Plane) -> None:
    p.server.inject(
        Fault(method="POST", path=BINDING, status=502, body=b"<html>bad gateway</html>"),
        Fault(method="GET", path="/pods/p", status=200, body=b"<html>hello</html>"),
    )
    pod = p.submit("p")
    with pytest.raises(FractileError):
        await bind(p, pod)
    assert p.free() == [FULL - 8138, FULL]


async def test_a_refused_binding_whose_pod_cannot_be_asked_about_keeps_the_cards(p: Plane) -> None:
    p.server.inject(
        Fault(method="POST", path=BINDING, status=409), Fault(method="GET", path="/pods/p", status=500, times=99)
    )
    pod = p.submit("p")
    with pytest.raises(ApiError):
        await bind(p, pod)
    assert p.free() == [FULL - 8138, FULL]


async def test_a_pod_bound_before_a_restart_is_a_success_with_the_placement_it_has(p: Plane) -> None:
    pod = p.submit("p")
    assert await bind(p, pod) is None
    p.ledger.release(PodUID(pod.metadata.uid))  # as a fresh ledger that the watch has not told yet
    in_use(p.ledger, "n1", 0, 5000)
    assert await bind(p, pod) is None
    assert p.free() == [FULL - 8138, FULL - 5000]
    assert placement.decode(p.annotations()[placement.ANNOTATION]) == on_card(0, 8138)


# ── kube-scheduler changes its mind ──────────────────────────────────────────────────────────────────────────────────


async def test_a_namesake_that_is_bound_there_does_not_make_a_refused_bind_a_success(p: Plane) -> None:
    """The pod was deleted and created again unseen, and the new one is bound to the same node."""
    first = p.submit("p")
    p.server.delete(paths.pod("default", "p"))
    second = p.create("p", node="n1")
    p.server.inject(Fault(method="POST", path=BINDING, status=409))
    refusal = await bind(p, first)
    assert refusal is not None
    assert refusal.code is Code.ELSEWHERE
    assert p.entry(first) is None
    assert second.metadata.uid != first.metadata.uid


MAY_ARRIVE = Refusal(Code.ELSEWHERE, "a Binding to n1 got no answer and may still take effect")


async def test_another_node_waits_until_the_first_binding_cannot_arrive_any_more(p: Plane) -> None:
    """A write that had no answer was seen to arrive seconds later: who got its cards meanwhile would share them."""
    p.server.inject(Fault(method="POST", path=BINDING, drop="before"))
    pod = p.submit("p")
    with pytest.raises(Unreachable):
        await bind(p, pod, "n1")
    held = p.entry(pod)
    assert held is not None
    assert await bind(p, pod, "n2") == MAY_ARRIVE
    assert (p.free("n1"), p.free("n2")) == ([FULL - 8138, FULL], [FULL, FULL])
    await p.client.bind(  # it does arrive
        namespace="default",
        name="p",
        uid=pod.metadata.uid,
        node="n1",
        annotations={placement.ANNOTATION: placement.encode(held.placement)},
    )
    assert await bind(p, pod, "n2") == Refusal(Code.ELSEWHERE, "the pod is already bound to n1")
    assert (p.free("n1"), p.free("n2")) == ([FULL - 8138, FULL], [FULL, FULL])


async def test_when_it_is_known_not_to_have_arrived_another_node_may_be_chosen(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, drop="before"))
    pod = p.submit("p")
    with pytest.raises(Unreachable):
        await bind(p, pod, "n1")
    p.ledger.forget(PodUID(pod.metadata.uid))  # as AssumedPods does
    assert await bind(p, pod, "n2") is None
    assert (p.free("n1"), p.free("n2")) == ([FULL, FULL], [FULL - 8138, FULL])
    assert p.stored().spec.node_name == "n2"


async def test_a_refusal_of_the_second_write_says_nothing_about_the_first(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, drop="before"), Fault(method="POST", path=BINDING, status=403))
    pod = p.submit("p")
    with pytest.raises(Unreachable):
        await bind(p, pod, "n1")
    refusal = await bind(p, pod, "n1")
    assert refusal is not None
    assert p.free("n1") == [FULL - 8138, FULL]
    assert await bind(p, pod, "n2") == MAY_ARRIVE


async def test_the_time_for_an_answer_begins_when_the_write_was_given_up(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, drop="before"))
    pod = p.submit("p")
    p.clock.now += 20
    first = p.clock.now
    with pytest.raises(Unreachable):
        await bind(p, pod, "n1")
    held = p.entry(pod)
    assert held is not None
    assert held.since == first
    p.server.inject(Fault(method="POST", path=BINDING, drop="before"))
    p.clock.now += 20
    with pytest.raises(Unreachable):
        await bind(p, pod, "n1")
    held = p.entry(pod)
    assert held is not None
    assert held.since == first + 20


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(method="POST", path=BINDING, delay=0.1, status=500), id="500"),
        pytest.param(Fault(method="POST", path=BINDING, delay=0.1, drop="before"), id="no answer"),
    ],
)
async def test_the_time_in_which_a_write_may_arrive_begins_when_it_has_failed(p: Plane, fault: Fault) -> None:
    p.server.inject(fault)
    pod = p.submit("p")
    call = asyncio.create_task(bind(p, pod))
    await during(call, lambda: bindings(p) == 1)
    p.clock.now += 20
    with pytest.raises((ApiError, Unreachable)):
        await call
    held = p.entry(pod)
    assert held is not None
    assert held.since == p.clock.now


async def test_a_second_write_on_its_way_has_all_of_the_time(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, drop="before"))
    pod = p.submit("p")
    with pytest.raises(Unreachable):
        await bind(p, pod, "n1")
    p.clock.now += 30
    p.server.inject(Fault(method="POST", path=BINDING, delay=0.3))
    call = asyncio.create_task(bind(p, pod, "n1"))
    await asyncio.sleep(0.1)
    p.clock.now += 10
    assert p.ledger.overdue(EXPIRY) == []
    assert await call is None


async def test_a_cancelled_write_may_still_arrive(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, delay=0.3))
    pod = p.submit("p")
    call = asyncio.create_task(bind(p, pod, "n1"))
    await asyncio.sleep(0.1)
    p.clock.now += 20
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    held = p.entry(pod)
    assert held is not None
    assert held.since == p.clock.now
    assert p.free("n1") == [FULL - 8138, FULL]
    assert await bind(p, pod, "n2") in (MAY_ARRIVE, Refusal(Code.ELSEWHERE, "the pod is already bound to n1"))


async def test_another_node_is_refused_when_the_first_binding_did_arrive(p: Plane) -> None:
    p.server.inject(
        Fault(method="POST", path=BINDING, drop="after"), Fault(method="GET", path="/pods/p", status=500, times=5)
    )
    pod = p.submit("p")
    with pytest.raises(FractileError):
        await bind(p, pod, "n1")
    assert await bind(p, pod, "n2") == Refusal(Code.ELSEWHERE, "the pod is already bound to n1")
    assert (p.free("n1"), p.free("n2")) == ([FULL - 8138, FULL], [FULL, FULL])


async def test_a_bound_pod_is_not_bound_again_elsewhere(p: Plane) -> None:
    pod = p.submit("p")
    assert await bind(p, pod, "n1") is None
    assert await bind(p, pod, "n2") == Refusal(Code.ELSEWHERE, "the pod is already bound to n1")
    assert p.free("n2") == [FULL, FULL]


async def test_a_pod_bound_by_somebody_else_is_refused_and_nothing_stays_charged(p: Plane) -> None:
    pod = p.submit("p")
    await p.client.bind(namespace="default", name="p", uid=pod.metadata.uid, node="n2", annotations={})
    refusal = await bind(p, pod, "n1")
    assert refusal is not None
    assert refusal.code is Code.ELSEWHERE
    assert (p.free("n1"), p.free("n2")) == ([FULL, FULL], [FULL, FULL])


# ── at the same time ─────────────────────────────────────────────────────────────────────────────────────────────────


async def test_two_binds_of_one_pod_are_one(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, delay=0.05))
    pod = p.submit("p")
    assert await asyncio.gather(bind(p, pod), bind(p, pod)) == [None, None]
    assert p.free() == [FULL - 8138, FULL]
    assert bindings(p) == 1


async def test_a_slow_bind_of_one_pod_does_not_hold_up_another(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path="/pods/slow/binding", delay=0.3))
    slow = asyncio.create_task(bind(p, p.submit("slow")))
    await during(slow, lambda: bindings(p) == 1)
    assert await bind(p, p.submit("quick")) is None
    assert not slow.done()
    assert await slow is None


async def test_nothing_is_kept_of_a_call_that_has_ended(p: Plane) -> None:
    pod = p.submit("p")
    assert await asyncio.gather(bind(p, pod), bind(p, pod)) == [None, None]
    assert p.binder._turns == {}  # pyright: ignore[reportPrivateUsage]  # a leak shows nowhere else


async def test_a_third_call_waits_for_the_second_as_the_second_did_for_the_first(p: Plane) -> None:
    p.server.inject(
        Fault(method="POST", path=BINDING, status=500, delay=0.02), Fault(method="POST", path=BINDING, delay=0.1)
    )
    pod = p.submit("p")
    first, second = asyncio.create_task(bind(p, pod)), asyncio.create_task(bind(p, pod))
    with pytest.raises(ApiError):
        await first
    assert await asyncio.gather(second, bind(p, pod)) == [None, None]
    assert bindings(p) == 2  # the failed one, and one more


async def test_a_cancelled_call_lets_the_next_one_in(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, delay=5))
    pod = p.submit("p")
    first = asyncio.create_task(bind(p, pod))
    await during(first, lambda: bindings(p) == 1)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    async with asyncio.timeout(2):
        assert await bind(p, pod) is None
    assert p.free() == [FULL - 8138, FULL]


async def test_fifty_binds_at_once_never_promise_a_card_twice() -> None:
    async with plane(nodes=()) as p:
        p.node("n1", cards("n1", 1))
        pods = [p.submit(f"p{i}", container(memory=1000)) for i in range(50)]
        answers = await asyncio.gather(*(bind(p, pod) for pod in pods))
        assert [a.code for a in answers if a is not None] == [Code.NO_ROOM] * 34
        assert p.free() == [FULL - 16_000]
        assert p.ledger.audit() == []
        held = [pod for pod in pods if p.stored(pod.metadata.name).spec.node_name]
        assert len(held) == 16
        assert bindings(p) == 16


async def test_fifty_binds_with_a_failing_server_leak_nothing(p: Plane) -> None:
    faults: list[Fault] = [
        Fault(method="POST", path=BINDING, status=409),
        Fault(method="POST", path=BINDING, status=500),
        Fault(method="POST", path=BINDING, drop="before"),
        Fault(method="POST", path=BINDING, drop="after"),
        Fault(method="POST", path=BINDING, status=429),
    ]
    p.server.inject(*(replace(f) for f in faults * 6))
    pods = [p.submit(f"p{i}", container(memory=600)) for i in range(50)]
    for _ in range(4):
        await asyncio.gather(*(bind(p, pod, f"n{1 + i % 2}") for i, pod in enumerate(pods)), return_exceptions=True)
    assert all(p.stored(pod.metadata.name).spec.node_name for pod in pods)
    assert sum(p.free("n1") + p.free("n2")) == 4 * FULL - 50 * 600
    assert p.ledger.statistics().bound == 50
    assert p.ledger.audit() == []


async def test_a_deletion_seen_while_the_binding_is_on_its_way_leaves_no_charge(p: Plane) -> None:
    p.server.inject(Fault(method="POST", path=BINDING, delay=0.05))
    pod = p.submit("p")
    call = asyncio.create_task(bind(p, pod))
    await during(call, lambda: p.steps)
    p.server.delete(paths.pod("default", "p"))
    p.handlers.gone(PodUID(pod.metadata.uid))
    refusal = await call
    assert refusal is not None
    assert refusal.code is Code.GONE
    assert p.free() == [FULL, FULL]
    assert p.ledger.audit() == []


async def test_a_deletion_seen_before_the_answer_of_a_binding_that_succeeded_leaves_no_charge(p: Plane) -> None:
    pod = p.submit("p")
    p.server.inject(Fault(method="POST", path=BINDING, drop="after"))
    p.server.inject(Fault(method="GET", path=paths.pod("default", "p"), delay=0.2))  # bind asks what became of it
    call = asyncio.create_task(bind(p, pod))
    await during(call, lambda: p.stored().spec.node_name)
    p.server.delete(paths.pod("default", "p"))
    p.handlers.gone(PodUID(pod.metadata.uid))
    with pytest.raises(FractileError):
        await call
    assert p.free() == [FULL, FULL]
    assert p.ledger.statistics().assumed == p.ledger.statistics().bound == 0
