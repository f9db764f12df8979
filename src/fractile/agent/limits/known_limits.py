"""The limits pages of this node as last decoded, so that looking at all of them costs next to nothing.

Only the journal changes a page, and says so. Should somebody else do it, that is noticed within a few looks, by the
number that moves with every change. A page that is gone or makes no sense any more, although nobody has forgotten it,
was lost: somebody removes the node's files. Failure rule: a page that makes no sense, or cannot be read, is none.
"""

import zlib
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from fractile.region import live
from fractile.region.page import ContainerLimits

LOOKS = 8  # in so many, each page is asked once whether it is another one


class _Page(msgspec.Struct, frozen=True):
    limits: ContainerLimits
    version: live.PageVersion
    seen: int
    turn: int  # not those of all pages in one look


class KnownLimits:
    """``read`` gives what a page says, ``file`` where it lies, both by token. One thread at a time."""

    def __init__(self, read: Callable[[str], ContainerLimits | None], file: Callable[[str], Path]) -> None:
        self._read = read
        self._file = file
        self._pages: dict[str, _Page] = {}
        self._looks = 0
        self.lost: set[str] = set()  # tokens whose pages went without a word

    def look(self, tokens: Iterable[str]) -> dict[str, ContainerLimits]:
        """Of these tokens, the limits of all that have some."""
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
        """The page is changed, or gone."""
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
            return  # nothing granted yet, or none of our files
        try:
            seen = version.read()  # before the page, so that no change is missed
            limits = self._read(token)
        except OSError:
            limits, seen = None, 0
        if limits is None:
            version.close()
            return
        self._pages[token] = _Page(limits, version, seen, zlib.crc32(token.encode()))
