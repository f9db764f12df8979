"""A quiet cluster has no violation; each invariant, broken on purpose, is found, and no other with it."""

import msgspec
import pytest

from fractile.dialects.aliyun import MEMORY
from fractile.wire.fractile.device_ids import device_id
from tests.chaos.judging import invariants
from tests.chaos.judging.snapshot import LedgerReport, SeenPod, Snapshot
from tests.chaos.world import NAMESPACE, but, kinds, seen_pod, uuid, world

ONE, OTHER = seen_pod("one", node="n1"), seen_pod("other", node="n1")
QUIET = world(ONE, OTHER, seen_pod("third", node="n2", card=1), seen_pod("waits"))


def found(seen: Snapshot) -> set[str]:
    return kinds(invariants.violations(seen))


def test_a_quiet_cluster_has_none() -> None:
    assert invariants.violations(QUIET) == []


def test_a_card_that_holds_more_than_it_has() -> None:
    full = [seen_pod(f"p{i}", memory=6000, node="n1") for i in range(3)]
    seen = world(*full)
    assert found(seen) == {"overallocated"}
    assert "hold 18000 MiB" in invariants.violations(seen)[0]


def test_a_card_whose_time_is_promised_twice() -> None:
    text = ONE.metadata.annotations
    assert text is not None
    over = {key: value.replace('"cores":0', '"cores":60') for key, value in text.items()}
    pods = tuple(
        msgspec.structs.replace(p, metadata=msgspec.structs.replace(p.metadata, annotations=over)) for p in (ONE, OTHER)
    )
    assert found(but(world(*pods))) == {"overallocated"}


def test_a_placement_on_a_card_of_another_node() -> None:
    moved = msgspec.structs.replace(ONE, spec=msgspec.structs.replace(ONE.spec, node_name="n2"))
    assert "overallocated" in found(but(QUIET, pods=(moved, *QUIET.pods[1:])))


def test_a_bound_pod_without_a_placement() -> None:
    bare = msgspec.structs.replace(ONE, metadata=msgspec.structs.replace(ONE.metadata, annotations=None))
    assert "unplaced" in found(but(QUIET, pods=(bare, *QUIET.pods[1:])))


@pytest.mark.parametrize(
    "report",
    [None, LedgerReport(2, 0, 0), LedgerReport(4, 0, 0), LedgerReport(3, 1, 0), LedgerReport(3, 0, 1)],
    ids=["nobody leads", "one too few", "one too many", "one assumed", "one doubted"],
)
def test_a_ledger_that_says_something_else(report: LedgerReport | None) -> None:
    assert found(but(QUIET, ledger=report)) == {"ledger"}


def test_a_kubelet_that_gave_a_container_another_amount() -> None:
    first, *rest = QUIET.records["n1"]
    less = msgspec.structs.replace(first, ids=frozenset(list(first.ids)[1:]))
    assert found(but(QUIET, records={**QUIET.records, "n1": (less, *rest)})) == {"kubelet"}


def test_a_kubelet_that_knows_nothing_of_a_running_container() -> None:
    assert found(but(QUIET, records={**QUIET.records, "n1": QUIET.records["n1"][1:]})) == {"kubelet"}


def test_a_kubelet_that_lists_a_pod_which_is_no_more() -> None:
    ghost = {(NAMESPACE, "ghost", "main"): {MEMORY: frozenset({device_id(uuid("n1", 0), 9000)})}}
    assert found(but(QUIET, listed={**QUIET.listed, "n1": {**QUIET.listed["n1"], **ghost}})) == {"kubelet"}


def test_two_books_of_a_kubelet_that_differ() -> None:
    key = (NAMESPACE, "one", "main")
    listed = {**QUIET.listed["n1"], key: {MEMORY: frozenset({device_id(uuid("n1", 0), 0)})}}
    assert found(but(QUIET, listed={**QUIET.listed, "n1": listed})) == {"kubelet"}


def test_a_device_id_in_two_hands() -> None:
    first, second, *rest = QUIET.records["n1"]
    stolen = msgspec.structs.replace(second, ids=first.ids)
    seen = but(QUIET, records={**QUIET.records, "n1": (first, stolen, *rest)})
    assert "shared" in found(seen)
    dead = but(seen, pods=tuple(p for p in QUIET.pods if p.name != "other"))
    assert "shared" not in found(dead), "kubelet forgets with the next admission"


def test_a_directory_that_grants_something_else_or_is_not_there() -> None:
    first, *rest = QUIET.tokens
    for tokens in (rest, [msgspec.structs.replace(first, cards=((uuid("n1", 0), 1),)), *rest]):
        assert found(but(QUIET, tokens=tuple(tokens))) == {"tokens"}


def test_a_pod_on_its_way_need_not_have_everything() -> None:
    coming = seen_pod("coming", node="n2", phase="Pending")
    seen = world(ONE, coming)
    assert found(but(seen, records={"n1": seen.records["n1"], "n2": ()}, tokens=seen.tokens[:1])) == set()


def test_a_directory_without_an_owner_is_a_leak_when_it_is_old() -> None:
    seen = but(QUIET, pods=QUIET.pods[1:])
    assert invariants.unowned(seen) == {("n1", "t-one")}
    assert invariants.unowned(QUIET) == set()
    since = {("n1", "t-one"): 100.0}
    assert list(invariants.leaked(since, 400.0, 300.0)) == []
    assert kinds(list(invariants.leaked(since, 401.0, 300.0))) == {"leaked"}


def killed(now: SeenPod | None, *deleted: str) -> list[str]:
    pods = [OTHER] if now is None else [now, OTHER]
    return list(invariants.killed({ONE.uid: (ONE.name, ONE.life)}, world(*pods), deleted))


@pytest.mark.parametrize(
    "now",
    [
        None,
        seen_pod("one", node="n1", restarts=1),
        seen_pod("one", node="n1", phase="Failed", started=True),
        msgspec.structs.replace(seen_pod("one", node="n1"), metadata=msgspec.structs.replace(ONE.metadata, uid="new")),
    ],
    ids=["gone", "restarted", "failed", "another of that name"],
)
def test_a_running_pod_that_was_killed(now: SeenPod | None) -> None:
    assert kinds(killed(now)) == {"killed"}
    assert killed(now, "one") == [], "who was deleted may end"


def test_a_running_pod_that_runs_on() -> None:
    assert killed(ONE) == []
