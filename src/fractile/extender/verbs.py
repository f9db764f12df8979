"""A verb as any HTTP server calls it: a body in, an answer out, immediately or later, and never an exception.

The process survives every body, bugs included: those are logged, and answered in the form of the verb.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec

log = logging.getLogger(__name__)

MAX_BODY = 64 * 2**20  # bytes; 5,000 full Node objects are 46 MB
USUAL_BODY = 2 * 2**20  # bytes; 5,000 names are 0.3 MB, and 1.3 MB if each is as long as a name may be

_BUG = "internal error in Fractile; see its log"


class Verb(msgspec.Struct, frozen=True):
    """``answer``: returned immediately, or awaited. ``error``: the verb's form of an error. ``whole``: answers bodies
    larger than ``USUAL_BODY``, piece by piece; without it such bodies are refused."""

    path: str
    answer: Callable[[bytes], bytes | Awaitable[bytes]]
    error: Callable[[str], bytes]
    whole: Callable[[bytearray], Awaitable[bytes]] | None = None

    def __call__(self, body: bytes) -> bytes | Awaitable[bytes]:
        try:
            answer = self.answer(body)
        except Exception as e:
            return self._failed(e)
        return answer if isinstance(answer, bytes) else self._later(answer)

    async def wholly(self, body: bytes) -> bytes:
        """The answer, awaited if necessary."""
        answer = self(body)
        return answer if isinstance(answer, bytes) else await answer

    @property
    def most(self) -> int:
        """The most bytes of a body."""
        return MAX_BODY if self.whole else USUAL_BODY

    @property
    def large(self) -> Callable[[bytearray], Awaitable[bytes]] | None:
        """``whole``, but never raising."""
        return self._largely if self.whole else None

    def too_large(self) -> bytes:
        return self.error(f"the request is larger than {self.most} bytes")

    async def _largely(self, body: bytearray) -> bytes:
        assert self.whole is not None
        return await self._later(self.whole(body))

    async def _later(self, answer: Awaitable[bytes]) -> bytes:
        try:
            return await answer
        except Exception as e:
            return self._failed(e)

    def _failed(self, error: Exception) -> bytes:
        log.error("verb failed path=%s", self.path, exc_info=error)
        return self.error(_BUG)
