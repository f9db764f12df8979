"""Non-GPU devices: counted by shares, in arrays of their own, beside the cards of their node."""

from fractile.ledger.ledger import Ledger
from fractile.model.card import DeviceKind
from fractile.model.placement import Placement, Slice
from fractile.model.refusal import Code
from fractile.model.units import CardUUID, MiB, NodeName, PodUID
from tests.builders import card, card_uuid, cluster, device, given, piece, placement

IB = device(shares=2).uuid
N1 = NodeName("n1")


def node() -> Ledger:
    return cluster({"n1": [card(), device(shares=2)]})


def share(count: int = 1, of: CardUUID = IB) -> Slice:
    return Slice(of, MiB(0), shares=count)


def on(*slices: Slice) -> Placement:
    return placement(given("main", *slices))


def free(ledger: Ledger) -> list[int]:
    state = ledger.node("n1")
    assert state is not None
    return [d.free_memory for d in state.others]


def test_a_node_shows_its_other_devices_beside_its_cards() -> None:
    state = node().node("n1")
    assert state is not None
    assert [c.uuid for c in state.cards] == [card_uuid("n1", 0)]
    assert [(d.uuid, d.memory, d.free_memory, d.idle) for d in state.others] == [(IB, 2, 2, True)]


def test_a_node_without_cards_is_there_for_its_other_devices() -> None:
    state = cluster({"n1": [device()]}).node("n1")
    assert state is not None
    assert state.cards == ()


def test_so_many_pods_share_a_device_as_it_says() -> None:
    ledger = node()
    assert ledger.assume(PodUID("a"), on(share())) is None
    assert ledger.observe(PodUID("b"), on(share())) is None
    refusal = ledger.assume(PodUID("c"), on(share()))
    assert refusal is not None
    assert (refusal.code, refusal.message) == (Code.NO_ROOM, "infiniband 0 has 0 shares free")
    assert free(ledger) == [0]
    ledger.release(PodUID("a"))
    assert free(ledger) == [1]
    assert ledger.audit() == []


def test_a_pod_holds_a_card_and_a_device() -> None:
    ledger = node()
    assert ledger.assume(PodUID("a"), on(piece(card_uuid("n1", 0), 8138), share())) is None
    state = ledger.node("n1")
    assert state is not None
    assert (state.cards[0].free_memory, state.others[0].free_memory) == (16276 - 8138, 1)
    assert ledger.arrays_of(DeviceKind.OTHER).node_free[ledger.arrays_of(DeviceKind.OTHER).find("n1")] == 1
    assert ledger.audit() == []


def test_memory_of_a_device_and_shares_of_a_card_are_no_placements() -> None:
    ledger = node()
    for wrong in (on(piece(IB, 1)), on(share(of=card_uuid("n1", 0))), on(Slice(IB, MiB(1), shares=1))):
        refusal = ledger.observe(PodUID("a"), wrong)
        assert refusal is not None
        assert refusal.code is Code.MALFORMED
        ledger.release(PodUID("a"))
    assert ledger.audit() == []


def test_a_device_that_is_gone_or_sick_takes_nobody_and_finds_its_pods_again() -> None:
    ledger = node()
    assert ledger.observe(PodUID("a"), on(share())) is None
    ledger.put_card(N1, device(shares=2, healthy=False))
    assert free(ledger) == []
    ledger.put_card(N1, device(shares=2))
    assert free(ledger) == [1]
    ledger.drop_card(IB)
    assert free(ledger) == []
    ledger.put_card(N1, device(shares=3))
    assert free(ledger) == [2]
    assert ledger.audit() == []


def test_a_device_that_allows_fewer_shares_is_in_debt_until_pods_leave() -> None:
    ledger = node()
    for uid in "ab":
        assert ledger.observe(PodUID(uid), on(share())) is None
    ledger.put_card(N1, device(shares=1))
    assert free(ledger) == [-1]
    ledger.release(PodUID("a"))
    assert free(ledger) == [0]
    assert ledger.assume(PodUID("c"), on(share())) is not None
