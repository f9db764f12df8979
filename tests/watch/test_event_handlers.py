"""From the API's objects to the ledger: what is believed, and what is not."""

from collections.abc import AsyncGenerator

import msgspec
import pytest
from msgspec import structs

from fractile.dialects import tencent
from fractile.ledger.ledger import EntryState, Ledger
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import CardUUID, MemoryUnit, NodeName, PodUID
from fractile.watch import event_handlers
from fractile.watch.event_handlers import CardHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.fractile import placement
from fractile.wire.fractile.extended_resource import ExtendedResource, Used
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from tests.builders import (
    CARD_MEMORY,
    Clock,
    card,
    card_uuid,
    cards,
    cluster,
    container,
    given,
    in_use,
    on_card,
    piece,
    pod,
    resource,
)
from tests.builders import placement as placed
from tests.main.plane import Plane, plane

FULL = CARD_MEMORY
EIGHT = on_card(0, 8138)


class Fed:
    """Pod handlers with nothing behind them but a ledger; what they say is kept."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.ledger: Ledger = cluster({n: cards(n) for n in ("n1", "n2")}, clock=self.clock)
        self.waiting = WaitingPods()
        self.warnings: list[str] = []
        self.freed: list[NodeName] = []
        self.to_repair: list[str] = []
        self.handlers = PodHandlers(
            ledger=self.ledger,
            waiting=self.waiting,
            unit=MemoryUnit.MiB,
            warn=lambda pod, reason, message: self.warnings.append(f"{pod.metadata.name} {reason}: {message}"),
            freed=self.freed.append,
            needs_repair=lambda pod: self.to_repair.append(pod.metadata.name),
        )

    def free(self, node: str = "n1") -> list[int]:
        state = self.ledger.node(node)
        return [] if state is None else [c.free_memory for c in state.cards]


@pytest.fixture
def fed() -> Fed:
    return Fed()


def bound(text: str | None = None, *, node: str = "n1", name: str = "p", phase: str = "Running") -> Pod:
    """A bound pod that carries this text as its placement."""
    return pod(name, node=node, phase=phase, annotations={placement.ANNOTATION: text} if text is not None else None)


GOOD = bound(placement.encode(EIGHT))
UID = PodUID("uid-p")


def test_an_unbound_pod_waits_with_what_it_asks_for(fed: Fed) -> None:
    fed.handlers.changed(pod("p", container(memory=8138)))
    waiting = fed.waiting.find(UID)
    assert waiting is not None
    assert (waiting.namespace, waiting.name) == ("default", "p")
    assert isinstance(waiting.request, PodRequest)
    assert fed.free() == [FULL, FULL]


def test_an_unbound_pod_that_makes_no_sense_waits_with_its_refusal(fed: Fed) -> None:
    fed.handlers.changed(pod("p", container(memory="-1")))
    waiting = fed.waiting.find(UID)
    assert waiting is not None
    assert isinstance(waiting.request, Refusal)


def test_a_pod_that_asks_for_nothing_of_ours_is_not_remembered(fed: Fed) -> None:
    fed.handlers.changed(pod("p", container()))
    fed.handlers.changed(pod("q", container(), node="n1"))
    assert len(fed.waiting) == 0
    assert fed.warnings == []


def test_a_bound_pod_is_charged_and_no_longer_waits(fed: Fed) -> None:
    fed.handlers.changed(pod("p"))
    fed.handlers.changed(GOOD)
    assert len(fed.waiting) == 0
    assert fed.free() == [FULL - 8138, FULL]
    assert fed.warnings == fed.to_repair == []


def test_the_same_pod_again_is_charged_once(fed: Fed) -> None:
    for _ in range(5):
        fed.handlers.changed(GOOD)
    assert fed.free() == [FULL - 8138, FULL]
    assert fed.warnings == fed.to_repair == []


def test_a_bound_pod_whose_request_brings_out_an_error_of_ours_is_charged_all_the_same(
    fed: Fed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RecursionError

    monkeypatch.setattr(event_handlers, "parse_pod", broken)
    for one, free in ((GOOD, FULL - 8138), (bound(placement.encode(EIGHT), phase="Failed"), FULL)):
        try:
            fed.handlers.changed(one)
        except RecursionError:
            assert one is GOOD
        assert fed.free() == [free, FULL]
    for text in (None, "{", placement.encode(on_card(0, 8138, node="n2"))):
        with pytest.raises(RecursionError):
            fed.handlers.changed(bound(text))
        assert fed.free() == [FULL, FULL]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_holds_nothing_and_its_node_is_said_to_have_room(fed: Fed, phase: str) -> None:
    fed.handlers.changed(GOOD)
    fed.handlers.changed(bound(placement.encode(EIGHT), phase=phase))
    assert fed.free() == [FULL, FULL]
    assert fed.freed == ["n1"]


def test_a_deleted_pod_holds_nothing_and_its_node_is_said_to_have_room(fed: Fed) -> None:
    fed.handlers.changed(GOOD)
    fed.handlers.gone(UID)
    fed.handlers.gone(UID)
    assert fed.free() == [FULL, FULL]
    assert fed.freed == ["n1"]


def test_a_deleted_waiting_pod_waits_no_more(fed: Fed) -> None:
    fed.handlers.changed(pod("p"))
    fed.handlers.gone(UID)
    assert len(fed.waiting) == 0
    assert fed.freed == []


WITHOUT = (
    "p PlacementIgnored: the pod has no placement: it was bound without Fractile (by spec.nodeName, or by a scheduler "
    "that does not call Fractile), so it gets no card; delete it, and create it again without spec.nodeName"
)
NOT_BELIEVED = [
    pytest.param(bound(""), "malformed", id="empty"),
    pytest.param(bound("{"), "malformed", id="malformed"),
    pytest.param(bound('{"version": 2, "node": "n1"}'), "has version 2", id="a later version"),
    pytest.param(
        bound(placement.encode(on_card(0, 8138, node="n2"))), "names node n2, it runs on n1", id="another node"
    ),
    pytest.param(bound(placement.encode(on_card(0, 1))), "does not match its request", id="less than asked"),
    pytest.param(
        bound(placement.encode(placed(given("other", piece(card_uuid("n1", 0)))))),
        "must name the containers",
        id="names",
    ),
]


def test_a_pod_keeps_a_card_that_another_node_reports_now_and_is_told(fed: Fed) -> None:
    fed.handlers.changed(bound(placement.encode(placed(given("main", piece(card_uuid("n2", 0)))))))
    assert (fed.free(), fed.free("n2")) == ([FULL, FULL], [FULL - 8138, FULL])
    (warning,) = fed.warnings
    assert warning.startswith("p CardElsewhere: ")
    assert "card GPU-n2-0 is on n2, not on n1" in warning


def test_what_was_read_once_and_no_watch_has_shown_is_asked_for_again(fed: Fed) -> None:
    """A read that was answered before the list: the pod may have gone in between, and no watch would say so."""
    fed.handlers.looked(pod("p"))
    fed.handlers.looked(pod("q"))
    fed.clock.now += 34
    assert [(uid, read.name) for uid, read in fed.handlers.unseen(34)] == [(UID, "p"), (PodUID("uid-q"), "q")]
    fed.handlers.changed(pod("q"))
    fed.handlers.gone(UID)
    assert fed.handlers.unseen(34) == []


def test_a_pod_that_was_read_after_the_list_was_asked_for_is_not_taken_for_gone(fed: Fed) -> None:
    asked = fed.clock.now
    fed.clock.now += 1
    fed.handlers.looked(pod("p"))
    fed.handlers.listed(set(), asked)
    assert fed.waiting.find(UID) is not None
    fed.handlers.listed(set(), fed.clock.now + 1)
    assert fed.waiting.find(UID) is None
    assert fed.handlers.unseen(0) == []


@pytest.mark.parametrize(("found", "reason"), NOT_BELIEVED)
def test_a_placement_that_makes_no_sense_is_an_event_and_no_charge(fed: Fed, found: Pod, reason: str) -> None:
    fed.handlers.changed(found)
    assert fed.ledger.entry(UID) is None
    assert (fed.free(), fed.free("n2")) == ([FULL, FULL], [FULL, FULL])
    (warning,) = fed.warnings
    assert warning.startswith("p PlacementIgnored: Fractile rejects this pod's fractile.dev/placement: ")
    assert reason in warning
    assert fed.to_repair == []


def test_a_pod_that_was_bound_without_fractile_is_told_so_and_what_to_do(fed: Fed) -> None:
    fed.handlers.changed(bound(None))
    assert (fed.ledger.entry(UID), fed.free()) == (None, [FULL, FULL])
    assert fed.warnings == [WITHOUT]
    assert fed.to_repair == []


def test_a_pod_whose_annotation_was_removed_keeps_its_card_and_is_told_that_it_is_written_again(fed: Fed) -> None:
    fed.handlers.changed(GOOD)
    fed.handlers.changed(bound(None))
    assert fed.free() == [FULL - 8138, FULL]
    assert fed.warnings == ["p PlacementIgnored: the pod's fractile.dev/placement is missing; Fractile writes it again"]
    assert fed.to_repair == ["p"]


@pytest.mark.parametrize(("found", "reason"), [*NOT_BELIEVED, pytest.param(
    bound(placement.encode(on_card(1, 8138))), "was changed after the pod was bound", id="another card")])  # fmt: skip
def test_an_annotation_changed_after_binding_changes_no_charge_and_is_repaired(
    fed: Fed, found: Pod, reason: str
) -> None:
    fed.handlers.changed(GOOD)
    fed.handlers.changed(found)
    entry = fed.ledger.entry(UID)
    assert entry is not None
    assert (entry.state, entry.placement) == (EntryState.BOUND, EIGHT)
    assert fed.free() == [FULL - 8138, FULL]
    assert len(fed.warnings) == 1
    assert fed.to_repair == ["p"]


def test_an_assumed_pod_bound_elsewhere_by_another_gives_its_cards_back(fed: Fed) -> None:
    assert fed.ledger.assume(UID, EIGHT) is None
    fed.handlers.changed(bound(None, node="n2"))
    assert fed.warnings == [WITHOUT]
    assert fed.ledger.entry(UID) is None
    assert fed.free() == [FULL, FULL]
    assert fed.freed == ["n1"]
    assert fed.to_repair == []


def test_an_assumed_pod_bound_here_without_its_annotation_keeps_its_cards_and_gets_it(fed: Fed) -> None:
    assert fed.ledger.assume(UID, EIGHT) is None
    fed.handlers.changed(bound(None))
    entry = fed.ledger.entry(UID)
    assert entry is not None
    assert entry.state is EntryState.BOUND
    assert fed.to_repair == ["p"]


def test_two_placements_on_one_place_leave_the_second_without_a_charge_until_there_is_room(fed: Fed) -> None:
    in_use(fed.ledger, "n1", 10_000)
    fed.handlers.changed(GOOD)
    assert fed.ledger.conflicts() == {UID: EIGHT}
    assert "8138 MiB and 0 percent are needed" in fed.warnings[0]
    fed.handlers.gone(PodUID("filler-n1-0"))
    assert fed.ledger.conflicts() == {}
    assert fed.free() == [FULL - 8138, FULL]


def test_kubelets_own_choice_is_handed_to_repair(fed: Fed) -> None:
    both = {placement.ANNOTATION: placement.encode(EIGHT), placement.CHOICE_ANNOTATION: "anything"}
    fed.handlers.changed(pod("p", node="n1", annotations=both))
    assert fed.free() == [FULL - 8138, FULL]
    assert fed.to_repair == ["p"]


def test_pods_seen_in_any_order_give_the_same_ledger() -> None:
    pods = [bound(placement.encode(on_card(i % 2, 8138, node="n1")), name=f"p{i}") for i in range(2)]
    pods += [pod("waiting"), bound(None, name="foreign")]
    first, second = Fed(), Fed()
    for found in pods:
        first.handlers.changed(found)
    for found in reversed(pods):
        second.handlers.changed(found)
    assert first.free() == second.free() == [FULL - 8138, FULL - 8138]


# ── cards ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def card_handlers(fed: Fed) -> CardHandlers:
    return CardHandlers(fed.ledger, freed=fed.handlers.freed)


def test_a_reported_card_is_counted_and_its_node_said_to_have_room(fed: Fed) -> None:
    card_handlers(fed).changed(resource(card("n3", 0), "n3"))
    assert fed.free("n3") == [FULL]
    assert fed.freed == ["n3"]


def test_a_deleted_object_takes_its_card_away(fed: Fed) -> None:
    handlers = card_handlers(fed)
    handlers.changed(resource(card("n3", 0), "n3"))
    handlers.gone("gpu-n3-0")
    handlers.gone("gpu-n3-0")
    handlers.gone("never-seen")
    assert fed.free("n3") == []


def test_an_unhealthy_card_serves_nobody_until_it_is_well(fed: Fed) -> None:
    handlers = card_handlers(fed)
    handlers.changed(resource(card("n1", 0), "n1", phase="Unhealthy"))
    assert fed.free() == [FULL]
    handlers.changed(resource(card("n1", 0), "n1"))
    assert fed.free() == [FULL, FULL]


def test_an_agent_that_makes_objects_without_end_makes_the_ledger_no_larger(fed: Fed) -> None:
    """The ledger has as many rows for each of 5,000 nodes as for the node with most cards."""
    handlers = card_handlers(fed)
    for index in range(600):
        handlers.changed(resource(structs.replace(card("n3", index), index=0), "n3"))
    rows, _ = fed.ledger.arrays.memory.shape
    assert rows <= 128
    assert len(fed.ledger.cards("n3")) == 128
    handlers.changed(resource(card("n4", 0), "n4"))
    assert len(fed.ledger.cards("n4")) == 1


def test_a_card_has_room_again_when_another_object_of_its_node_is_gone(fed: Fed) -> None:
    handlers = card_handlers(fed)
    objects = [resource(structs.replace(card("n3", index), index=0), "n3") for index in range(129)]
    for one in [*objects, *objects]:
        handlers.changed(one)
    handlers.gone(objects[0].metadata.name)
    handlers.changed(objects[-1])
    handlers.changed(objects[0])
    found = {c.uuid for c in fed.ledger.cards("n3")}
    assert len(found) == 128
    assert objects[-1].spec.device_id in found


def same_name(first: str, second: str) -> tuple[ExtendedResource, ExtendedResource]:
    """Objects of two devices whose ids differ only in what names of objects do not have, on n3."""
    found = (card("n3", 0), card("n3", 1))
    one, other = (structs.replace(c, uuid=CardUUID(uuid)) for c, uuid in zip(found, (first, second), strict=True))
    return resource(one, "n3", name=first.lower()), resource(other, "n3", name=first.lower())


def made(again: ExtendedResource, uid: str) -> ExtendedResource:
    """The object as the API server has made it."""
    return structs.replace(again, metadata=structs.replace(again.metadata, uid=uid))


def test_an_object_that_is_made_again_for_another_device_leaves_no_ghost(fed: Fed) -> None:
    handlers = card_handlers(fed)
    before, after = same_name("GPU-a", "GPU-A")
    handlers.changed(made(before, "1"))
    handlers.changed(made(after, "2"))
    assert [c.uuid for c in fed.ledger.cards("n3")] == ["GPU-A"]


def test_an_object_that_names_another_device_than_before_is_not_believed(fed: Fed) -> None:
    handlers = card_handlers(fed)
    before, after = same_name("GPU-a", "GPU-A")
    handlers.changed(made(before, "1"))
    handlers.changed(made(after, "1"))
    assert [c.uuid for c in fed.ledger.cards("n3")] == ["GPU-a"]


def test_an_object_under_another_name_does_not_take_a_card_of_another_node(fed: Fed) -> None:
    handlers = card_handlers(fed)
    handlers.changed(resource(card("n1", 0), "n1"))
    handlers.changed(resource(card("n1", 0), "n2", name="gpu-mine"))
    assert (fed.free("n1"), fed.free("n2")) == ([FULL, FULL], [FULL, FULL])
    handlers.gone("gpu-mine")
    assert fed.free("n1") == [FULL, FULL]


def test_a_card_stays_on_its_node_as_long_as_its_object_exists(fed: Fed) -> None:
    handlers = card_handlers(fed)
    handlers.changed(made(resource(card("n1", 0), "n1"), "1"))
    handlers.changed(made(resource(card("n1", 0), "n2"), "1"))
    assert (fed.free("n1"), fed.free("n2")) == ([FULL, FULL], [FULL, FULL])


def test_a_card_that_was_carried_to_another_machine_counts_there_when_its_object_is_made_again(fed: Fed) -> None:
    handlers = card_handlers(fed)
    here, there = made(resource(card("n1", 0), "n1"), "1"), made(resource(card("n1", 0), "n2"), "2")
    handlers.changed(here)
    handlers.gone(here.metadata.name)
    handlers.changed(there)
    assert (fed.free("n1"), fed.free("n2")) == ([FULL], [FULL, FULL, FULL])


def test_deleting_an_object_that_another_node_had_made_gives_the_card_back(fed: Fed) -> None:
    """Made while the card's own object was away; a list shows the rightful one without a word of the deletion."""
    handlers = card_handlers(fed)
    handlers.gone(card("n1", 0).uuid.lower())
    handlers.changed(made(resource(card("n1", 0), "n2"), "1"))
    handlers.changed(made(resource(card("n1", 0), "n1"), "2"))
    assert (fed.free("n1"), fed.free("n2")) == ([FULL, FULL], [FULL, FULL])


