"""The digest of each node says what its cards say, however many were written since it was asked for."""

from hypothesis import given
from hypothesis import strategies as st

from fractile.ledger.arrays import CardArrays
from fractile.model.units import CardUUID, NodeName

NODES = 12

Write = tuple[int, int, int, int, int, bool]
WRITES = st.lists(
    st.tuples(
        st.integers(0, NODES - 1),
        st.integers(0, 2),
        st.sampled_from([0, 16_000, 32_000]),
        st.integers(0, 100),
        st.integers(0, 100),
        st.booleans(),
    ),
    max_size=60,
)


def write(arrays: CardArrays, one: Write) -> None:
    """Memory 0: the card goes."""
    node, slot, memory, part, cores, idle = one
    name, uuid = NodeName(f"n{node}"), CardUUID(f"GPU-{node}-{slot}")
    cell = arrays.cells.get(uuid)
    if not memory:
        if cell is not None:
            arrays.clear(*cell)
        return
    if cell is None:
        column = arrays.column(name)
        cell = arrays.free_slot(column), column
        arrays.put(*cell, uuid, "T4")
    arrays.write(*cell, memory=memory, free=memory * part // 100, free_cores=cores, idle=idle)


def said(arrays: CardArrays) -> list[tuple[int, ...]]:
    columns = (
        *(arrays.node_memory, arrays.node_free, arrays.largest, arrays.most_free),
        *(arrays.cards, arrays.unused, arrays.fullness),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))


def summed(arrays: CardArrays) -> list[tuple[int, ...]]:
    """The same, card by card."""
    found: list[tuple[int, ...]] = []
    for column in range(len(arrays.names)):
        sizes: list[int] = arrays.memory[:, column].tolist()
        free: list[int] = arrays.usable[:, column].tolist()
        total, left = sum(sizes), sum(max(f, 0) for f in free)
        found.append(
            (
                total,
                left,
                max(sizes),
                max(free),
                sum(size > 0 for size in sizes),
                sum(arrays.idle[:, column].tolist()),
                1000 * (total - left) // max(total, 1),
            )
        )
    return found


@given(WRITES, st.integers(1, 30))
def test_asked_for_often_or_seldom_it_is_the_sum_of_the_cards(writes: list[Write], every: int) -> None:
    arrays = CardArrays()
    for i, one in enumerate(writes):
        write(arrays, one)
        if i % every == 0:
            assert said(arrays) == summed(arrays)
    assert said(arrays) == summed(arrays)


def test_it_grows_with_the_arrays_while_writes_wait() -> None:
    arrays = CardArrays()
    for i in range(200):
        column = arrays.column(NodeName(f"n{i}"))
        arrays.put(0, column, CardUUID(f"GPU-{i}"), "T4")
        arrays.write(0, column, memory=16_000, free=i, free_cores=100, idle=False)
    assert arrays.most_free[:200].tolist() == list(range(200))
    assert said(arrays) == summed(arrays)


def test_a_slot_is_free_until_a_card_is_put_there_and_again_when_it_goes() -> None:
    arrays = CardArrays()
    for slot in range(10):
        write(arrays, (0, slot, 16_000, 50, 100, False))
    column = arrays.find("n0")
    assert [arrays.cells[CardUUID(f"GPU-0-{slot}")] for slot in range(10)] == [(slot, column) for slot in range(10)]
    write(arrays, (0, 3, 0, 0, 0, False))
    assert arrays.free_slot(column) == 3
