"""Whether the bearer of a token may do something, as the API server decides when called with that token.

A SelfSubjectAccessReview answers both questions, whether the token is valid and what it allows, and every identity that
the API server knows may create one about itself (ClusterRole system:basic-user). So our programs need no right to
review other tokens, as a TokenReview would. Failure rule: closed. No answer is ``UNKNOWN``, and no yes is kept longer
than ``KEPT``.
"""

import asyncio
import hashlib
import random
import time
from enum import Enum

import msgspec

from fractile.errors import ApiError, FractileError
from fractile.kube.credentials import Credentials
from fractile.kube.pacing import Clock, Pacer
from fractile.kube.tokens import StaticToken
from fractile.kube.transport import Repeat, Transport

KEPT = 10.0  # seconds for which an answer is reused
_MOST = 64  # the most answers that are kept
_TIMEOUT = 5.0
_REVIEWS = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"


class May(Enum):
    YES = "yes"
    NO = "no"  # known, and not allowed
    STRANGER = "stranger"  # the token is not valid
    UNKNOWN = "unknown"  # the API server does not answer


class _Status(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _Review(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class Reviewer:
    """Calls only with the caller's token, never with our own certificate."""

    def __init__(self, access: Credentials, *, clock: Clock = time.monotonic) -> None:
        self._access = access
        self._clock = clock
        self._kept: dict[bytes, tuple[May, float]] = {}  # by digest, so that no token is stored; the oldest first

    async def may(self, token: str, *, path: str, verb: str = "get") -> May:
        """Whether the bearer may use this verb on a non-resource path."""
        key = hashlib.sha256(f"{verb} {path} {token}".encode()).digest()
        now = self._clock()
        self._kept = {k: (answer, until) for k, (answer, until) in self._kept.items() if until > now}
        if key in self._kept:
            return self._kept[key][0]
        found = await self._ask(token, path, verb)
        if found is not May.UNKNOWN:
            self._kept[key] = found, now + KEPT
            while len(self._kept) > _MOST:
                del self._kept[next(iter(self._kept))]
        return found

    async def _ask(self, token: str, path: str, verb: str) -> May:
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"nonResourceAttributes": {"path": path, "verb": verb}},
        }
        transport = Transport(
            self._access.bearing(StaticToken(token)),
            pacer=Pacer(10, 10, clock=time.monotonic, sleep=asyncio.sleep),
            timeout=_TIMEOUT,
            rng=random.Random(),
            sleep=asyncio.sleep,
        )
        try:
            answer = await transport.send("POST", _REVIEWS, body=msgspec.json.encode(body), repeat=Repeat.NEVER)
            status = msgspec.json.decode(answer, type=_Review).status
        except ApiError as e:
            return {401: May.STRANGER, 403: May.NO}.get(e.code, May.UNKNOWN)
        except (FractileError, msgspec.DecodeError, UnicodeDecodeError):
            return May.UNKNOWN
        finally:
            await transport.close()
        return May.YES if status.allowed and not status.denied else May.NO
