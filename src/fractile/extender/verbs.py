"""A verb as an HTTP server calls it, whichever that is: a body in, an answer out, at once or later, and never an error.

The process survives every body, bugs included: those are logged, and answered in the form of the verb.
"""

import logging
from collections.abc import Awaitable, Callable

import msgspec

log = logging.getLogger(__name__)

MAX_BODY = 64 * 2**20  # bytes; 5,000 full Node objects are 46 MB

_BUG = "internal error of fractile; its log says more"


class Verb(msgspec.Struct, frozen=True):
    """``answer``: at once, or when it is awaited. ``error``: how this verb says that something went wrong."""

    path: str
    answer: Callable[[bytes], bytes | Awaitable[bytes]]
    error: Callable[[str], bytes]

    def __call__(self, body: bytes) -> bytes | Awaitable[bytes]:
        try:
            answer = self.answer(body)
        except Exception as e:
            return self._failed(e)
        return answer if isinstance(answer, bytes) else self._later(answer)

    async def wholly(self, body: bytes) -> bytes:
        """The answer, whenever it comes."""
        answer = self(body)
        return answer if isinstance(answer, bytes) else await answer

    def too_large(self) -> bytes:
        return self.error(f"the request is larger than {MAX_BODY} bytes")

    async def _later(self, answer: Awaitable[bytes]) -> bytes:
        try:
            return await answer
        except Exception as e:
            return self._failed(e)

    def _failed(self, error: Exception) -> bytes:
        log.error("verb failed path=%s", self.path, exc_info=error)
        return self.error(_BUG)
