"""The ledger is compared with the API server: what differs for longer than a moment is said loudly, and corrected."""

import asyncio
import logging
from collections.abc import AsyncGenerator

import pytest

from fractile.ledger.ledger import EntryState
from fractile.model.units import PodUID
from fractile.reconcile.ledger_audit import LedgerAudit
from fractile.wire.fractile import placement
from fractile.wire.kubernetes.extender import BindingArgs
from tests.builders import CARD_MEMORY as FULL
from tests.builders import on_card
from tests.main.plane import Plane, plane


@pytest.fixture
async def p() -> AsyncGenerator[Plane, None]:
    async with plane() as made:
        yield made


def audit(p: Plane) -> LedgerAudit:
    return LedgerAudit(ledger=p.ledger, handlers=p.handlers, client=p.client, warn=p.warn)


async def bound(p: Plane, name: str = "p") -> PodUID:
    found = p.submit(name)
    assert await p.binder.bind(BindingArgs(name, "default", found.metadata.uid, "n1")) is None
    p.see(name)
    p.clock.now += 1
    return PodUID(found.metadata.uid)


async def test_books_that_agree_are_no_news(p: Plane, caplog: pytest.LogCaptureFixture) -> None:
    await bound(p)
    p.submit("waits")
    assert await audit(p).round(again=0) == 0
    assert p.ledger.statistics().drifted == 0
    assert (p.events, caplog.records) == ([], [])


async def test_a_hold_of_a_pod_that_is_gone_is_an_error_and_ends(p: Plane, caplog: pytest.LogCaptureFixture) -> None:
    uid = await bound(p)
    p.server.delete("/api/v1/namespaces/default/pods/p")
    assert await audit(p).round(again=0) == 1
    assert p.ledger.entry(uid) is None
    assert p.ledger.statistics().drifted == 1
    assert [r.levelno for r in caplog.records if "audit" in r.message] == [logging.ERROR]


async def test_a_bound_pod_that_nobody_charged_is_charged_and_gets_an_event(p: Plane) -> None:
    uid = await bound(p)
    p.ledger.release(uid)
    assert await audit(p).round(again=0) == 1
    entry = p.ledger.entry(uid)
    assert entry is not None
    assert entry.state is EntryState.BOUND
    assert p.free() == [FULL - 8138, FULL]
    assert [(name, reason) for name, reason, _ in p.events] == [("p", "LedgerDrift")]


async def test_an_annotation_that_differs_from_the_hold_is_found(p: Plane) -> None:
    await bound(p)
    p.annotate({placement.ANNOTATION: placement.encode(on_card(1, 8138))})
    assert await audit(p).round(again=0) == 1
    assert p.free() == [FULL - 8138, FULL]  # the hold stays, and the annotation is repaired
    assert ("p", "LedgerDrift") in [(name, reason) for name, reason, _ in p.events]


async def test_a_pod_that_has_finished_and_is_still_held_is_found(p: Plane) -> None:
    uid = await bound(p)
    p.server.merge("/api/v1/namespaces/default/pods/p/status", {"status": {"phase": "Succeeded"}})
    assert await audit(p).round(again=0) == 1
    assert p.ledger.entry(uid) is None


async def test_what_is_younger_than_the_list_and_what_is_assumed_differ_from_nothing(p: Plane) -> None:
    found = p.submit()
    assert p.ledger.assume(PodUID(found.metadata.uid), on_card(0, 8138)) is None
    assert p.ledger.assume(PodUID("later"), on_card(1, 1)) is None
    assert await audit(p).round(again=0) == 0


async def test_what_the_watch_has_corrected_meanwhile_is_no_error(p: Plane) -> None:
    await bound(p)
    p.server.merge("/api/v1/namespaces/default/pods/p/status", {"status": {"phase": "Succeeded"}})
    looking = asyncio.create_task(audit(p).round(again=0.5))
    await asyncio.sleep(0.2)  # between the two looks
    p.see()
    assert await looking == 0
