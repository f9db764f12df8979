"""No container starts on a card that is promised to others already, and who was granted first keeps."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from fractile.agent.audit.departed import DepartedPods
from fractile.agent.deviceplugin import prestart
from fractile.agent.deviceplugin.precedence import Precedence
from fractile.agent.deviceplugin.prestart import too_much
from fractile.agent.kubelet.owner import Denied
from fractile.agent.limits import limits_writer
from fractile.agent.limits.slices import Slices
from fractile.kube.events import EventRecorder
from fractile.kube.reflector import Gone
from fractile.model.placement import Charge
from fractile.model.request import Role
from fractile.model.units import CardUUID, MiB, Percent
from fractile.region import directory
from tests.agent.deviceplugin.start import Start, ids, start
from tests.agent.node.test_cgroup_tree import Machine
from tests.agent.world import CARDS, CORE, MEM, Asks, adapter, card, share
from tests.region.writer import alive

A, B = CARDS
FOUR = ids(A, 4)


@pytest.fixture
async def s() -> AsyncGenerator[Start]:
    async with start() as made:
        yield made


async def test_before_the_other_pods_of_the_node_are_known_nothing_starts(
    s: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prestart, "_SYNC", 0.05)
    s.four()
    watch = s.pods.follow()
    async with asyncio.timeout(5):
        denied = await s.check(FOUR)
    assert denied == Denied("the node's other pods are not known yet: the API server has not listed them")
    watch.synced.set()
    assert await s.check(FOUR) is None


async def test_a_card_that_is_not_on_the_node_is_given_to_nobody(s: Start) -> None:
    """Nothing is known of the init container but its placement, which names a card of before."""
    gone = card(7)
    pod = s.bind(Asks("warm", 2, role=Role.INIT), Asks("main", 4), on={"warm": [gone], "main": [A]})
    s.holds(pod, "main", FOUR)
    s.lose_checkpoint()
    s.list(pod, "main", FOUR)
    async with s.listing():
        assert await s.check(FOUR) == Denied(f"card {gone.uuid} of the placement does not answer on this node")


async def test_the_pods_of_the_node_share_a_card_to_its_last_mib_and_not_beyond(s: Start) -> None:
    first = s.bind(Asks("main", 12), on={"main": [A]})
    s.holds(first, "main", ids(A, 12))
    second = s.bind(Asks("main", 4), on={"main": [A]})
    s.holds(second, "main", ids(A, 4, 12))
    for held in (ids(A, 12), ids(A, 4, 12)):
        assert await s.check(held) is None
    third = s.bind(share("main", 1, 1), on={"main": [A]})
    token = s.holds(third, "main", ids(A, 1), CORE)
    assert await s.check(ids(A, 1), CORE) == Denied(
        f"card 0 ({A.uuid}) has 16384 MiB and the pods placed on it need 16640 MiB, of which 256 for pod "
        f"default/{third.metadata.name}"
    )
    assert s.limits(token) is None


async def test_a_container_for_which_the_arbiter_has_no_seat_does_not_start(
    s: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_writer, "SEATS", 1)
    s.four()
    assert await s.check(FOUR) is None
    pod = s.bind(Asks("main", 2), on={"main": [B]})
    token = s.holds(pod, "main", ids(B, 2))
    denied = await s.check(ids(B, 2))
    assert denied is not None
    assert denied.reason.startswith("1 containers of this node hold a part of a card")
    assert s.limits(token) is None
    assert await s.check(FOUR) is None  # who has a seat starts again


async def test_a_seat_is_taken_by_a_container_that_starts_and_not_by_those_that_may_follow_it(s: Start) -> None:
    names = [*(f"i{n}" for n in range(20)), "main"]
    asks = [Asks(name, 4, role=Role.INIT) for name in names[:-1]]
    pod = s.bind(*asks, Asks("main", 4), on={name: [A] for name in names})
    tokens = [s.holds(pod, name, FOUR) for name in names]
    for number in range(1, len(names) + 1):
        assert await s.check(FOUR) is None
        granted = [limits.container for token in tokens if (limits := s.limits(token)) is not None]
        assert granted == names[:number]
    assert await s.check(FOUR) is None, "the last one starts again"


async def test_where_the_pages_were_removed_the_status_says_which_container_comes_next(s: Start) -> None:
    names = ["i0", "i1", "i2", "main"]
    asks = [Asks(name, 4, role=Role.INIT) for name in names[:-1]]
    pod = s.bind(*asks, Asks("main", 4), on={name: [A] for name in names})
    tokens = [s.holds(pod, name, FOUR) for name in names]
    states = {"i0": "terminated", "i1": "terminated", "i2": "waiting"}
    shown = [{"name": name, "state": {state: dict[str, str]()}} for name, state in states.items()]
    s.world.server.merge(f"{s.path(pod)}/status", {"status": {"initContainerStatuses": shown}})
    assert await s.check(FOUR) is None
    assert [s.limits(token) is not None for token in tokens] == [True, True, True, False]


def test_the_agent_knows_how_many_seats_the_arbiter_has() -> None:
    schedule = Path(__file__).parents[3] / "native/arbiter/schedule.h"
    assert f"#define SCHEDULE_TENANTS {limits_writer.SEATS}\n" in schedule.read_text()


async def test_each_card_of_a_pod_is_looked_at(s: Start) -> None:
    s.bind(Asks("main", 16), on={"main": [B]})
    pod = s.bind(Asks("a", 4), Asks("b", 4), on={"a": [A], "b": [B]})
    s.holds(pod, "a", FOUR)
    s.holds(pod, "b", ids(B, 4))
    denied = await s.check(FOUR)
    assert denied is not None
    assert denied.reason.startswith(f"card 1 ({B.uuid}) has 16384 MiB")


async def test_a_pod_that_no_watch_has_shown_counts_from_its_first_start(s: Start) -> None:
    """Its record names a pod that the view lacks, so kubelet's list is read."""
    unseen = s.world.bind(Asks("main", 16), on={"main": [A]})
    s.holds(unseen, "main", ids(A, 16))
    s.list(unseen, "main", ids(A, 16))
    async with s.listing():
        assert await s.check(ids(A, 16)) is None
    pod = s.bind(share("main", 1, 1), on={"main": [A]})
    s.holds(pod, "main", ids(A, 1), CORE)
    denied = await s.check(ids(A, 1), CORE)
    assert denied is not None
    assert "need 16640 MiB" in denied.reason


