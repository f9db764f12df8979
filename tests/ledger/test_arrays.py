"""Which models the arrays know: those of the cards that are there."""

from random import Random

import pytest

from fractile.ledger.arrays import CardArrays
from fractile.ledger.ledger import Ledger
from fractile.model.units import CardUUID, NodeName
from tests.builders import Clock, card

NODES = [NodeName(f"n{n}") for n in range(90)]  # more than the arrays begin with


def put(arrays: CardArrays, node: NodeName, uuid: str, model: str) -> None:
    column = arrays.column(node)
    slot = arrays.free_slot(column)
    arrays.put(slot, column, CardUUID(uuid), model)
    arrays.write(slot, column, memory=1, free=1, free_cores=100, idle=True)


def models(arrays: CardArrays) -> dict[str, str]:
    """By card, as a reader of the arrays finds them."""
    return {uuid: arrays.models[arrays.model[cell]] for uuid, cell in arrays.cells.items()}


def test_a_card_that_is_reported_under_ten_thousand_models_leaves_one() -> None:
    """As an agent's token can."""
    arrays = CardArrays()
    put(arrays, NODES[0], "kept", "Tesla-V100")
    for number in range(10_000):
        put(arrays, NODES[1], "changes", f"model-{number}")
        if number < 9_999:
            arrays.clear(*arrays.cells[CardUUID("changes")])
    assert models(arrays) == {"kept": "Tesla-V100", "changes": "model-9999"}
    assert len(arrays.models) == 2


@pytest.mark.parametrize("seed", range(10))
def test_every_card_keeps_its_model_while_others_come_and_go(seed: int) -> None:
    rng, arrays, there = Random(seed), CardArrays(), dict[str, str]()
    for step in range(400):
        if there and rng.random() < 0.45:
            uuid = rng.choice(sorted(there))
            del there[uuid]
            arrays.clear(*arrays.cells[CardUUID(uuid)])
        else:
            uuid, model = f"g{step}", f"model-{rng.randrange(12)}"
            there[uuid] = model
            put(arrays, rng.choice(NODES), uuid, model)
        assert models(arrays) == there
        assert sorted(arrays.models) == sorted(set(there.values()))
        assert int(arrays.model.max()) < max(len(arrays.models), 1)


def test_the_ledger_forgets_a_model_when_its_last_card_is_sick_or_reported_as_another() -> None:
    ledger = Ledger(Clock())
    for model in ("A", "B", "C", "B"):
        ledger.put_card(NODES[0], card("n1", model=model))
        assert ledger.arrays.models == [model]
