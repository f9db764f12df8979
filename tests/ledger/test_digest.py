"""The digest of each node says what its cards say, however many were written since it was asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.ledger.arrays import CardArrays
from fractile.ledger.digest import Digest
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


@pytest.mark.parametrize("every", [1, 3, 7, 20], ids=lambda every: f"after {every}")
def test_it_says_what_the_cards_say_after_few_writes_and_after_many(every: int) -> None:
    arrays = CardArrays()
    for i in range(60):
        node, slot = i % 9, i % 2
        write(arrays, (node, slot, (16_000, 32_000, 0, 16_000)[i % 4], i * 7 % 101, i % 3, i % 5 == 0))
        if i % every == 0:
            assert said(arrays) == summed(arrays)
    for node in range(9):
        write(arrays, (node, 0, 0, 0, 0, False))
    assert said(arrays) == summed(arrays)


@pytest.mark.parametrize("nodes", [1, 4, 5, 64, 65])
def test_the_numbers_of_each_node_are_worked_out_alone_and_together(nodes: int) -> None:
    arrays = CardArrays()
    for node in range(nodes):
        write(arrays, (node, 0, 16_000, 50, 100, True))
        write(arrays, (node, 1, 32_000, 25, 0, True))
        write(arrays, (node, 2, 1, 0, 100, False))
    last = nodes - 1
    assert said(arrays)[last] == (48_001, 8000, 32_000, 8000, 3, 2, 833)
    assert said(arrays) == summed(arrays)
    arrays.write(0, last, memory=16_000, free=-5, free_cores=1, idle=False)
    assert said(arrays)[last] == (48_001, 0, 32_000, 0, 3, 1, 1000)


def test_one_mib_is_worked_out_too() -> None:
    arrays = CardArrays()
    for node in range(5):
        write(arrays, (node, 0, 1, 0, 100, True))
    assert said(arrays)[:5] == [(1, 0, 1, 0, 1, 1, 1000)] * 5
    write(arrays, (0, 0, 1, 100, 100, True))
    write(arrays, (1, 0, 1, 0, 100, False))
    assert said(arrays)[:2] == [(1, 1, 1, 1, 1, 1, 0), (1, 0, 1, 0, 1, 0, 1000)]


def test_a_digest_begins_with_no_card() -> None:
    digest = Digest(3)
    numbers = (digest.memory, digest.free, digest.largest, digest.cards, digest.unused, digest.fullness)
    assert [column.tolist() for column in numbers] == [[0, 0, 0]] * 6
    assert digest.most_free.tolist() == [-1, -1, -1]
    assert {column.dtype for column in (*numbers, digest.most_free)} == {np.dtype(np.int64)}


def test_a_digest_follows_only_what_was_written() -> None:
    arrays = CardArrays()
    write(arrays, (0, 0, 16_000, 50, 100, True))
    before = arrays.digest
    assert (before.memory[0], before.cards.dtype, before.memory.shape) == (16_000, np.int64, (64,))
    arrays.memory[0, 0] = 1  # behind the back of the arrays
    assert arrays.node_memory[0] == 16_000
    assert arrays.digest is before


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
