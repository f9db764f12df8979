"""The time for which a card may be used outside the ledger before a pod is evicted."""

import msgspec
import pytest

from fractile.agent.audit.audit import REASON
from fractile.agent.audit.lasting import Lasting
from fractile.agent.node.owners import ProcessOwner
from fractile.kube import paths
from fractile.model.units import CardUUID
from fractile.wire.output.node_usage import Kind
from tests.agent.audit.audit_world import CARD, ID, limits, miner, over, stranger, world


async def test_a_pod_that_holds_nothing_of_the_card_is_evicted_after_its_grace_time_and_told_before() -> None:
    async with world("evict", grace=60) as w:
        found = miner(w.pod("miner"))
        await w.seen_twice(found)
        ((reason, _, message),) = w.told()
        assert reason == REASON
        assert message.endswith("; the pod is evicted if that lasts for 60 s")
        w.time += 59
        await w.seen_twice(found)
        assert w.audit.evictions == 0
        w.time += 1
        await w.seen_twice(found)
        assert w.audit.evictions == 1
        assert w.server.all(paths.pods()) == []


async def test_a_finding_that_ends_within_the_grace_time_begins_another_one_after_ten_minutes() -> None:
    async with world("evict", grace=60) as w:
        found = miner(w.pod("short"))
        await w.seen_twice(found)
        w.time += 59
        await w.seen_twice()
        w.time += 601
        await w.seen_twice()
        await w.seen_twice(found)
        w.time += 59
        await w.seen_twice(found)
        assert w.audit.evictions == 0
        w.time += 1
        await w.seen_twice(found)
        assert w.audit.evictions == 1


async def test_pods_of_a_namespace_that_take_turns_on_a_card_have_one_grace_time_together() -> None:
    """A Job whose pods each use it for less than that would do so for ever."""
    async with world("evict", grace=60) as w:
        for n in range(3):
            found = miner(w.pod(f"turn-{n}"), 100 + n)
            await w.seen_twice(found)
            assert w.audit.evictions == 0, n
            w.time += 20
            await w.seen_twice()
        last = miner(w.pod("last"), 200)
        await w.seen_twice(last)
        assert w.audit.evictions == 1
        (message,) = [message for _, pod, message in w.told() if pod == "turn-2"]
        assert message.endswith("; the pod is evicted if that lasts for 20 s")


async def test_pods_that_use_a_card_at_the_same_time_use_up_their_grace_time_once() -> None:
    async with world("evict", grace=60) as w:
        first, second, third = (miner(w.pod(f"p{n}"), 100 + n) for n in range(3))
        await w.seen_twice(first)
        w.time += 20
        await w.seen_twice(first, second)
        w.time += 20
        w.audit.observe([first, second, third])
        w.time += 1
        w.audit.observe([third])  # the first pod was there for 41 s, and this one for the last of them
        await w.act()
        w.time += 18
        await w.seen_twice(third)
        assert w.audit.evictions == 0
        w.time += 1
        await w.seen_twice(third)
        assert w.audit.evictions == 1


@pytest.mark.parametrize(
    "other", [pytest.param({"namespace": "kube-system"}, id="namespace"), pytest.param({"card": "GPU-b"}, id="card")]
)
def test_nobody_s_grace_time_is_used_up_in_another_namespace_or_on_another_card(other: dict[str, str]) -> None:
    lasting = Lasting()
    found = stranger(uid="v")
    lasting.ended(
        ProcessOwner("u", other.get("namespace", "ns"), "before", "main"),
        msgspec.structs.replace(found, card=CardUUID(other.get("card", CARD))),
        0.0,
        50.0,
    )
    assert lasting.seconds(ProcessOwner("v", "ns", "mine", "main"), found, 60.0) == 0


async def test_a_pod_that_may_use_the_card_uses_up_nobody_s_grace_time() -> None:
    async with world("evict", grace=60) as w:
        await w.seen_twice(miner(w.pod("entitled", spec=limits("nvidia.com/gpu"))))
        w.time += 300
        await w.seen_twice()
        found = miner(w.pod("other"), 101)
        await w.seen_twice(found)
        w.time += 59
        await w.seen_twice(found)
        assert w.audit.evictions == 0


