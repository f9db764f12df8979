"""The cards of the cluster as arrays: columns for nodes, slots for cards, and which of them were written."""

import numpy as np
import pytest

from fractile.ledger.arrays import CardArrays, CardLayer
from fractile.ledger.layers import KeptLayer
from fractile.model.units import CardUUID, NodeName

ONE, TWO, THREE = (CardUUID(f"GPU-{name}") for name in ("one", "two", "three"))


@pytest.fixture
def arrays() -> CardArrays:
    return CardArrays()


def put(arrays: CardArrays, node: str, uuid: str, *, memory: int = 100, free: int = 60, model: str = "T4") -> int:
    """A card of the node in its first free slot; its column."""
    column = arrays.column(NodeName(node))
    slot = arrays.free_slot(column)
    arrays.put(slot, column, CardUUID(uuid), model)
    arrays.write(slot, column, memory=memory, free=free, free_cores=50, idle=False)
    return column


def take(arrays: CardArrays, uuid: str) -> None:
    arrays.clear(*arrays.cells[CardUUID(uuid)])


# ── columns and slots ────────────────────────────────────────────────────────────────────────────────────────────────


def test_arrays_begin_empty(arrays: CardArrays) -> None:
    assert (len(arrays), arrays.width, arrays.moves, arrays.changes, arrays.models) == (0, 0, 0, 0, [])
    assert arrays.names == [None] * 64
    for empty in (arrays.memory, arrays.free_cores, arrays.free_slots, arrays.slices, arrays.model, arrays.spare_cores):
        assert (empty.shape, empty.dtype, empty.any()) == ((8, 64), np.int64, False)
    for nothing in (arrays.free, arrays.usable):
        assert (nothing.shape, nothing.dtype, (nothing == -1).all()) == ((8, 64), np.int64, True)
    for no in (arrays.idle, arrays.coreless):
        assert (no.shape, no.dtype, no.any()) == ((8, 64), np.bool_, False)
    for of_node in (arrays.node_memory, arrays.node_free, arrays.largest, arrays.cards, arrays.unused, arrays.fullness):
        assert (of_node.shape, of_node.dtype, of_node.any()) == ((64,), np.int64, False)
    assert (arrays.most_free.shape, arrays.most_free.dtype, (arrays.most_free == -1).all()) == ((64,), np.int64, True)


def test_nodes_get_columns_from_the_first_on(arrays: CardArrays) -> None:
    assert [put(arrays, node, node) for node in "abc"] == [0, 1, 2]
    assert arrays.column(NodeName("b")) == 1
    assert (len(arrays), arrays.width, arrays.names[:4]) == (3, 3, ["a", "b", "c", None])
    assert [arrays.find(node) for node in ("a", "c", "z")] == [0, 2, -1]
    found = arrays.find_all(iter(["c", "z", "a"]), 3)
    assert (found.tolist(), found.dtype) == ([2, -1, 0], np.int64)


def test_the_column_of_a_node_whose_last_card_went_serves_the_next(arrays: CardArrays) -> None:
    for node in "abc":
        put(arrays, node, node)
    put(arrays, "b", "another")
    take(arrays, "b")
    assert arrays.find("b") == 1, "it has another card"
    take(arrays, "another")
    assert (arrays.find("b"), arrays.names[1], len(arrays), arrays.width) == (-1, None, 2, 3)
    assert put(arrays, "d", "d") == 1
    assert (arrays.width, arrays.names[:3]) == (3, ["a", "d", "c"])


def test_columns_are_doubled_when_all_are_in_use(arrays: CardArrays) -> None:
    columns = [put(arrays, f"n{i}", f"GPU-{i}", memory=i + 1, free=i, model=f"M{i % 3}") for i in range(64)]
    assert arrays.memory.shape == (8, 64)
    columns += [put(arrays, f"n{i}", f"GPU-{i}", memory=i + 1, free=i, model=f"M{i % 3}") for i in range(64, 200)]
    assert columns == list(range(200))
    assert arrays.memory[0, :200].tolist() == list(range(1, 201))
    assert arrays.free[0, :200].tolist() == list(range(200))
    assert arrays.model[0, :200].tolist() == [i % 3 for i in range(200)]
    assert (arrays.width, len(arrays), len(arrays.names)) == (200, 200, 256)
    assert arrays.memory.shape == (8, 256)
    assert arrays.names[200:] == [None] * 56