def charge(memory: int = 0, cores: int = 0, *, coreless: bool = False, shares: int = 0) -> Charge:
    return Charge(CardUUID(A.uuid), MiB(memory), Percent(cores), coreless, shares=shares)


@pytest.mark.parametrize(
    ("others", "mine", "said"),
    [
        pytest.param([charge(8192, 50)], charge(8192, 50), "", id="all of it"),
        pytest.param([charge(0, 99)], charge(1, 0, coreless=True), "", id="one percent is left for the coreless"),
        pytest.param(
            [charge(8192)],
            charge(8193),
            f"card 0 ({A.uuid}) has 16384 MiB and the pods placed on it need 16385 MiB, of which 8193 for pod ns/p",
            id="a MiB too much",
        ),
        pytest.param(
            [charge(1, 60)],
            charge(1, 41),
            f"the pods on card 0 ({A.uuid}) need 101 % of its cores, of which 41 % for pod ns/p; 100 % can be promised "
            "only if every container has a share",
            id="a percent too much",
        ),
        pytest.param(
            [charge(1, 100)],
            charge(1, 0, coreless=True),
            f"the pods on card 0 ({A.uuid}) need 100 % of its cores, of which 0 % for pod ns/p; 100 % can be promised "
            "only if every container has a share",
            id="nothing is left for the coreless",
        ),
    ],
)
def test_a_card_is_full_when_its_memory_or_its_cores_are_promised(
    others: list[Charge], mine: Charge, said: str
) -> None:
    assert too_much(A, [*others, mine], mine, "ns/p") == (Denied(said) if said else None)


@pytest.mark.parametrize("shares", [1, 2])
def test_a_device_is_full_when_its_shares_are_promised(shares: int) -> None:
    device = adapter(0, shares=3).device
    mine = charge(shares=shares)
    denied = too_much(device, [charge(shares=2), mine], mine, "ns/p")
    assert denied == (
        Denied(f"infiniband {device.uuid} has 3 share(s) and the pods placed on it need 4, of which 2 for pod ns/p")
        if shares == 2
        else None
    )


# ── who came first ───────────────────────────────────────────────────────────────────────────────────────────────────


def precedence(s: Start) -> Precedence:
    """As the agent's wiring makes it, on a machine without processes."""
    departed = DepartedPods(
        Slices(s.journal), s.pods, EventRecorder(s.client, "test"), cgroups=Machine(s.world.root).tree()
    )
    return Precedence(s.pods, departed)


async def test_a_pod_that_was_granted_its_part_first_starts_again_whatever_came_later(s: Start) -> None:
    first = s.bind(Asks("main", 10), on={"main": [A]})
    s.holds(first, "main", ids(A, 10))
    careful = s.prestart(precedence=precedence(s))
    assert await careful.check(MEM, ids(A, 10)) is None
    later = s.bind(Asks("main", 12), on={"main": [A]})  # an unlucky write
    s.holds(later, "main", ids(A, 12, 4))
    assert await careful.check(MEM, ids(A, 10)) is None
    denied = await careful.check(MEM, ids(A, 12, 4))
    assert denied is not None
    assert "need 22528 MiB, of which 12288 for pod" in denied.reason
    assert await s.check(ids(A, 10)) is not None  # by sums alone


async def test_what_is_held_by_a_deleted_pod_is_named(s: Start) -> None:
    old = s.bind(Asks("main", 10), on={"main": [A]}, name="old")
    token = s.holds(old, "main", ids(A, 10))
    careful = s.prestart(precedence=precedence(s))
    assert await careful.check(MEM, ids(A, 10)) is None
    s.world.server.delete(s.path(old))
    s.pods.gone(Gone("default", "old", old.metadata.uid))
    new = s.bind(Asks("main", 12), on={"main": [A]}, name="new")
    s.holds(new, "main", ids(A, 12))
    with alive(s.journal.path(token) / directory.REGION, 0):
        assert await careful.check(MEM, ids(A, 12)) == Denied(
            f"card 0 ({A.uuid}) has 16384 MiB and the pods placed on it need 22528 MiB, of which 12288 for pod "
            "default/new; processes of default/old, deleted already, still hold a part of it"
        )
    assert await careful.check(MEM, ids(A, 12)) is None
