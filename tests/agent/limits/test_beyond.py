"""What is held beyond the ledger, in the pages of limits."""

from pathlib import Path

import msgspec
import pytest

from fractile.agent.audit.unaccounted import Finding
from fractile.agent.limits.beyond import Beyond, BeyondWriter, corrected
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.slices import Granted
from fractile.model.units import CardUUID
from fractile.region.page import ContainerLimits
from tests.agent.audit.audit_world import world
from tests.agent.audit.test_unaccounted import MIB, granted, process

A = CardUUID("GPU-a")
NOTHING = Beyond({})


def page(unaccounted: int) -> ContainerLimits:
    limits = granted().limits
    return msgspec.structs.replace(
        limits, cards=tuple(msgspec.structs.replace(c, unaccounted=unaccounted) for c in limits.cards)
    )


def held(journal: Journal, token: str) -> int:
    limits = journal.limits(token)
    assert limits is not None
    return limits.cards[0].unaccounted


@pytest.mark.parametrize(
    ("before", "beyond", "after"),
    [
        pytest.param(0, Beyond({("t1", A): 5 * MIB}), 5 * MIB, id="found"),
        pytest.param(5 * MIB, NOTHING, 0, id="gone"),
        pytest.param(9 * MIB, Beyond({("t1", A): 5 * MIB}), 5 * MIB, id="less than before"),
        pytest.param(
            0, Beyond({("t2", A): 5 * MIB, ("t1", CardUUID("GPU-b")): MIB}), 0, id="of others, of other cards"
        ),
        pytest.param(9 * MIB, Beyond({}, frozenset({("t1", A)})), 9 * MIB, id="seen once, as after a restart"),
        pytest.param(0, Beyond({}, frozenset({("t1", A)})), 0, id="seen once, and never before"),
    ],
)
def test_a_page_says_what_is_held_beyond_the_ledger(before: int, beyond: Beyond, after: int) -> None:
    assert corrected("t1", page(before), beyond) == page(after)


async def test_only_pages_that_are_wrong_are_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "slices", new_token=lambda: "t")
    for token in ("t1", "t2"):
        journal.create(token, "r", frozenset({f"{token}::0"}))
        journal.write_limits(token, page(0))
    all_granted = [Granted(t, journal.path(t), 0.0, page(0)) for t in ("t1", "t2", "gone")]
    before = journal.generation
    writer = BeyondWriter(journal)
    await writer.write(all_granted, Beyond({("t2", A): MIB, ("gone", A): MIB}))
    assert [held(journal, t) for t in ("t1", "t2")] == [0, MIB]
    assert journal.generation == before + 1
    await writer.write(all_granted[:1], NOTHING)
    assert journal.generation == before + 1


async def test_what_two_looks_show_counts_together() -> None:
    first = Finding("not-in-ledger", A, process(100), granted(), 300 * MIB, beyond=300 * MIB)
    second = Finding("not-in-ledger", A, process(101), granted(), 20 * MIB, beyond=20 * MIB)
    host = Finding("not-a-pod", A, process(102, uid=""), None, 9 * MIB)
    async with world() as w:
        w.audit.observe([first, host])
        assert w.audit.beyond == Beyond({}, frozenset({("t1", A)}))
        w.audit.observe([first, second, host])
        assert w.audit.beyond == Beyond({("t1", A): 300 * MIB}, frozenset({("t1", A)}))
        w.audit.observe([first, second, host])
        assert w.audit.beyond == Beyond({("t1", A): 320 * MIB})
        w.audit.observe([])
        assert w.audit.beyond == NOTHING
