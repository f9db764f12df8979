"""The digest of a layer follows the arrays, whatever is written, moves, grows or goes in between."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.ledger.layers import KeptLayer
from fractile.ledger.ledger import Ledger
from fractile.model.request import Selector
from fractile.model.units import CardUUID, NodeName, PodUID
from tests.builders import CARD_MEMORY, card, card_uuid, on_card

MEMBERS = {card_uuid(f"n{n}", i) for n in range(200) for i in range(3) if (n + i) % 2}
_steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "hold", "hold", "hold", "release", "many", "look"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=40,
)


def agrees(ledger: Ledger, layer: KeptLayer) -> None:
    arrays = ledger.arrays
    for column, name in enumerate(arrays.names):
        state = None if name is None else ledger.node(name)
        mine = [c for c in (state.cards if state else ()) if c.uuid in layer]
        assert {c.uuid for c in mine} == {c.uuid for c in (state.cards if state else ())} & MEMBERS
        assert layer.usable[column] == max((c.free_memory if c.free_cores > 0 else 0 for c in mine), default=-1)
        assert layer.unused[column] == sum(c.idle for c in mine)
    there = (state for name in arrays.names if name is not None and (state := ledger.node(name)) is not None)
    assert layer.models == {c.model for state in there for c in state.cards if c.uuid in layer}


def watched() -> tuple[Ledger, KeptLayer]:
    """Six nodes of one card each, and a layer of the members among them and among those that come."""
    ledger = Ledger(lambda: 0.0)
    layer = KeptLayer(ledger.arrays)

    def placed(uuid: CardUUID) -> None:
        if uuid in MEMBERS:
            layer.mark(uuid)

    ledger.on_card(lambda card: placed(card.uuid))
    for n in range(6):
        ledger.put_card(NodeName(f"n{n}"), card(f"n{n}", 1))
    return ledger, layer


def take(step: str, n: int, i: int, ledger: Ledger, layer: KeptLayer) -> None:
    uid, node = PodUID(f"{n}-{i}"), NodeName(f"n{n}")
    match step:
        case "put":
            ledger.put_card(node, card(node, i, model=f"model-{(n + 2 * i) % 3}"))
        case "drop":
            ledger.drop_card(card_uuid(node, i))
        case "hold":
            ledger.observe(uid, on_card(i, 1000 * (i + 1), node=node))
        case "release":
            ledger.release(uid)
        case "many":  # more than are followed one by one, and more than there are columns
            for far in range(6, 80):
                ledger.put_card(NodeName(f"n{far}"), card(f"n{far}", i))
        case _:
            agrees(ledger, layer)


@settings(max_examples=150, deadline=None)
@given(_steps)
def test_the_digest_is_what_a_look_at_every_card_finds(steps: list[tuple[str, int, int]]) -> None:
    ledger, layer = watched()
    for step, n, i in steps:
        take(step, n, i, ledger, layer)
    agrees(ledger, layer)


def test_the_digest_follows_each_change() -> None:
    ledger, layer = watched()
    agrees(ledger, layer)
    for step, n, i in (
        *(("put", 0, 0), ("put", 1, 0), ("put", 1, 2), ("hold", 1, 0), ("hold", 1, 2), ("hold", 0, 1), ("hold", 3, 1)),
        *(("release", 1, 2), ("drop", 1, 0), ("put", 3, 0), ("many", 0, 0), ("hold", 70, 0), ("hold", 71, 0)),
        *(("drop", 71, 0), ("drop", 1, 2), ("put", 1, 2), ("many", 0, 2), ("release", 70, 0)),
    ):
        take(step, n, i, ledger, layer)
        agrees(ledger, layer)
    for _ in range(70):
        take("hold", 72, 0, ledger, layer)
        take("release", 72, 0, ledger, layer)
    take("hold", 2, 1, ledger, layer)
    agrees(ledger, layer)


def test_the_digest_follows_several_changes_at_once() -> None:
    ledger, layer = watched()
    for n in (0, 1, 2):
        take("put", n, 2, ledger, layer)
    agrees(ledger, layer)
    for n, i in ((1, 2), (2, 1), (0, 1), (3, 1)):
        take("hold", n, i, ledger, layer)
    agrees(ledger, layer)


def test_the_digest_grows_with_the_arrays_though_few_cards_came() -> None:
    ledger = Ledger(lambda: 0.0)
    layer = KeptLayer(ledger.arrays)
    ledger.on_card(lambda card: layer.mark(card.uuid))
    for n in range(64):
        ledger.put_card(NodeName(f"n{n}"), card(f"n{n}", 1))
    assert layer.usable.tolist() == [CARD_MEMORY] * 64
    ledger.release(PodUID("never seen"))
    ledger.arrays.column(NodeName("one more"))  # which has no card yet
    ledger.observe(PodUID("p"), on_card(1, 1000, node="n7"))
    assert layer.usable.tolist() == [*[CARD_MEMORY] * 7, CARD_MEMORY - 1000, *[CARD_MEMORY] * 56, *[-1] * 64]
    assert layer.unused.tolist() == [*[1] * 7, 0, *[1] * 56, *[0] * 64]


def test_only_what_was_written_is_worked_out_again() -> None:
    ledger, layer = watched()
    first, second = ledger.arrays.find("n0"), ledger.arrays.find("n2")
    assert layer.usable[first] == CARD_MEMORY
    ledger.arrays.usable[1, first] = 1  # behind the back of the arrays
    ledger.observe(PodUID("p"), on_card(1, 1000, node="n2"))
    assert (layer.usable[first], layer.usable[second]) == (CARD_MEMORY, CARD_MEMORY - 1000)


def test_a_layer_without_cards_says_so_of_every_node() -> None:
    ledger = Ledger(lambda: 0.0)
    layer = KeptLayer(ledger.arrays)
    assert (layer.usable.tolist(), layer.unused.tolist()) == ([-1] * 64, [0] * 64)
    layer.mark(card().uuid)
    assert not layer.mask.any(), "the card has no place"


def test_a_layer_selects_its_cards_whatever_else_they_are() -> None:
    ledger = Ledger(lambda: 0.0)
    layer = KeptLayer(ledger.arrays)
    assert layer.selector == Selector(members=layer)
    assert layer.selector.members is layer


def test_a_layer_that_was_dropped_has_no_cards_and_is_left_alone() -> None:
    ledger = Ledger(lambda: 0.0)
    ledger.put_card(NodeName("n1"), card())
    layer = KeptLayer(ledger.arrays)
    layer.mark(card().uuid)
    assert card().uuid in layer
    assert (layer.usable[0], layer.unused[0], layer.models) == (CARD_MEMORY, 1, {"Tesla-V100"})
    layer.drop()
    assert card().uuid not in layer
    assert (layer.mask.shape, layer.mask.dtype) == (ledger.arrays.memory.shape, np.bool_)
    assert (layer.usable[0], layer.unused[0], layer.models) == (-1, 0, frozenset())
    layer.mask[0, 0] = True
    ledger.drop_card(card().uuid)
    assert layer.mask[0, 0], "it is not kept up any more"


def test_the_models_of_a_class_are_those_of_the_cards_that_are_there() -> None:
    ledger = Ledger(lambda: 0.0)
    layer = KeptLayer(ledger.arrays)
    ledger.on_card(lambda card: layer.mark(card.uuid))
    assert layer.models == frozenset()
    for index, model in enumerate(("T4", "V100", "V100")):
        ledger.put_card(NodeName("n1"), card("n1", index, model=model))
    assert layer.models == {"T4", "V100"}
    ledger.drop_card(card_uuid("n1", 0))
    assert layer.models == {"V100"}
    ledger.put_card(NodeName("n1"), card("n1", 1, model="A100"))
    assert layer.models == {"V100", "A100"}
    layer.drop()
    assert layer.models == frozenset()