async def test_what_pods_do_to_their_own_library_or_quota_uses_up_the_time_of_each_alone() -> None:
    async with world("evict-all", grace=60) as w:
        for n in range(4):
            await w.seen_twice(over(w.pod(f"p{n}")))
            w.time += 20
            await w.seen_twice()
        assert w.audit.evictions == 0


async def test_a_pod_whose_process_starts_again_and_again_is_evicted_after_the_same_grace_time() -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("miner")
        for turn in range(3):  # each lives for 30 s
            for _ in range(3):
                await w.seen_twice(miner(pod, 100 + turn))
                w.time += 10
            await w.seen_twice()
        assert w.audit.evictions == 1


async def test_processes_that_run_at_the_same_time_use_up_the_grace_time_once_and_pauses_do_not() -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("short")
        for turn in range(5):  # 10 s each, all together, with pauses of 100 s
            several = [miner(pod, 100 + 10 * turn + n) for n in range(8)]
            await w.seen_twice(*several)
            w.time += 10
            await w.seen_twice(*several)
            await w.seen_twice()
            w.time += 100
        assert w.audit.evictions == 0
        await w.seen_twice(miner(pod, 99))
        w.time += 10
        await w.seen_twice(miner(pod, 99))
        assert w.audit.evictions == 1


async def test_processes_that_relieve_each_other_within_a_second_are_one_use_of_the_card() -> None:
    """No look shows one that the look before has shown."""
    async with world("evict", grace=60.0) as w:
        pod = w.pod("miner", container_id=ID)
        for second in range(60):
            w.audit.observe([stranger(100 + second, uid=pod.metadata.uid, container_id=ID)])
            await w.act()
            assert w.audit.evictions == 0, second
            assert [(o.pod, o.container) for o in w.audit.outside] == [("miner", "main")] * (second > 0)
            w.time += 1
        assert w.audit.found == {"no-slice": 1}
        ((_, _, message),) = w.told()
        assert message.endswith("; the pod is evicted if that lasts for 60 s")
        w.audit.observe([stranger(200, uid=pod.metadata.uid, container_id=ID)])
        await w.act()
        assert w.audit.evictions == 1


async def test_processes_that_relieve_each_other_with_pauses_use_up_the_time_in_which_they_are_there() -> None:
    async with world("evict", grace=60.0) as w:
        pod = w.pod("miner")
        for turn in range(7):  # of 10 s each
            for second in range(10):
                w.audit.observe([stranger(100 + 20 * turn + second, uid=pod.metadata.uid)])
                await w.act()
                assert w.audit.evictions == (turn == 6 and second > 0), (turn, second)
                w.time += 1
            w.audit.observe([])
            w.time += 30


@pytest.mark.parametrize(
    ("kind", "found"), [("not-in-ledger", {}), ("no-library", {"no-library": 1}), ("no-slice", {"no-slice": 1})]
)
async def test_what_one_look_alone_does_not_show_for_certain_each_process_confirms_for_itself(
    kind: Kind, found: dict[str, int]
) -> None:
    """Of a container with many short programs the region is read while one has begun or just ended."""
    async with world("evict-all") as w:
        pod = w.pod("busy")
        for number in range(10):
            one = stranger(100 + number, uid=pod.metadata.uid)
            w.audit.observe([msgspec.structs.replace(one, kind=kind, granted=over(pod).granted)])
        assert w.audit.found == found


@pytest.mark.parametrize("other", ["pod", "card"])
async def test_processes_of_two_pods_or_on_two_cards_confirm_nothing_of_each_other(other: str) -> None:
    async with world("evict") as w:
        uids = [w.pod(name).metadata.uid for name in ("a", "b")]
        for number in range(10):
            found = stranger(100 + number, uid=uids[number % 2 if other == "pod" else 0])
            card = CardUUID(f"GPU-{number % 2}") if other == "card" else CARD
            w.audit.observe([msgspec.structs.replace(found, card=card)])
        assert w.audit.found == {}
