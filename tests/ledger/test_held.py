"""What pods hold of one card in all, and the sentences that say why it cannot bear one more."""

import pytest

from fractile.ledger.held import HeldOnDevice, check, size
from fractile.model.card import Card
from fractile.model.placement import Charge
from fractile.model.refusal import Code, Refusal
from fractile.model.units import CardUUID, MiB, Percent
from tests.builders import card, device

CARD = card("n1", 3, memory=1000)
IB = device("n1", 2, shares=3)


def charge(memory: int = 0, cores: int = 0, *, coreless: bool = False, slots: int = 0, shares: int = 0) -> Charge:
    return Charge(CardUUID("any"), MiB(memory), Percent(cores), coreless, slots, 2, shares)


def test_a_charge_adds_each_amount_and_takes_it_back() -> None:
    held = HeldOnDevice()
    held.add(charge(300, 20, coreless=True, slots=4), 1)
    held.add(charge(100, 5, coreless=True, slots=2), 1)
    held.add(charge(10, 1), 1)
    assert held == HeldOnDevice(size=410, cores=26, pods=3, coreless=2, slots=6, slices=6)
    held.add(charge(300, 20, coreless=True, slots=4), -1)
    assert held == HeldOnDevice(size=110, cores=6, pods=2, coreless=1, slots=2, slices=4)


def test_of_a_device_that_is_no_gpu_shares_are_added() -> None:
    held = HeldOnDevice()
    held.add(charge(shares=2), 1)
    held.add(charge(shares=1), 1)
    assert held.size == 3


def test_a_gpu_has_memory_and_another_device_has_shares() -> None:
    assert (size(CARD), size(IB)) == (1000, 3)


@pytest.mark.parametrize(
    ("of", "wrong"),
    [
        pytest.param(CARD, charge(shares=1), id="shares of a GPU"),
        pytest.param(IB, charge(1), id="memory of a device"),
        pytest.param(IB, charge(1, shares=1), id="memory and shares of a device"),
        pytest.param(IB, charge(cores=1, shares=1), id="cores and shares of a device"),
    ],
)
def test_a_charge_in_the_wrong_unit_is_malformed(of: Card, wrong: Charge) -> None:
    found = check(of, HeldOnDevice(), wrong, slots=9)
    assert found == Refusal(Code.MALFORMED, f"card {of.uuid} is a {of.type}, which is not counted that way")


def test_all_shares_of_a_device_are_given_and_no_more() -> None:
    assert check(IB, HeldOnDevice(size=1), charge(shares=2), slots=9) is None
    assert check(IB, HeldOnDevice(size=2), charge(shares=2), slots=9) == Refusal(
        Code.NO_ROOM, "infiniband 2 has 1 shares free"
    )
    assert check(IB, HeldOnDevice(size=4), charge(shares=1), slots=9) == Refusal(
        Code.NO_ROOM, "infiniband 2 has 0 shares free"
    )


def test_all_memory_of_a_card_is_given_and_no_more() -> None:
    assert check(CARD, HeldOnDevice(size=400, cores=90), charge(600, 10), slots=9) is None
    assert check(CARD, HeldOnDevice(size=400, cores=90), charge(601, 2), slots=9) == Refusal(
        Code.NO_ROOM, "card 3 has 600 MiB and 10 percent of its cores free, 601 MiB and 2 percent are needed"
    )


def test_all_cores_of_a_card_are_given_and_no_more() -> None:
    assert check(CARD, HeldOnDevice(cores=70), charge(1, 30), slots=9) is None
    assert check(CARD, HeldOnDevice(cores=70), charge(1, 31), slots=9) == Refusal(
        Code.NO_ROOM, "card 3 has 1000 MiB and 30 percent of its cores free, 1 MiB and 31 percent are needed"
    )


@pytest.mark.parametrize("held", [HeldOnDevice(cores=70, coreless=1), HeldOnDevice(cores=70)], ids=["there", "coming"])
def test_beside_a_container_without_a_share_one_percent_stays_free(held: HeldOnDevice) -> None:
    comes = not held.coreless
    assert check(CARD, held, charge(1, 29, coreless=comes), slots=9) is None
    found = check(CARD, held, charge(1, 30, coreless=comes), slots=9)
    assert found is not None
    assert found.message.endswith("30 percent are needed; beside containers without a share 1 percent must stay free")


def test_all_slots_of_a_card_are_given_and_no_more() -> None:
    assert check(CARD, HeldOnDevice(slots=5), charge(1, slots=4), slots=9) is None
    assert check(CARD, HeldOnDevice(slots=5), charge(1, slots=5), slots=9) == Refusal(
        Code.NO_ROOM, "card 3 has 4 slots free"
    )
