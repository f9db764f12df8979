"""Processes whose directory was removed from the node: their pods are not to blame."""

import pytest

from fractile.agent.audit.audit import REASON
from fractile.agent.audit.unaccounted import Finding
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process
from fractile.kube import paths
from fractile.model.units import PodUID
from fractile.wire.fractile.placement import ANNOTATION
from tests.agent.audit.audit_world import CARD, ID, MIB, miner, placement, unrecorded, world


async def test_a_pod_to_which_the_ledger_gave_the_card_is_not_evicted_where_the_node_has_lost_its_record() -> None:
    """Its page of limits cannot be read, or the agent's folder is gone: then its use looks like a stranger's."""
    async with world("evict") as w:
        pods = {"mine": ("n1", CARD), "other": ("n1", "GPU-b"), "moved": ("n2", CARD)}
        found = [
            miner(w.pod(name, metadata={"annotations": {ANNOTATION: placement(*held)}}), 100 + number)
            for number, (name, held) in enumerate(pods.items())
        ]
        for _ in range(4):
            await w.seen_twice(*found)
            w.time += 60
        assert [o["metadata"]["name"] for o in w.server.all(paths.pods())] == ["mine"]


# ---- the node's record of a container was removed ----


@pytest.mark.parametrize(
    ("node", "card", "token", "told"),
    [
        pytest.param("n1", CARD, "t1", [], id="of a pod that holds the card"),
        pytest.param("n1", CARD, "", [REASON], id="of a container that was given no directory"),
        pytest.param("n1", "GPU-b", "t1", [REASON], id="of a pod that holds another card"),
        pytest.param("n2", CARD, "t1", [REASON], id="of a pod that is placed elsewhere"),
    ],
)
async def test_a_process_whose_record_was_removed_is_no_finding(
    node: str, card: str, token: str, told: list[str]
) -> None:
    async with world("evict") as w:
        pod = w.pod("p", container_id=ID, metadata={"annotations": {ANNOTATION: placement(node, card)}})
        await w.seen_twice(unrecorded(pod.metadata.uid, token))
        assert [reason for reason, _, _ in w.told() if reason == REASON] == told
        assert len(w.audit.outside) == len(told)


async def test_a_cgroup_that_a_container_names_after_another_pod_does_not_stand_for_that_pods_placement() -> None:
    async with world("evict") as w:
        honest = w.pod("p", metadata={"annotations": {ANNOTATION: placement("n1", CARD)}})
        sly = w.pod("q", container_id=ID)
        places = (CgroupPlace(PodUID(sly.metadata.uid), ID), CgroupPlace(PodUID(honest.metadata.uid), "cd" * 32))
        finding = Finding("no-slice", CARD, Process(100, 1, "job", 100, 1, places, "t1"), None, 300 * MIB)
        await w.seen_twice(finding)
        assert [pod for reason, pod, _ in w.told() if reason == REASON] == ["q"]


async def test_while_the_pods_of_the_node_are_not_known_yet_nobody_is_told_for_a_record_that_is_not_there() -> None:
    async with world("evict") as w:
        pod = w.pod("p", container_id=ID)
        watch = w.pods.follow()
        await w.seen_twice(unrecorded(pod.metadata.uid))
        assert w.told() == []
        watch.synced.set()
        await w.seen_twice(unrecorded(pod.metadata.uid))
        assert REASON in [reason for reason, _, _ in w.told()]


async def test_where_kubelet_makes_no_cgroups_for_pods_the_container_says_whose_record_was_removed() -> None:
    async with world("evict") as w:
        w.pod("p", container_id=ID, metadata={"annotations": {ANNOTATION: placement("n1", CARD)}})
        await w.seen_twice(unrecorded(""))
        await w.seen_twice(unrecorded(""))
        assert w.told() == []
        assert w.audit.outside == ()
