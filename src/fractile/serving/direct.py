"""The verbs of the extender, answered where their bytes arrive: without a task, an application and its layers.

A pod takes three requests, and the layers between parser and verb cost more than filter and prioritize together. So a
plain, whole POST to a known verb is answered here; everything else goes through uvicorn to the application.

    request ──a verb, from an allowed caller?──yes──> body ──> verb ──answer──> written
                       └──no──> uvicorn ──> application <──no answer──┘

A connection handles one verb at a time. What a client sends before it has the answer is not read: the answer announces
the end of the connection, as a server may do (RFC 9112, 9.3.2). kube-scheduler never does that.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from fractile.serving.clients import Clients, Introduced, introduced
from fractile.serving.connections import KeptConnections

Verb = Callable[[bytes], bytes | Awaitable[bytes] | None]  # None: the application must answer
Find = Callable[[bytes], Verb | None]  # by path

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
_LAST = b"connection: close\r\n"


class Direct(HttpToolsProtocol):
    """A connection. ``kept`` delays answers that are awaited; ``clients``: the allowed callers; None: all."""

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        find: Find,
        kept: KeptConnections | None = None,
        clients: Clients | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._find = find
        self._kept = kept
        self._clients = clients
        self._allowed = False
        self._caller: str | None = None  # the name in its certificate
        self._verb: Verb | None = None  # the one whose body is being received
        self._parts: list[bytes] = []
        self._busy = False  # a verb has its body and no answer yet
        self._last = False  # the connection ends with the next answer
        self._over = False  # it is being closed: all further input is ignored

    def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]  # uvicorn's
        super().connection_made(transport)
        self._allowed = self._clients is None or self._is_allowed(self._clients, introduced(transport))
        if self._kept is not None and self._allowed:
            self._kept.come(self)

    def _is_allowed(self, clients: Clients, caller: Introduced) -> bool:
        self._caller = caller.name
        self.app_state = {**self.app_state, **caller.state}
        return not clients.refusal(caller.name)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._kept is not None:
            self._kept.gone(self)
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        if self._busy:
            self._last = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        if self._busy:
            return
        self._verb = self._asked()
        if self._verb is None and not self._over:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._verb is not None:
            self._parts.append(body)
        elif not self._busy:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if self._busy:
            return
        verb, self._verb = self._verb, None
        if verb is None:
            super().on_message_complete()
            return
        parts, self._parts = self._parts, []
        body = b"".join(parts)
        answer = verb(body)
        if isinstance(answer, bytes):
            self._answer(answer)
        elif answer is None:
            self._hand_over(body)
        else:
            self._busy = True
            task = self.loop.create_task(self._later(answer))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def shutdown(self) -> None:
        if self._busy or self._verb is not None:
            self._last = True
        else:
            super().shutdown()

    def _asked(self) -> Verb | None:
        """The verb, if this request can be answered here."""
        idle = self.cycle is None or self.cycle.response_complete  # pyright: ignore[reportUnnecessaryComparison]  # None at first
        verb = self._find(self.url) if idle and self._allowed and not self._last else None
        parser = self.parser
        if self._kept is not None:
            (self._kept.gone if verb is None else self._kept.come)(self)
        if verb is None or parser is None or parser.get_method() != b"POST" or self.expect_100_continue:
            return None
        length = dict(self.headers).get(b"content-length", b"")
        plain = length.isdigit() and len(length) < 20
        lasting = parser.get_http_version() == "1.1" and parser.should_keep_alive()
        return verb if plain and lasting else None

    def _hand_over(self, body: bytes) -> None:
        super().on_headers_complete()
        super().on_body(body)
        super().on_message_complete()

    async def _later(self, answer: Awaitable[bytes]) -> None:
        self._answer(await (self._kept.held(answer) if self._kept else answer))

    def _answer(self, body: bytes) -> None:
        self._busy = False
        if self.transport.is_closing():
            return
        default = b"".join(b"%b: %b\r\n" % header for header in self.server_state.default_headers)
        last = _LAST if self._last else b""
        self.transport.write(b"".join((_HEAD % len(body), default, last, b"\r\n", body)))
        self.server_state.total_requests += 1
        if self._last:
            self.transport.close()
            return
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
