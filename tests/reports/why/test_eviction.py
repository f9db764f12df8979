"""What ``fractile why`` says of a pod that its node's agent is about to evict."""

from pathlib import Path
from typing import Any

import pytest

from fractile.kube import paths
from fractile.policy.outside import announcement, sentence, staying
from fractile.wire.output.node_usage import NodeUsage, Outside, encode
from fractile.wire.output.why import Why
from tests.fakes.apiserver import FakeApiServer, Fault
from tests.reports.objects import pod, uuid
from tests.reports.why.why_cluster import fill, later, refused, submit, why

USES = (
    "process python (pid 12 on node n1) uses 512 MiB of card GPU-n1-0, which this pod was not given; "
    "request a GPU resource or, if it needs no GPU, set NVIDIA_VISIBLE_DEVICES to none in the pod (images may set it "
    "to all)"
)


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    return fill(server)


def intruder(server: FakeApiServer, **more: Any) -> str:
    """A pod that asks for nothing and runs on n1: its UID."""
    body = pod("intruder", {"name": "main"}, on="n1")
    body["metadata"] |= more
    return submit(server, body)


def found(uid: str, **more: Any) -> Outside:
    fields: dict[str, Any] = {"kind": "no-slice", "pid": 12, "command": "python", "bytes": 512 << 20}
    return Outside(card=uuid("n1", 0), since=1.0, pod_uid=uid, namespace="default", pod="intruder", **fields | more)


def says(server: FakeApiServer, *outside: Outside) -> None:
    """The page of n1's agent."""
    body = encode(NodeUsage(node="n1", time=1.0, outside=outside, audited=True))
    server.inject(Fault(path="/api/v1/nodes/n1:5678/proxy/v1/usage", status=200, body=body))


def silent(server: FakeApiServer) -> None:
    server.inject(Fault(path="/v1/usage", status=403, times=9))


def event(server: FakeApiServer, uid: str, reason: str, message: str) -> None:
    begun = server.get(paths.pod("default", "intruder"))["metadata"]["creationTimestamp"]
    body = {
        "metadata": {"name": reason.lower(), "namespace": "default"},
        "involvedObject": {"name": "intruder", "uid": uid},
        "reason": reason,
        "message": message,
        "lastTimestamp": begun,
    }
    server.create(paths.events("default"), body)


async def of_intruder(server: FakeApiServer, folder: Path) -> Why:
    return await why(server, folder, "intruder")