def test_slots_are_doubled_when_a_node_has_more_cards(arrays: CardArrays) -> None:
    for i in range(8):
        assert put(arrays, "a", f"GPU-{i}") == 0
    assert arrays.memory.shape == (8, 64)
    put(arrays, "a", "GPU-8")
    assert arrays.memory.shape == (16, 64)
    assert arrays.cells[CardUUID("GPU-8")] == (8, 0)
    assert arrays.memory[:, 0].tolist() == [100] * 9 + [0] * 7


@pytest.mark.parametrize("more", [9, 1], ids=["slots", "columns"])
def test_what_is_added_is_empty(arrays: CardArrays, more: int) -> None:
    cells = [(f"n{0 if more == 9 else i}", f"GPU-{i}") for i in range(9 if more == 9 else 65)]
    layer = KeptLayer(arrays)
    for node, uuid in cells:
        column = put(arrays, node, uuid)
        slot = arrays.cells[CardUUID(uuid)][0]
        arrays.write(slot, column, memory=9, free=8, free_cores=7, idle=True, coreless=True, free_slots=5, slices=4)
        layer.mark(CardUUID(uuid))
    there = np.zeros(arrays.memory.shape, np.bool_)
    for cell in arrays.cells.values():
        there[cell] = True
    assert there.sum() == len(cells)
    values = {"memory": 9, "free_cores": 7, "free_slots": 5, "slices": 4, "spare_cores": 6, "idle": 1, "coreless": 1}
    for name, value in values.items():
        assert np.array_equal(getattr(arrays, name), there * value), name
    for name in ("free", "usable"):
        assert np.array_equal(getattr(arrays, name), np.where(there, 8, -1)), name
    assert np.array_equal(layer.mask, there)
    assert (arrays.idle.dtype, arrays.coreless.dtype, layer.mask.dtype) == (np.bool_,) * 3
    assert arrays.model.shape == arrays.memory.shape


def test_cards_are_found_by_their_place(arrays: CardArrays) -> None:
    for uuid in (ONE, TWO, THREE):
        put(arrays, "a", uuid)
    take(arrays, TWO)
    assert arrays.in_column(0) == [ONE, THREE]
    assert [arrays.card_at(slot, 0) for slot in range(4)] == [ONE, None, THREE, None]
    assert arrays.cells == {ONE: (0, 0), THREE: (2, 0)}
    assert arrays.free_slot(0) == 1
    assert arrays.in_column(5) == []


def test_models_are_listed_once_in_the_order_in_which_they_came(arrays: CardArrays) -> None:
    for uuid, model in ((ONE, "T4"), (TWO, "A10"), (THREE, "T4")):
        put(arrays, "a", uuid, model=model)
    assert arrays.models == ["T4", "A10"]
    assert arrays.model[:3, 0].tolist() == [0, 1, 0]


def test_cards_that_come_and_go_are_counted(arrays: CardArrays) -> None:
    put(arrays, "a", ONE)
    put(arrays, "a", TWO)
    assert arrays.moves == 2
    arrays.write(0, 0, memory=1, free=1, free_cores=1, idle=False)
    assert arrays.moves == 2
    take(arrays, ONE)
    assert arrays.moves == 3


