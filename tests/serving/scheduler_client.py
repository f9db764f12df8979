"""kube-scheduler's side of the extender over TLS, with its certificate, for tests and benchmarks.

One connection is kept for filter and prioritize; a bind opens one of its own, as Go does where no idle one is left.
"""

import asyncio
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import trustme

NAME = "system:kube-scheduler"


class SchedulerClient:
    """``taken``: seconds of every call, its connection included; ``used``: the same by the clock ``server``."""

    def __init__(self, port: int, trust: ssl.SSLContext, server: Callable[[], float] = time.monotonic) -> None:
        self._server = server
        self.used: dict[str, list[float]] = {}
        self.port = port
        self.trust = trust
        self._kept: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.taken: dict[str, list[float]] = {}

    async def ask(self, verb: str, body: bytes, *, kept: bool = True, label: str = "") -> Any:
        """The answer; its time counts as that of ``label``. A kept connection that has been closed is opened again."""
        began, before = time.monotonic(), self._server()
        if not kept or self._kept is None or self._kept[1].is_closing():
            connection = await self.connect()
            self._kept = connection if kept else self._kept
        else:
            connection = self._kept
        reader, writer = connection
        writer.write(
            f"POST /scheduler/{verb} HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        )
        status, answer = await answered(reader)
        assert status == 200, (status, answer[:200])
        self.taken.setdefault(label or verb, []).append(time.monotonic() - began)
        self.used.setdefault(label or verb, []).append(self._server() - before)
        if not kept:
            writer.transport.abort()
        return msgspec.json.decode(answer)

    async def bind(self, name: str, uid: str, node: str) -> str:
        asked = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": node}
        return (await self.ask("bind", msgspec.json.encode(asked), kept=False))["Error"]

    def close(self) -> None:
        """As it is killed."""
        if self._kept is not None:
            self._kept[1].transport.abort()

    async def get(self, path: str) -> tuple[int, bytes]:
        """Over a connection of its own."""
        reader, writer = await self.connect()
        writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\n\r\n".encode())
        try:
            return await answered(reader)
        finally:
            writer.transport.abort()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        opened = asyncio.open_connection("127.0.0.1", self.port, ssl=self.trust, server_hostname="127.0.0.1")
        return await asyncio.wait_for(opened, 10)

    async def until_ready(self, seconds: float = 60) -> None:
        async with asyncio.timeout(seconds):
            while not await self._is_ready():  # noqa: ASYNC110 - it says so when it is asked
                await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        try:
            return (await self.get("/readyz"))[0] == 200
        except OSError:
            return False


async def answered(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
    length = next(int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length:"))
    return int(head.split(" ", 2)[1]), await reader.readexactly(length)


class Authorities:
    """One for the server's certificate, one for callers'."""

    def __init__(self, folder: Path) -> None:
        self.servers, self.callers = trustme.CA(), trustme.CA()
        pair = self.servers.issue_cert("127.0.0.1")
        self.cert, self.key, self.ca = folder / "tls.crt", folder / "tls.key", folder / "callers.crt"
        pair.cert_chain_pems[0].write_to_path(str(self.cert))
        pair.private_key_pem.write_to_path(str(self.key))
        self.callers.cert_pem.write_to_path(str(self.ca))

    @property
    def options(self) -> tuple[str, ...]:
        """Of the control plane."""
        return f"--tls-cert={self.cert}", f"--tls-key={self.key}", f"--client-ca={self.ca}", f"--client-name={NAME}"

    def trust(self, name: str = NAME) -> ssl.SSLContext:
        """Of a caller; "" for one without a certificate."""
        context = ssl.create_default_context(cadata=self.servers.cert_pem.bytes().decode())
        if name:
            pair = self.callers.issue_cert("caller.test", common_name=name)
            pair.configure_cert(context)  # pyright: ignore[reportUnknownMemberType]  # half typed
        return context
