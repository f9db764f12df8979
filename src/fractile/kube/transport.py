"""One HTTP exchange with the API server, and when it is repeated.

Failure rule: an error status is ApiError, no answer is Unreachable, an answer that is no Kubernetes JSON is WireError.
429 is repeated for every verb but Binding (priority and fairness refuses before anything is done), 500, 502, 503, 504
and lost connections only for verbs that may be done twice. 401 makes us read the token anew, once. Everything else is
the caller's to decide.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from enum import Enum

import httpx2
import msgspec

from fractile import __version__
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube.backoff import Backoff
from fractile.kube.credentials import Credentials
from fractile.kube.pacing import Pacer, Sleep

_ATTEMPTS = 5
_TRANSIENT = (500, 502, 503, 504)
_LONGEST_RETRY_AFTER = 30.0  # seconds; a server that asks for more is asked again earlier
_CONNECT = 5.0
# The API server closes connections that are idle for 90 s; we leave first, so that no write meets a closing one.
_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=45.0)


class Repeat(Enum):
    """Which failures of a call may be answered by doing it again."""

    NEVER = "never"
    REFUSED = "refused"  # only 429: the call was not begun
    ALWAYS = "always"  # the call may be done twice


class _Status(msgspec.Struct, frozen=True):
    """metav1.Status, as far as it is shown. Also the object of a watch event of type ERROR."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""


class Transport:
    """Sends requests at a bounded pace over kept connections."""

    def __init__(
        self, credentials: Credentials, *, pacer: Pacer, timeout: float, rng: random.Random, sleep: Sleep
    ) -> None:
        self._credentials = credentials
        self._pacer = pacer
        self._timeout = timeout
        self._rng = rng
        self._sleep = sleep
        self._extensions = {"sni_hostname": credentials.server_name} if credentials.server_name else {}
        self._http = httpx2.AsyncClient(
            # Without TLS httpx would still load the system's authorities, 20 ms and 3 MB.
            verify=credentials.tls if credentials.tls is not None else credentials.server.startswith("https://"),
            timeout=httpx2.Timeout(timeout, connect=_CONNECT),
            limits=_LIMITS,
            headers={"User-Agent": f"fractile/{__version__}", "Accept": "application/json", "Accept-Encoding": "gzip"},
            trust_env=False,  # proxies and ~/.netrc are not for the cluster's own API
        )

    async def close(self) -> None:
        await self._http.aclose()

    async def send(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        repeat: Repeat = Repeat.ALWAYS,
    ) -> bytes:
        """The body of a successful answer."""
        request = self._request(method, path, params=params, body=body, content_type=content_type)
        backoff = Backoff(base=0.1, cap=5.0, rng=self._rng)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._attempt(request)
            except (ApiError, Unreachable) as e:
                if attempt == _ATTEMPTS or not _may_repeat(e, repeat):
                    raise
                wait = backoff.next()
                if isinstance(e, Refused):
                    wait = max(wait, e.retry_after)
                await self._sleep(wait)
        raise AssertionError("the loop above returns or raises")

    @asynccontextmanager
    async def stream(
        self, path: str, *, params: Mapping[str, str], silence: float
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        """An endless answer, in pieces. ``silence`` seconds without a byte end it with Unreachable."""
        request = self._request("GET", path, params=params)
        request.extensions["timeout"] = httpx2.Timeout(self._timeout, connect=_CONNECT, read=silence).as_dict()
        await self._pacer.wait()
        response = await self._exchange(request, stream=True)
        try:
            if response.status_code >= 300:
                await self._read(request, response)
                raise _refusal(response)
            yield _pieces(request, response)
        finally:
            await response.aclose()

    def _request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "",
    ) -> httpx2.Request:
        headers = {"Content-Type": content_type} if body is not None else None
        url = self._credentials.server + path
        return self._http.build_request(
            method, url, params=params or None, content=body, headers=headers, extensions=dict(self._extensions)
        )

    async def _attempt(self, request: httpx2.Request) -> bytes:
        await self._pacer.wait()
        response = await self._exchange(request, stream=False)
        if response.status_code >= 300:
            raise _refusal(response)
        return response.content

    async def _exchange(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        """Send with the token of the moment; after a 401 once more with a new one."""
        response = await self._send(request, stream=stream)
        if response.status_code == 401 and self._credentials.token.rejected():
            await response.aclose()
            response = await self._send(request, stream=stream)
        return response

    async def _send(self, request: httpx2.Request, *, stream: bool) -> httpx2.Response:
        token = await self._credentials.token.token()
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        try:
            # httpx times each read; this bounds the whole, so that an answer that drips in cannot hold us.
            async with asyncio.timeout(self._timeout):
                return await self._http.send(request, stream=stream)
        except TimeoutError:
            raise Unreachable(f"{_where(request)} did not answer within {self._timeout:g} s") from None
        except httpx2.DecodingError as e:
            raise WireError(f"the answer of {_where(request)} is damaged: {e}") from None
        except httpx2.TransportError as e:
            raise _unreachable(request, e) from None

    async def _read(self, request: httpx2.Request, response: httpx2.Response) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await response.aread()
        except (httpx2.HTTPError, TimeoutError) as e:
            raise _unreachable(request, e) from None


class Refused(ApiError):
    """An ApiError that says when to come back (Retry-After); 0 when it does not."""

    retry_after: float = 0.0


def _may_repeat(error: ApiError | Unreachable, repeat: Repeat) -> bool:
    if isinstance(error, ApiError) and error.code == 429:
        return repeat is not Repeat.NEVER
    if isinstance(error, ApiError):
        return repeat is Repeat.ALWAYS and error.code in _TRANSIENT
    return repeat is Repeat.ALWAYS and isinstance(error, _Cut)


class _Cut(Unreachable):
    """The connection broke or was refused, at once: worth another attempt, unlike a server that lets us wait."""


def status_error(body: bytes | msgspec.Raw) -> ApiError | None:
    """The error that a metav1.Status describes; None when the bytes are something else."""
    try:
        status = msgspec.json.decode(body, type=_Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if status.kind != "Status" or not status.code:
        return None
    return ApiError(status.code, status.reason, status.message)


def _refusal(response: httpx2.Response) -> ApiError:
    known = status_error(response.content)
    code = response.status_code
    if known is not None:
        error = Refused(code, known.reason, known.message)
    else:  # a proxy, a load balancer, or no API server at all
        error = Refused(code, response.reason_phrase, " ".join(response.text.split())[:200] or "(no text)")
    error.retry_after = _retry_after(response)
    return error


def _retry_after(response: httpx2.Response) -> float:
    text = response.headers.get("Retry-After", "")
    # The API server sends whole seconds; a date (RFC 9110 allows it) is treated as none.
    return min(float(text), _LONGEST_RETRY_AFTER) if text.isascii() and text.isdigit() else 0.0


async def _pieces(request: httpx2.Request, response: httpx2.Response) -> AsyncGenerator[bytes, None]:
    try:
        async for piece in response.aiter_bytes():
            yield piece
    except httpx2.DecodingError as e:
        raise WireError(f"the answer of {_where(request)} is damaged: {e}") from None
    except httpx2.TransportError as e:
        raise _unreachable(request, e) from None


def _unreachable(request: httpx2.Request, error: Exception) -> Unreachable:
    text = f"no answer from {_where(request)}: {str(error) or type(error).__name__}"
    return Unreachable(text) if isinstance(error, httpx2.TimeoutException | TimeoutError) else _Cut(text)


def _where(request: httpx2.Request) -> str:
    return f"{request.method} {request.url.copy_with(query=None)}"