async def test_a_pod_without_a_request_is_told_by_whom_why_when_and_what_to_do(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    says(filled, found(intruder(filled), evicted_in_seconds=42.0))
    told = await of_intruder(filled, tmp_path)

    assert told.verdict == (
        f"runs on n1; the agent of n1 evicts it in 42 s at the earliest (--outside-ledger): {USES}. To keep the pod, "
        "end that process (its pid inside the container is different) before then"
    )
    assert (told.asks, told.families, told.classes, told.holds) == ((), (), (), ())


async def test_so_is_a_pod_that_has_taken_its_library_away(filled: FakeApiServer, tmp_path: Path) -> None:
    uid = filled.get(paths.pod("default", "on-n1"))["metadata"]["uid"]
    one = found(uid, kind="no-library", unseen="/etc/ld.so.preload", evicted_in_seconds=7.4)
    says(filled, one)
    told = await why(filled, tmp_path, "on-n1")

    assert told.verdict.startswith("runs on n1; the agent of n1 evicts it in 7 s at the earliest (--outside-ledger): ")
    assert "at /etc/ld.so.preload the process finds another file or none; do not cover that path: " in told.verdict
    assert [h.container for h in told.holds] == ["main"]


async def test_the_first_of_several_findings_counts(filled: FakeApiServer, tmp_path: Path) -> None:
    uid = intruder(filled)
    says(
        filled,
        found(uid, pid=13, evicted_in_seconds=50.0),
        found(uid, evicted_in_seconds=3.0),
        found("another", evicted_in_seconds=1.0),
    )
    assert (
        "evicts it in 3 s at the earliest (--outside-ledger): process python (pid 12 on node n1) "
        in (await of_intruder(filled, tmp_path)).verdict
    )


async def test_one_that_is_due_is_evicted_now(filled: FakeApiServer, tmp_path: Path) -> None:
    says(filled, found(intruder(filled), evicted_in_seconds=0.0))
    assert "; the agent of n1 evicts it now (--outside-ledger): " in (await of_intruder(filled, tmp_path)).verdict


async def test_use_of_a_whole_container_is_ended_otherwise(filled: FakeApiServer, tmp_path: Path) -> None:
    says(filled, found(intruder(filled), kind="over-ledger", pid=0, accounted_bytes=1 << 20, evicted_in_seconds=9.0))
    assert (await of_intruder(filled, tmp_path)).verdict.endswith(
        "To keep the pod, end the processes that allocate around the library before then"
    )


@pytest.mark.parametrize(("spared", "why_so"), [("", ""), ("is static", ": it is static")])
async def test_a_pod_that_stays_is_a_note(filled: FakeApiServer, tmp_path: Path, spared: str, why_so: str) -> None:
    says(filled, found(intruder(filled), spared=spared))
    told = await of_intruder(filled, tmp_path)

    assert told.verdict == "runs on n1"
    assert told.notes == (f"outside the ledger, and the pod stays{why_so}: {USES}",)


async def test_an_agent_that_cannot_be_asked_has_said_it_in_its_event(filled: FakeApiServer) -> None:
    uid = intruder(filled)
    silent(filled)
    event(filled, uid, "GPUOutsideLedger", sentence(found(uid), "n1") + announcement(60))
    soon, due, past = [(await later(filled, "intruder", seconds=s)).verdict for s in (18, 70, 200)]

    assert soon == (
        "runs on n1; the agent of n1 announced 18 s ago that it evicts it (--outside-ledger), in 42 s at the earliest: "
        f"{USES}. To keep the pod, end that process (its pid inside the container is different) before then"
    )
    assert "announced 70 s ago that it evicts it (--outside-ledger); that may happen at any moment: " in due
    assert past == "runs on n1"


async def test_an_event_that_announces_nothing_is_no_eviction(filled: FakeApiServer) -> None:
    uid = intruder(filled)
    silent(filled)
    event(filled, uid, "GPUOutsideLedger", sentence(found(uid), "n1") + staying("it is static"))

    assert (await later(filled, "intruder", seconds=1)).verdict == "runs on n1"


async def test_why_a_pod_stays_is_taken_from_the_event_where_the_agent_cannot_be_asked(filled: FakeApiServer) -> None:
    uid = intruder(filled)
    silent(filled)
    event(filled, uid, "GPUOutsideLedger", sentence(found(uid), "n1") + staying("--outside-ledger is warn"))

    assert (await later(filled, "intruder", seconds=75)).notes[-1] == (
        f"outside the ledger, and the pod stays: --outside-ledger is warn, as the agent reported 1m15s ago: {USES}"
    )


async def test_an_event_about_what_the_agent_no_longer_sees_is_no_note(filled: FakeApiServer) -> None:
    uid = intruder(filled)
    says(filled)
    event(filled, uid, "GPUOutsideLedger", sentence(found(uid), "n1") + staying("--outside-ledger is warn"))

    assert (await later(filled, "intruder", seconds=75)).notes == ()


async def test_what_the_agent_says_now_counts_more_than_its_event(filled: FakeApiServer) -> None:
    uid = intruder(filled)
    says(filled)
    event(filled, uid, "GPUOutsideLedger", sentence(found(uid), "n1") + announcement(60))

    assert (await later(filled, "intruder", seconds=18)).verdict == "runs on n1"


async def test_a_pod_that_was_evicted_is_told_by_whom(filled: FakeApiServer) -> None:
    uid = intruder(filled, deletionTimestamp="2026-11-21T05:00:00Z")
    silent(filled)
    event(filled, uid, "GPUOutsideLedgerEvicted", f"evicted, by --outside-ledger of the node's agent: {USES}")

    assert (await later(filled, "intruder", seconds=18)).verdict == (
        f"it is being deleted on n1; the agent of n1 evicted it (--outside-ledger): {USES}"
    )


async def test_a_pod_that_asks_for_nothing_and_uses_nothing_is_none_of_ours(
    filled: FakeApiServer, tmp_path: Path
) -> None:
    intruder(filled)
    says(filled, found("another", evicted_in_seconds=1.0))

    assert "asks for no GPU" in await refused(filled, tmp_path, "intruder")
