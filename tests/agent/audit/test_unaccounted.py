"""Which use of a card is outside the ledger."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.agent.audit.unaccounted import Finding, Ledgers, attribute
from fractile.agent.limits.slices import Granted
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.procfs import Process
from fractile.model.units import CardUUID, ContainerName, PodUID
from fractile.nvml.meter import CardReading, GpuProcess
from fractile.region.counters import Account, CardCount, Counters, Member
from fractile.region.page import FLAG_LOST, FLAG_OFF, CardLimits, ContainerLimits
from fractile.region.usage import Unreadable

MIB = 2**20
A, B = CardUUID("GPU-a"), CardUUID("GPU-b")
POD = PodUID("pod-1")
CONTEXT = 256 * MIB
QUOTA = 4096 * MIB


def granted(token: str = "t1", *, card: CardUUID = A, flags: int = 0, context: int = CONTEXT) -> Granted:
    limits = ContainerLimits(
        pod_uid=POD,
        namespace="ns",
        pod="p",
        container=ContainerName("main"),
        cards=(CardLimits(uuid=card, memory=QUOTA, context=context),),
        flags=flags,
    )
    return Granted(token, Path("/nowhere"), 0.0, limits)


def process(pid: int = 100, *, token: str = "t1", uid: str = POD, inner: int = 7, start: int = 5) -> Process:
    places = (CgroupPlace(PodUID(uid), "c" * 64),) if uid else ()
    return Process(pid, start, "job", inner, 4026, places, token)


def ledger(used: int, *members: Process) -> Counters:
    return Counters(
        (CardCount(used, used, 0),),
        tuple(
            Member(n, 1, m.inner_pid, m.start_time, m.pid_namespace, (Account(used, 1, 0, 0),))
            for n, m in enumerate(members)
        ),
    )


def reading(*processes: GpuProcess, card: CardUUID = A) -> CardReading:
    return CardReading(card, 40960 * MIB, 0, 0, processes)


def found(
    on_card: list[CardReading],
    who: list[Process],
    all_granted: list[Granted],
    looks: Ledgers,
) -> list[Finding]:
    return list(attribute(on_card, {p.pid: p for p in who}, all_granted, looks).findings)


def one(held: int | None, used: int, *, g: Granted | None = None, member: bool = True) -> list[Finding]:
    """A single process that holds ``held`` by the driver, in a container whose ledger says ``used``."""
    p = process()
    looks = {"t1": (ledger(used, *([p] if member else [])),)}
    return found([reading(GpuProcess(p.pid, held))], [p], [g or granted()], looks)


def test_a_process_that_holds_what_it_accounts_for_is_no_finding() -> None:
    assert one(1000 * MIB, 1000 * MIB) == []


@pytest.mark.parametrize(
    ("held", "used", "kinds"),
    [
        pytest.param(1064, 1000, [], id="at the margin"),
        pytest.param(1065, 1000, [("over-ledger", 65)], id="above the margin"),
        pytest.param(1000, 4000, [], id="less than it accounts for"),
        pytest.param(QUOTA // MIB + 65, 9999, [("over-quota", 0)], id="the ledger's word does not raise the quota"),
        pytest.param(QUOTA // MIB + 65, 0, [("over-quota", QUOTA // MIB + 65)], id="both: the quota is what counts"),
    ],
)
def test_memory_is_compared_with_ledger_and_quota(held: int, used: int, kinds: list[tuple[str, int]]) -> None:
    assert [(f.kind, f.beyond // MIB) for f in one(held * MIB, used * MIB)] == kinds


def test_where_nobody_measured_contexts_each_process_may_have_an_unknown_one() -> None:
    assert one(1000 * MIB, 500 * MIB, g=granted(context=0)) == []
    assert [f.kind for f in one(1100 * MIB, 500 * MIB, g=granted(context=0))] == ["over-ledger"]


def test_a_process_that_its_region_does_not_know_is_outside() -> None:
    (finding,) = one(300 * MIB, 5000 * MIB, member=False)
    assert (finding.kind, finding.bytes, finding.beyond) == ("not-in-ledger", 300 * MIB, 300 * MIB)
    assert finding.process == process()
    assert finding.granted == granted()


def test_a_region_that_cannot_be_read_knows_nobody() -> None:
    p = process()
    looks = {"t1": (Unreadable("it is not a regular file"),)}
    assert [f.kind for f in found([reading(GpuProcess(p.pid, 1))], [p], [granted()], looks)] == ["not-in-ledger"]


def test_of_a_container_whose_directory_was_lost_only_the_quota_is_compared() -> None:
    lost = granted(flags=FLAG_LOST)
    assert one(QUOTA, 0, g=lost, member=False) == []
    (finding,) = one(QUOTA + 65 * MIB, 0, g=lost, member=False)
    assert (finding.kind, finding.beyond, finding.granted) == ("over-quota", 0, lost)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(process(inner=8), id="another pid"),
        pytest.param(process(start=6), id="the same pid, used again"),
    ],
)
def test_a_slot_of_another_process_does_not_cover_it(other: Process) -> None:
    p = process()
    looks = {"t1": (ledger(10**12, other),)}
    assert [f.kind for f in found([reading(GpuProcess(p.pid, 1))], [p], [granted()], looks)] == ["not-in-ledger"]


def test_what_either_look_accounts_for_counts() -> None:
    p = process()
    on_card = [reading(GpuProcess(p.pid, 1000 * MIB))]
    before_and_after = {"t1": (ledger(0), ledger(1000 * MIB, p))}
    assert found(on_card, [p], [granted()], before_and_after) == []
    after_and_before = {"t1": (ledger(1000 * MIB, p), ledger(0))}
    assert found(on_card, [p], [granted()], after_and_before) == []


def test_all_processes_of_a_container_are_compared_together() -> None:
    p, q = process(100), process(101, inner=8)
    on_card = [reading(GpuProcess(100, 600 * MIB), GpuProcess(101, 600 * MIB))]
    assert found(on_card, [p, q], [granted()], {"t1": (ledger(1200 * MIB, p, q),)}) == []
    (finding,) = found(on_card, [p, q], [granted()], {"t1": (ledger(1000 * MIB, p, q),)})
    assert (finding.kind, finding.process, finding.bytes, finding.accounted) == (
        "over-ledger",
        None,
        1200 * MIB,
        1000 * MIB,
    )


def test_a_pod_without_a_slice_of_the_card_is_outside() -> None:
    stranger = process(token="", uid="pod-2")
    assert [f.kind for f in found([reading(GpuProcess(100, 1))], [stranger], [granted()], {})] == ["no-slice"]
    elsewhere = process()  # its slice is on the other card
    kinds = [f.kind for f in found([reading(GpuProcess(100, 1), card=B)], [elsewhere], [granted()], {})]
    assert kinds == ["no-slice"]


def test_who_hides_its_directory_from_itself_is_still_of_its_pod() -> None:
    hidden = process(token="")
    assert [f.kind for f in found([reading(GpuProcess(100, 1))], [hidden], [granted()], {})] == ["not-in-ledger"]


def test_who_shows_itself_the_directory_of_another_pod_is_still_of_its_own() -> None:
    """In a mount namespace of its own a process may mount a folder of any name at /etc/fractile."""
    posing = process(token="t1", uid="pod-2")
    result = attribute([reading(GpuProcess(100, QUOTA * 2))], {100: posing}, [granted()], {"t1": (ledger(0),)})
    assert [(f.kind, f.granted) for f in result.findings] == [("no-slice", None)]
    assert result.by_slice == {}


def test_a_process_that_a_trusted_container_started_beside_itself_is_trusted_too() -> None:
    """A container engine in a container: the pod's cgroup, but not its mounts."""
    hidden = process(token="")
    assert found([reading(GpuProcess(100, 1))], [hidden], [granted(flags=FLAG_OFF)], {}) == []
    elsewhere = found([reading(GpuProcess(100, 1), card=B)], [hidden], [granted(flags=FLAG_OFF)], {})
    assert [f.kind for f in elsewhere] == ["no-slice"]