@pytest.mark.parametrize("fields", [{"memory": "a lot"}, {"memory": "-1"}, {"index": -1}, {"index": 10**30}])
def test_an_impossible_card_is_ignored(fed: Fed, fields: dict[str, object]) -> None:
    good = resource(card("n3", 0), "n3")
    card_handlers(fed).changed(msgspec.structs.replace(good, spec=msgspec.structs.replace(good.spec, **fields)))
    assert fed.free("n3") == []


def test_a_card_that_grows_back_settles_the_conflict_of_its_pods(fed: Fed) -> None:
    handlers = card_handlers(fed)
    handlers.changed(resource(card("n1", 0, memory=4000), "n1"))
    fed.handlers.changed(GOOD)
    assert fed.ledger.conflicts() == {UID: EIGHT}
    handlers.changed(resource(card("n1", 0), "n1"))
    assert fed.ledger.conflicts() == {}
    assert fed.free() == [FULL - 8138, FULL]


def departing(memory: str, cores: int = 0, slices: int = 1) -> ExtendedResource:
    """Card 0 of node n1, of which processes of pods that are gone hold a part, by its agent's word."""
    found = resource(card("n1", 0), "n1")
    status = msgspec.structs.replace(found.status, departed=Used(memory=memory, cores=cores, slices=slices))
    return msgspec.structs.replace(found, status=status)


