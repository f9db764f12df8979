"""One HTTP exchange with the API server, and when it is repeated.

Failure rule: an error status is ApiError, no answer is Unreachable, an answer that is not Kubernetes JSON is WireError.
A write that its ``fence`` does not allow is NotLeading, and was not begun.
429 is repeated for every verb but Binding (priority and fairness refuses before anything is done); 500, 502, 503, 504
and lost connections only for verbs that may be done twice. After a 401 the token is read again, once. Everything else
is left to the caller.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from enum import Enum

import msgspec

from fractile import __version__
from fractile.errors import ApiError, NotLeading, NotSent, Unreachable
from fractile.kube.backoff import Backoff
from fractile.kube.credentials import Credentials
from fractile.kube.http import Cut, Http, HTTPRequest, HTTPResponse
from fractile.kube.pacing import Pacer, Sleep

_ATTEMPTS = 5
_TRANSIENT = (500, 502, 503, 504)
_LONGEST_RETRY_AFTER = 30.0  # seconds; if a server requests a longer wait, the call is still repeated after this


Fence = Callable[[], float]


def open_fence() -> float:
    """Writes are always allowed."""
    return float("inf")


def _always() -> bool:
    return True


class Repeat(Enum):
    """Which failures of a call may be answered by repeating it."""

    NEVER = "never"
    REFUSED = "refused"  # only 429: the call was not begun
    ALWAYS = "always"  # the call may be done twice


class _Status(msgspec.Struct, frozen=True):
    """The relevant part of metav1.Status, which is also the object of a watch event of type ERROR."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


class Transport:
    """Sends requests at a limited pace over kept connections. ``fence`` returns for how many seconds writes are
    allowed: it is called right before each write, and no write is awaited for longer."""

    def __init__(
        self,
        credentials: Credentials,
        *,
        pacer: Pacer,
        timeout: float,
        rng: random.Random,
        sleep: Sleep,
        fence: Fence = open_fence,
    ) -> None:
        self._fence = fence
        self._credentials = credentials
        self._pacer = pacer
        self._timeout = timeout
        self._rng = rng
        self._sleep = sleep
        self._http = Http(
            credentials.server,
            tls=credentials.tls,
            server_name=credentials.server_name,
            headers={"User-Agent": f"fractile/{__version__}", "Accept": "application/json", "Accept-Encoding": "gzip"},
        )

    async def close(self) -> None:
        await self._http.close()

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        repeat: Repeat = Repeat.ALWAYS,
        still_due: Callable[[], bool] = _always,
    ) -> bytes:
        """Send a request and return the body of a successful answer. ``still_due`` is called whenever the request is
        about to be sent, after the waits for the pace and for a login; NotSent when it returns False."""
        request = _request(method, path, params=params, body=body, content_type=content_type)
        backoff = Backoff(base=0.1, cap=5.0, rng=self._rng)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._attempt(request, still_due)
            except (ApiError, Unreachable) as e:
                if attempt == _ATTEMPTS or not _may_repeat(e, repeat):
                    raise
                wait = backoff.next()
                if isinstance(e, RetryLater):
                    wait = max(wait, e.retry_after)
                await self._sleep(wait)
        raise AssertionError("the loop above returns or raises")

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence: float
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        """An endless answer, in pieces. ``silence`` seconds without a byte end it with Unreachable."""
        await self._pacer.wait()
        answer, body = await self._exchange(_request("GET", path, params=params), _always, whole=False)
        try:
            if answer.status >= 300:
                raise _refusal(answer, body)
            async with aclosing(answer.pieces(silence=silence)) as pieces:
                yield pieces
        finally:
            answer.close()

    async def _attempt(self, request: HTTPRequest, still_due: Callable[[], bool]) -> bytes:
        await self._pacer.wait()
        answer, body = await self._exchange(request, still_due, whole=True)
        if answer.status >= 300:
            raise _refusal(answer, body)
        return body

    async def _exchange(
        self, request: HTTPRequest, still_due: Callable[[], bool], *, whole: bool
    ) -> tuple[HTTPResponse, bytes]:
        """Send with the current token; after a 401 once more with a new one."""
        answer, body = await self._send(request, still_due, whole=whole)
        if answer.status == 401 and self._credentials.token.rejected():
            return await self._send(request, still_due, whole=whole)
        return answer, body

    async def _send(
        self, request: HTTPRequest, still_due: Callable[[], bool], *, whole: bool
    ) -> tuple[HTTPResponse, bytes]:
        """The answer, with its body if ``whole`` is set or it is a refusal."""
        token = await self._credentials.token.token()
        if token:
            headers = {**request.headers, "Authorization": f"Bearer {token}"}
            request = msgspec.structs.replace(request, headers=headers)
        limit = self._timeout
        if request.method != "GET":
            limit = min(limit, self._fence())
            if limit <= 0:
                raise NotLeading("this replica does not lead; another one will answer in a moment")
        if not still_due():
            raise NotSent(f"{self._http.where(request)} waited for its turn until it was no longer due")
        try:
            # One limit for all of it, so that an answer that arrives in drips cannot hold us up.
            async with asyncio.timeout(limit):
                answer = await self._http.send(request)
                return answer, await answer.read() if whole or answer.status >= 300 else b""
        except TimeoutError:
            raise Unreachable(f"{self._http.where(request)} did not answer within {limit:.3g} s") from None


class RetryLater(ApiError):
    """An ApiError with the seconds until a retry (Retry-After); 0 if the server gave none."""

    retry_after: float = 0.0


def _may_repeat(error: ApiError | Unreachable, repeat: Repeat) -> bool:
    if isinstance(error, ApiError) and error.code == 429:
        return repeat is not Repeat.NEVER
    if isinstance(error, ApiError):
        return repeat is Repeat.ALWAYS and error.code in _TRANSIENT
    return repeat is Repeat.ALWAYS and isinstance(error, Cut)


def _request(
    method: str,
    path: str,
    *,
    params: Mapping[str, str] | None = None,
    body: bytes | None = None,
    content_type: str = "",
) -> HTTPRequest:
    return HTTPRequest(method, path, params or {}, {"Content-Type": content_type} if body is not None else {}, body)


def status_error(body: bytes | msgspec.Raw) -> ApiError | None:
    """The error that a metav1.Status describes; None when the bytes are something else."""
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if status.kind != "Status" or not status.code:
        return None
    return ApiError(status.code, status.reason, status.message)


def _refusal(answer: HTTPResponse, body: bytes) -> ApiError:
    known = status_error(body)
    if known is not None:
        error = RetryLater(answer.status, known.reason, known.message)
    else:  # a proxy, a load balancer, or not an API server at all
        text = " ".join(body.decode(errors="replace").split())
        error = RetryLater(answer.status, answer.reason, text[:200] or "(no text)")
    error.retry_after = _retry_after(answer)
    return error


def _retry_after(answer: HTTPResponse) -> float:
    text = answer.headers.get("retry-after", "")
    # The API server sends whole seconds; a date (RFC 9110 allows it) is ignored.
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isascii() and text.isdigit() else 0.0