# ── what is free ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("free", "cores", "usable"),
    [
        pytest.param(60, 50, 60, id="both"),
        pytest.param(60, 1, 60, id="one percent"),
        pytest.param(60, 0, 0, id="no cores"),
        pytest.param(60, -5, 0, id="cores in debt"),
        pytest.param(0, 50, 0, id="no memory"),
        pytest.param(-7, 50, -7, id="memory in debt"),
        pytest.param(-7, 0, -7, id="both in debt"),
    ],
)
def test_memory_is_usable_where_cores_are_left(arrays: CardArrays, free: int, cores: int, usable: int) -> None:
    put(arrays, "a", ONE)
    arrays.write(0, 0, memory=100, free=free, free_cores=cores, idle=False)
    assert arrays.usable[0, 0] == usable
    assert (arrays.node_free[0], arrays.most_free[0]) == (max(usable, 0), max(usable, -1))


def test_beside_containers_without_cores_one_percent_less_can_be_promised(arrays: CardArrays) -> None:
    put(arrays, "a", ONE)
    for coreless, spare in ((False, 40), (True, 39)):
        arrays.write(0, 0, memory=100, free=60, free_cores=40, idle=False, coreless=coreless)
        assert arrays.spare_cores[0, 0] == spare


def test_a_card_that_went_leaves_an_empty_cell(arrays: CardArrays) -> None:
    put(arrays, "a", ONE)
    put(arrays, "a", TWO)
    arrays.write(0, 0, memory=100, free=60, free_cores=50, idle=True, coreless=True, free_slots=3, slices=2)
    take(arrays, ONE)
    cell = (arrays.memory, arrays.free, arrays.free_cores, arrays.spare_cores, arrays.free_slots, arrays.slices)
    assert [int(values[0, 0]) for values in cell] == [0, -1, 0, 0, 0, 0]
    assert (bool(arrays.idle[0, 0]), bool(arrays.coreless[0, 0])) == (False, False)
    assert (arrays.usable[0, 0], arrays.card_at(0, 0)) == (-1, None)


# ── layers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_layer_has_the_cards_that_are_marked(arrays: CardArrays) -> None:
    put(arrays, "a", ONE)
    put(arrays, "a", TWO)
    layer = CardLayer(arrays)
    assert (layer.mask.shape, layer.mask.dtype) == (arrays.memory.shape, np.bool_)
    assert ONE not in layer
    layer.mask[0, 0] = True
    assert (ONE in layer, TWO in layer, THREE in layer) == (True, False, False)


def test_cards_that_leave_their_place_leave_the_layers_that_are_kept(arrays: CardArrays) -> None:
    put(arrays, "a", ONE)
    put(arrays, "a", TWO)
    kept, left = CardLayer(arrays), CardLayer(arrays)
    arrays.keep(kept)
    arrays.keep(left)
    for layer in (kept, left):
        layer.mask[:2, 0] = True
    arrays.drop(left)
    take(arrays, ONE)
    assert (kept.mask[0, 0], kept.mask[1, 0], left.mask[0, 0]) == (False, True, True)


# ── what was written ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_columns_that_were_written_are_named_once_in_their_order(arrays: CardArrays) -> None:
    for node in "abc":
        put(arrays, node, node)
    assert arrays.changes == 3
    assert arrays.changed_since(0) == [0, 1, 2]
    assert arrays.changed_since(1) == [1, 2]
    assert arrays.changed_since(3) == []
    take(arrays, "b")
    take(arrays, "a")
    arrays.write(0, 2, memory=1, free=1, free_cores=1, idle=False)
    assert arrays.changed_since(2) == [2, 1, 0]


def test_sixty_four_writes_are_followed_one_by_one_and_more_are_not(arrays: CardArrays) -> None:
    for number in range(64):
        put(arrays, f"n{number}", f"GPU-{number}")
    assert arrays.changed_since(0) == list(range(64))
    put(arrays, "one more", "GPU-one-more")
    assert arrays.changed_since(0) is None
    assert arrays.changed_since(1) == list(range(1, 65))


def test_the_last_writes_are_known_however_many_there_were(arrays: CardArrays) -> None:
    for number in range(500):
        put(arrays, f"n{number}", f"GPU-{number}")
        assert arrays.changes == number + 1
        assert arrays.changed_since(number) == [number]
        if number >= 64:
            assert arrays.changed_since(number - 63) == list(range(number - 63, number + 1))
    assert arrays.changed_since(0) is None