def test_what_processes_of_a_deleted_pod_hold_is_given_to_nobody_by_its_agents_word(fed: Fed) -> None:
    handlers = card_handlers(fed)
    fed.handlers.changed(GOOD)
    fed.handlers.gone(UID)
    handlers.changed(departing("8138Mi", 20))
    assert fed.free() == [FULL - 8138, FULL]
    assert fed.ledger.audit() == []
    fed.handlers.listed(set(), 10**9)  # no list of pods changes that
    handlers.changed(departing("8138Mi", 20))
    assert fed.free() == [FULL - 8138, FULL]
    handlers.changed(resource(card("n1", 0), "n1"))
    assert fed.free() == [FULL, FULL]
    assert fed.freed[-1] == "n1"
    assert fed.ledger.audit() == []


def test_what_is_withheld_goes_with_its_card(fed: Fed) -> None:
    handlers = card_handlers(fed)
    handlers.changed(departing("100Mi"))
    handlers.gone("gpu-n1-0")
    handlers.changed(resource(card("n1", 0), "n1"))
    assert fed.free() == [FULL, FULL]
    assert fed.ledger.audit() == []


@pytest.mark.parametrize(
    ("memory", "cores", "left"),
    [("9999999Gi", 0, 0), ("10Mi", 10**9, FULL - 10), ("-5Mi", -3, FULL), ("", 0, FULL)],
    ids=["more than there is", "more than all cores", "less than nothing", "nothing"],
)
def test_no_word_of_an_agent_takes_more_than_the_card(fed: Fed, memory: str, cores: int, left: int) -> None:
    card_handlers(fed).changed(departing(memory, cores))
    node = fed.ledger.node("n1")
    assert node is not None
    assert node.cards[0].free_memory == left
    assert 0 <= node.cards[0].free_cores <= 100


