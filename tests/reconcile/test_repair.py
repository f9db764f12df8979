"""Bringing a pod's annotation and the ledger together again."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from fractile.kube import paths
from fractile.model.placement import Placement
from fractile.model.units import PodUID
from fractile.reconcile import repair as module
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from tests.builders import CARD_MEMORY, in_use, on_card
from tests.fakes.apiserver import Fault
from tests.main.plane import Plane, plane, until

FULL = CARD_MEMORY
ASSIGNED = "ALIYUN_COM_GPU_MEM_ASSIGNED"


@pytest.fixture
async def p(monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Plane, None]:
    monkeypatch.setattr(module, "_RETRY", 0.02)
    async with plane() as made:
        yield made


@pytest.fixture
async def pod(p: Plane) -> Pod:
    """A pod bound to card 0 of n1."""
    found = p.submit("p")
    assert await p.binder.bind(BindingArgs("p", "default", found.metadata.uid, "n1")) is None
    p.server.requests.clear()
    return p.see()


@asynccontextmanager
async def repairing(p: Plane) -> AsyncGenerator[None, None]:
    task = asyncio.create_task(p.repair.run())
    yield
    task.cancel()
    await asyncio.wait([task])


def recorded(p: Plane) -> Placement:
    return placement.decode(p.annotations()[placement.ANNOTATION])


def told(p: Plane) -> list[str]:
    return [reason for _, reason, _ in p.events]


def choose(p: Plane, wanted: Placement) -> None:
    """The agent reports what kubelet chose, and the watch shows it."""
    p.annotate({placement.CHOICE_ANNOTATION: placement.encode(wanted)})
    p.see()


async def test_kubelets_choice_moves_the_hold_and_is_written_into_the_placement(p: Plane, pod: Pod) -> None:
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
        await until(lambda: p.free() == [FULL, FULL - 8138])  # both cards are charged until the answer is there
    assert recorded(p) == on_card(1, 8138)
    assert p.annotations()["ALIYUN_COM_GPU_MEM_IDX"] == "1"
    assert p.writes() == ["PATCH /api/v1/namespaces/default/pods/p"]
    p.see()
    assert p.events == []


async def test_a_choice_of_the_planned_card_is_confirmed(p: Plane, pod: Pod) -> None:
    choose(p, on_card(0, 8138))
    async with repairing(p):
        await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
    assert recorded(p) == on_card(0, 8138)


async def test_a_choice_without_room_is_refused_with_an_event_and_changes_nothing(p: Plane, pod: Pod) -> None:
    in_use(p.ledger, "n1", 0, 10_000)
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: p.events)
    assert recorded(p) == on_card(0, 8138)
    assert placement.CHOICE_ANNOTATION in p.annotations()
    assert p.free() == [FULL - 8138, FULL - 10_000]
    assert p.events == [
        (
            "p",
            "CardTaken",
            "kubelet chose other cards than planned, and card 1 has 6276 MiB and 100 percent of its cores free, "
            "8138 MiB and 0 percent are needed",
        )
    ]


async def test_a_refused_choice_is_granted_as_soon_as_there_is_room_and_told_once(p: Plane, pod: Pod) -> None:
    in_use(p.ledger, "n1", 0, 10_000)
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: p.events)
        await asyncio.sleep(0.1)
        p.handlers.gone(PodUID("filler-n1-1"))
        await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
        await until(lambda: p.free() == [FULL, FULL - 8138])
    assert recorded(p) == on_card(1, 8138)
    assert len(p.events) == 1


async def test_a_refused_choice_that_was_withdrawn_is_not_granted_later(p: Plane, pod: Pod) -> None:
    in_use(p.ledger, "n1", 0, 10_000)
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: p.events)
        p.annotate({placement.CHOICE_ANNOTATION: None})
        p.handlers.gone(PodUID("filler-n1-1"))
        await asyncio.sleep(0.1)
    assert p.free() == [FULL - 8138, FULL]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("nonsense", id="malformed"),
        pytest.param(placement.encode(on_card(0, 8138, node="n2")), id="another node"),
        pytest.param(placement.encode(on_card(1, 1)), id="less than asked"),
        pytest.param(placement.encode(on_card(1, 16_000)), id="more than asked"),
    ],
)
async def test_a_choice_that_makes_no_sense_moves_nothing_and_is_removed(p: Plane, pod: Pod, text: str) -> None:
    p.annotate({placement.CHOICE_ANNOTATION: text})
    p.see()
    async with repairing(p):
        await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
    assert recorded(p) == on_card(0, 8138)
    assert p.free() == [FULL - 8138, FULL]


@pytest.mark.parametrize(
    "text", ["", "nonsense", placement.encode(on_card(1, 8138)), placement.encode(on_card(0, 1)), None]
)
async def test_an_edited_placement_is_written_anew_from_the_ledger(p: Plane, pod: Pod, text: str | None) -> None:
    p.annotate({placement.ANNOTATION: text, "ALIYUN_COM_GPU_MEM_IDX": "7"})
    p.see()
    async with repairing(p):
        await until(lambda: p.writes())
    assert recorded(p) == on_card(0, 8138)
    assert p.annotations()["ALIYUN_COM_GPU_MEM_IDX"] == "0"
    assert p.free() == [FULL - 8138, FULL]
    assert [reason for _, reason, _ in p.events] == ["PlacementIgnored"]
    p.see()
    assert len(p.events) == 1


async def test_a_repair_does_not_take_back_that_the_card_was_handed_over(p: Plane, pod: Pod) -> None:
    p.annotate({placement.ANNOTATION: "nonsense", ASSIGNED: "true"})
    p.see()
    async with repairing(p):
        await until(lambda: p.annotations()[placement.ANNOTATION] != "nonsense")
    assert p.annotations()[ASSIGNED] == "true"


async def test_a_write_that_fails_is_tried_again(p: Plane, pod: Pod) -> None:
    p.server.inject(
        Fault(method="PATCH", status=500, times=5),
        Fault(method="PATCH", status=403),
        Fault(method="PATCH", drop="before", times=5),
    )
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: p.free() == [FULL, FULL - 8138])
    assert recorded(p) == on_card(1, 8138)


async def test_the_card_before_is_given_to_nobody_until_it_is_known_that_the_pod_has_left_it(
    p: Plane, pod: Pod
) -> None:
    """The write had no answer: the API server may show either card, and a leader after us would believe it."""
    p.server.inject(Fault(method="PATCH", drop="after", times=20))
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
        assert p.free() == [FULL - 8138, FULL - 8138]
    p.see()
    assert p.free() == [FULL, FULL - 8138]


async def test_a_move_that_arrives_after_a_later_write_is_refused(p: Plane, pod: Pod) -> None:
    choose(p, on_card(1, 8138))
    p.annotate({"note": "a write that the watch has not shown yet"})
    async with repairing(p):
        await until(lambda: p.writes())
        await asyncio.sleep(0.05)
        assert recorded(p) == on_card(0, 8138)
        p.see()
        await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
    assert recorded(p) == on_card(1, 8138)


async def test_a_move_that_was_refused_holds_its_card_no_longer_when_kubelet_chose_again(p: Plane, pod: Pod) -> None:
    """The write named a version of the pod that is past: it can never be stored."""
    choose(p, on_card(1, 8138))
    p.annotate({"note": "a write that the watch has not shown yet"})
    async with repairing(p):
        await until(lambda: p.writes())
        assert p.free() == [FULL - 8138, FULL - 8138]
        choose(p, on_card(7, 8138))  # which the node does not have
        await until(lambda: "CardTaken" in told(p))
        assert p.free() == [FULL - 8138, FULL]
    assert recorded(p) == on_card(0, 8138)


async def test_a_move_whose_write_may_still_arrive_holds_its_card(p: Plane, pod: Pod) -> None:
    """What the watch shows late is older than what the move was decided on."""
    p.annotate({placement.CHOICE_ANNOTATION: placement.encode(on_card(7, 8138))})
    late = p.stored("p")
    choose(p, on_card(1, 8138))
    p.repair.begin()
    p.repair.request(late)
    async with repairing(p):
        await until(lambda: "CardTaken" in told(p))
        assert p.free() == [FULL - 8138, FULL - 8138]


async def test_nobody_is_warned_of_a_pod_that_is_being_moved(p: Plane, pod: Pod) -> None:
    """The write had no answer, and the watch shows the pod before it, changed by somebody else."""
    p.server.inject(Fault(method="PATCH", drop="before", times=1000))
    choose(p, on_card(1, 8138))
    async with repairing(p):
        await until(lambda: p.writes())
        p.see()
        p.annotate({"note": "the move can no longer be stored"})
        p.see()
    assert p.events == []


async def test_nor_of_one_that_has_been_moved_when_the_watch_is_late(p: Plane, pod: Pod) -> None:
    choose(p, on_card(1, 8138))
    p.annotate({"note": "also before the move"})
    late = p.stored("p")
    p.repair.begin()
    p.repair.request(late)
    async with repairing(p):
        await until(lambda: p.free() == [FULL, FULL - 8138])
    p.handlers.changed(late)
    assert p.events == []
    p.annotate({placement.ANNOTATION: placement.encode(on_card(0, 8138))})
    p.see()
    assert told(p) == ["PlacementIgnored"], "that is no move of ours"
    assert p.free() == [FULL, FULL - 8138]


async def test_an_edit_while_the_pod_is_being_moved_is_told(p: Plane, pod: Pod) -> None:
    choose(p, on_card(1, 8138))
    p.repair.begin()
    p.annotate({placement.ANNOTATION: placement.encode(on_card(7, 8138))})
    p.see()
    assert told(p) == ["PlacementIgnored"]


async def test_moves_that_are_under_way_take_their_room_before_anybody_else(p: Plane, pod: Pod) -> None:
    """A new leader: the write of the one before may still arrive."""
    choose(p, on_card(1, 8138))
    p.repair.begin()
    assert p.free() == [FULL - 8138, FULL - 8138]
    assert p.writes() == []


async def test_a_move_says_under_which_lead_it_was_decided_and_how_long_it_may_take() -> None:
    async with plane(term="me/7") as p:
        p.node("n1", [])
        found = p.submit()
        assert await p.binder.bind(BindingArgs("p", "default", found.metadata.uid, "n1")) is None
        p.see()
        choose(p, on_card(1, 8138))
        async with repairing(p):
            await until(lambda: placement.CHOICE_ANNOTATION not in p.annotations())
        assert p.annotations()["fractile.dev/leader"] == "me/7"


async def test_a_pod_deleted_meanwhile_is_left_alone(p: Plane, pod: Pod) -> None:
    choose(p, on_card(1, 8138))
    p.server.delete(paths.pod("default", "p"))
    async with repairing(p):
        await until(lambda: p.writes())
        p.handlers.gone(PodUID(pod.metadata.uid))
        await asyncio.sleep(0.1)
    assert len(p.writes()) == 1
    assert p.free() == [FULL, FULL]


async def test_a_later_pod_of_the_same_name_is_not_given_the_placement(p: Plane, pod: Pod) -> None:
    choose(p, on_card(1, 8138))
    p.server.delete(paths.pod("default", "p"))
    p.create("p")
    async with repairing(p):
        await until(lambda: p.writes())
        await asyncio.sleep(0.05)
    assert placement.ANNOTATION not in p.annotations()
    assert len(p.writes()) == 1
