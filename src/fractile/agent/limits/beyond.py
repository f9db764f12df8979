"""Memory that containers hold beyond their ledgers, written to their pages of limits.

The library subtracts ``unaccounted`` from what it grants: memory allocated around it counts against the quota at the
container's next call. Level-triggered: each poll compares the pages with the current findings, and lowers them when
findings are gone. Failure rule: a page that cannot be written is retried at the next poll, and affects no other page.
"""

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from fractile.agent.limits.journal import Journal
from fractile.agent.limits.slices import Granted
from fractile.model.units import CardUUID
from fractile.region.page import CardLimits, ContainerLimits

Part = tuple[str, CardUUID]  # of a container: its token, and a card

log = logging.getLogger(__name__)


class Beyond(msgspec.Struct, frozen=True):
    """Bytes held beyond the ledger. ``unconfirmed``: parts that only one poll shows; their pages are not
    lowered yet."""

    bytes: Mapping[Part, int]
    unconfirmed: frozenset[Part] = frozenset()


class BeyondWriter:
    """``write`` is called after every poll, one call at a time."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    async def write(self, granted: Iterable[Granted], beyond: Beyond) -> None:
        """Write the bytes held beyond the ledgers to the pages."""
        stale = [g.token for g in granted if corrected(g.token, g.limits, beyond) != g.limits]
        if stale:
            await asyncio.to_thread(self._write, stale, beyond)

    def _write(self, tokens: Iterable[str], beyond: Beyond) -> None:
        for token in tokens:

            def change(page: ContainerLimits | None, token: str = token) -> ContainerLimits | None:
                return page and corrected(token, page, beyond)

            try:
                now = self._journal.change(token, change, running=True)
            except OSError as e:
                log.warning("held beyond the ledger, not written token=%s reason=%s", token, e)
                continue
            if now is not None:
                sizes = ",".join(f"{c.uuid}:{c.unaccounted}" for c in now.cards)
                log.debug(
                    "held beyond the ledger pod=%s/%s container=%s %s", now.namespace, now.pod, now.container, sizes
                )


def corrected(token: str, limits: ContainerLimits, beyond: Beyond) -> ContainerLimits:
    """The limits with the bytes held beyond the ledger, otherwise unchanged."""
    cards = tuple(msgspec.structs.replace(c, unaccounted=_bytes(token, c, beyond)) for c in limits.cards)
    return msgspec.structs.replace(limits, cards=cards)


def _bytes(token: str, card: CardLimits, beyond: Beyond) -> int:
    part = token, card.uuid
    found = beyond.bytes.get(part, 0)
    return max(found, card.unaccounted) if part in beyond.unconfirmed else found
