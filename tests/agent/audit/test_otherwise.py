"""What a stricter policy would do to a pod, where the audit only warns."""

import pytest

from fractile.kube import paths
from tests.agent.audit.audit_world import IS_LABELLED, LABELLED, deletions, miner, over, world
from tests.fakes.apiserver import Fault


@pytest.mark.parametrize(
    ("kind", "label", "hint"),
    [
        ("no-slice", False, "evict would evict it after 60 s"),
        ("no-slice", True, f"evict {IS_LABELLED}"),
        ("over-ledger", False, "only evict-all would evict it"),
        ("over-ledger", True, f"evict-all {IS_LABELLED}"),
    ],
)
async def test_where_the_policy_only_warns_event_and_page_say_what_a_stricter_one_would_do(
    kind: str, label: bool, hint: str
) -> None:
    async with world("warn", grace=60) as w:
        if label:
            w.server.merge(paths.namespace("ns"), LABELLED)
        pod = w.pod("greedy")
        await w.seen_twice(over(pod) if kind == "over-ledger" else miner(pod))
        ((_, _, message),) = w.told()
        assert message.endswith(f"; the pod stays: --outside-ledger is warn ({hint})")
        assert [o.spared for o in w.audit.outside] == [
            f"is not evicted for that while --outside-ledger is warn ({hint})"
        ]
        assert deletions(w) == []


async def test_a_label_that_is_set_later_is_seen_within_a_minute_and_asked_about_once_for_all_processes() -> None:
    async with world("warn", grace=60) as w:
        pod = w.pod("greedy")
        found = [miner(pod, pid) for pid in (100, 101, 102)]
        await w.seen_twice(*found)
        w.server.merge(paths.namespace("ns"), LABELLED)
        before = len(w.server.requests)
        w.time += 61
        await w.seen_twice(*found)
        assert len([r for r in w.server.requests[before:] if r.path == paths.namespace("ns")]) == 1
        assert [IS_LABELLED in o.spared for o in w.audit.outside] == [True] * 3


async def test_what_a_stricter_policy_would_do_is_left_out_where_that_cannot_be_read() -> None:
    async with world("warn") as w:
        w.server.inject(Fault(method="GET", path=paths.namespace("ns"), status=500, times=9))
        await w.seen_twice(miner(w.pod("greedy")))
        ((_, _, message),) = w.told()
        assert message.endswith("; the pod stays: --outside-ledger is warn")