# ── together with bind ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        yield made


async def test_a_new_control_plane_reads_what_the_old_one_wrote(p: Plane) -> None:
    for i, size in enumerate((8138, 4000, 16_276)):
        found = p.submit(f"p{i}", container(memory=size))
        assert await p.binder.bind(BindingArgs(f"p{i}", "default", found.metadata.uid, "n1" if i < 2 else "n2")) is None
    fresh = Fed()
    for i in (2, 0, 1):
        fresh.handlers.changed(p.stored(f"p{i}"))
    assert [fresh.ledger.node(n) for n in ("n1", "n2")] == [p.ledger.node(n) for n in ("n1", "n2")]
    assert fresh.warnings == []


def test_an_edit_of_its_annotations_takes_nothing_from_a_bound_pod() -> None:
    fed = Fed()
    share = container("main", limits={tencent.CORE: "50", tencent.MEMORY: "30"})
    held = placed(given("main", piece(card_uuid("n1", 0), 7680, 50)))
    annotations = {placement.ANNOTATION: placement.encode(held), tencent.LIMIT: "nonsense"}
    fed.handlers.changed(pod("p", share, node="n1", annotations=annotations))
    assert fed.free() == [FULL - 7680, FULL]
    assert fed.warnings == []
    fed.handlers.changed(pod("q", share, annotations={tencent.LIMIT: "nonsense"}))
    (waiting,) = fed.waiting.oldest_first()
    assert isinstance(waiting.request, Refusal)