def test_a_process_of_the_host_is_told_apart() -> None:
    host = process(token="", uid="")
    (finding,) = found([reading(GpuProcess(100, 1))], [host], [granted()], {})
    assert (finding.kind, finding.granted) == ("not-a-pod", None)


def test_trusted_containers_are_not_compared_but_their_processes_are_known() -> None:
    p = process()
    trusted = granted(flags=FLAG_OFF)
    result = attribute([reading(GpuProcess(100, QUOTA * 2))], {100: p}, [trusted], {"t1": (ledger(0),)})
    assert result.findings == ()
    assert [x.process for x in result.by_slice["t1", A]] == [p]


def test_what_has_ended_and_what_the_driver_does_not_list_is_nobodys() -> None:
    assert found([reading(GpuProcess(100, 1))], [], [granted()], {}) == []
    assert found([CardReading(A, 1, 1, None, None)], [process()], [granted()], {}) == []


def test_memory_that_the_driver_does_not_tell_is_no_finding() -> None:
    assert one(None, 0) == []


@given(
    held=st.lists(st.integers(0, 8192), min_size=1, max_size=4),
    used=st.integers(0, 8192),
    quota_of_ledger=st.booleans(),
)
def test_within_ledger_and_quota_nobody_is_ever_accused(held: list[int], used: int, quota_of_ledger: bool) -> None:
    members = [process(100 + n, inner=n + 1) for n in range(len(held))]
    on_card = [reading(*(GpuProcess(m.pid, h * MIB) for m, h in zip(members, held, strict=True)))]
    kinds = [f.kind for f in found(on_card, members, [granted()], {"t1": (ledger(used * MIB, *members),)})]
    if sum(held) <= min(used, QUOTA // MIB):
        assert kinds == []
    if sum(held) > min(used, QUOTA // MIB) + 64:
        assert len(kinds) == 1
