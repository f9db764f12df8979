"""The limits pages of this node as last decoded, so that reading all of them costs next to nothing.

Only the journal changes a page, and reports it. A change by another program is noticed within a few reads, by the
number that moves with every change. A page that is gone or has become invalid, without a call of ``forget``, counts as
lost: the node's files are being removed. Failure rule: a page that is invalid, or cannot be read, counts as absent.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from fractile.region import live
from fractile.region.page import ContainerLimits

LOOKS = 8  # every page is checked for changes once in so many reads


class _Page(msgspec.Struct, frozen=True):
    limits: ContainerLimits
    version: live.PageVersion
    seen: int
    turn: int  # spreads the checks of all pages over the reads


class KnownLimits:
    """``read`` decodes a page, ``file`` is its path, both by token. One thread at a time."""

    def __init__(self, read: Callable[[str], ContainerLimits | None], file: Callable[[str], Path]) -> None:
        self._read = read
        self._file = file
        self._pages: dict[str, _Page] = {}
        self._looks = 0
        self.lost: set[str] = set()  # tokens whose pages vanished without a call of ``forget``

    def look(self, tokens: Iterable[str]) -> dict[str, ContainerLimits]:
        """The limits of those of these tokens that have some."""
        self._looks += 1
        present = set(tokens)
        changed = [t for t, page in self._pages.items() if t not in present or self._moved(page)]
        removed = {t for t in changed if self._pages[t].version.removed}
        for token in changed:
            self.forget(token)
        for token in present - self._pages.keys():
            self._learn(token)
        self.lost |= removed.union(t for t in changed if t in present and t not in self._pages)
        return {token: page.limits for token, page in self._pages.items()}

    def forget(self, token: str) -> None:
        """Drop the page, because it is changed or removed."""
        page = self._pages.pop(token, None)
        if page is not None:
            page.version.close()

    def _moved(self, page: _Page) -> bool:
        if (self._looks + page.turn) % LOOKS:
            return False
        try:
            return page.version.removed or page.version.read() != page.seen
        except OSError:
            return True

    def _learn(self, token: str) -> None:
        try:
            version = live.PageVersion(self._file(token))
        except OSError:
            return  # nothing granted yet, or not a file of ours
        try:
            seen = version.read()  # before the page, so that no change is missed
            limits = self._read(token)
        except OSError:
            limits, seen = None, 0
        if limits is None:
            version.close()
            return
        self._pages[token] = _Page(limits, version, seen, zlib.crc32(token.encode()))
