"""The digest of a layer follows the arrays, whatever is written, moves, grows or goes in between."""

from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.ledger.layers import Kept
from fractile.ledger.ledger import Ledger
from fractile.model.units import CardUUID, NodeName, PodUID
from tests.builders import card, card_uuid, on_card

MEMBERS = {card_uuid(f"n{n}", i) for n in range(200) for i in range(3) if (n + i) % 2}
_steps = st.lists(
    st.tuples(
        st.sampled_from(["put", "drop", "hold", "hold", "hold", "release", "many", "look"]),
        st.integers(0, 5),
        st.integers(0, 2),
    ),
    max_size=40,
)


def agrees(ledger: Ledger, layer: Kept) -> None:
    arrays = ledger.arrays
    for column, name in enumerate(arrays.names):
        state = None if name is None else ledger.node(name)
        mine = [c for c in (state.cards if state else ()) if c.uuid in layer]
        assert {c.uuid for c in mine} == {c.uuid for c in (state.cards if state else ())} & MEMBERS
        assert layer.usable[column] == max((c.free_memory if c.free_cores > 0 else 0 for c in mine), default=-1)
        assert layer.unused[column] == sum(c.idle for c in mine)
    there = (state for name in arrays.names if name is not None and (state := ledger.node(name)) is not None)
    assert layer.models == {c.model for state in there for c in state.cards if c.uuid in layer}


@settings(max_examples=150, deadline=None)
@given(_steps)
def test_the_digest_is_what_a_look_at_every_card_finds(steps: list[tuple[str, int, int]]) -> None:
    ledger = Ledger(lambda: 0.0)
    layer = Kept(ledger.arrays)

    def placed(uuid: CardUUID) -> None:
        if uuid in MEMBERS:
            layer.mark(uuid)

    ledger.on_card(lambda card: placed(card.uuid))
    for n in range(6):
        ledger.put_card(NodeName(f"n{n}"), card(f"n{n}", 1))
    for step, n, i in steps:
        uid, node = PodUID(f"{n}-{i}"), NodeName(f"n{n}")
        if step == "put":
            ledger.put_card(node, card(node, i, model=f"model-{(n + 2 * i) % 3}"))
        elif step == "drop":
            ledger.drop_card(card_uuid(node, i))
        elif step == "hold":
            ledger.observe(uid, on_card(i, 1000 * (i + 1), node=node))
        elif step == "release":
            ledger.release(uid)
        elif step == "many":  # more than are followed one by one, and more than there are columns
            for far in range(6, 80):
                ledger.put_card(NodeName(f"n{far}"), card(f"n{far}", i))
        else:
            agrees(ledger, layer)
    agrees(ledger, layer)


def test_a_layer_that_was_dropped_has_no_cards_and_is_left_alone() -> None:
    ledger = Ledger(lambda: 0.0)
    ledger.put_card(NodeName("n1"), card())
    layer = Kept(ledger.arrays)
    layer.mark(card().uuid)
    assert card().uuid in layer
    layer.drop()
    assert card().uuid not in layer
    assert not layer.unused.any()


def test_the_models_of_a_class_are_those_of_the_cards_that_are_there() -> None:
    ledger = Ledger(lambda: 0.0)
    layer = Kept(ledger.arrays)
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
