"""What plays kube-proxy in a local cluster: a loopback port for a Service, passed on to an endpoint that is ready.

The API server and kube-scheduler of a local cluster are processes of this machine and know no Service addresses. Each
connection asks anew which endpoint is ready, so it follows the leader; a connection for which there is none is closed,
as kube-proxy refuses it.

Failure rule: open. What the API server does not answer is asked again with the next connection, with the last known
endpoints meanwhile.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence

import msgspec

from fractile.errors import FractileError
from fractile.kube.client import KubeClient
from fractile.wire.objects import KubeStruct, ObjectMeta

_FRESH = 0.25  # seconds for which an answer about endpoints is used again
_CONNECT = 3.0  # seconds
_CHUNK = 2**16
_SERVICE = "kubernetes.io/service-name"

log = logging.getLogger(__name__)


class Forward(msgspec.Struct, frozen=True):
    """``port`` of the loopback address; the Service that it stands for."""

    port: int
    namespace: str
    service: str


class Condition(KubeStruct, frozen=True):
    ready: bool | None = None


class Endpoint(KubeStruct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: Condition = Condition()


class Port(KubeStruct, frozen=True):
    port: int = 0


class EndpointSlice(KubeStruct, frozen=True):
    """discovery.k8s.io/v1, of it what a proxy needs."""

    metadata: ObjectMeta = ObjectMeta()
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


Address = tuple[str, int]


class ServiceProxy:
    """Serves all forwards until it is cancelled."""

    def __init__(self, client: KubeClient, forwards: Sequence[Forward]) -> None:
        self._client = client
        self._forwards = forwards
        self._known: dict[Forward, tuple[float, list[Address]]] = {}

    async def run(self) -> None:
        async with contextlib.AsyncExitStack() as stack:
            for forward in self._forwards:
                server = await asyncio.start_server(self._handler(forward), "127.0.0.1", forward.port)
                await stack.enter_async_context(server)
                log.info("forwards port=%d service=%s/%s", forward.port, forward.namespace, forward.service)
            await asyncio.Event().wait()

    def _handler(self, forward: Forward) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                await self._connect(forward, reader, writer)
            except (OSError, TimeoutError) as e:
                log.info("connection ended service=%s reason=%r", forward.service, str(e))
            finally:
                writer.close()

        return handle

    async def _connect(self, forward: Forward, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for host, port in await self._ready(forward):
            async with asyncio.timeout(_CONNECT):
                inner_reader, inner_writer = await asyncio.open_connection(host, port)
            try:
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(_copy(reader, inner_writer))
                    tasks.create_task(_copy(inner_reader, writer))
            finally:
                inner_writer.close()
            return
        log.info("no endpoint is ready service=%s/%s", forward.namespace, forward.service)

    async def _ready(self, forward: Forward) -> list[Address]:
        now = asyncio.get_running_loop().time()
        asked, known = self._known.get(forward, (-_FRESH, []))
        if now - asked < _FRESH:
            return known
        path = f"/apis/discovery.k8s.io/v1/namespaces/{forward.namespace}/endpointslices"
        try:
            slices, _ = await self._client.list(path, EndpointSlice, label_selector=f"{_SERVICE}={forward.service}")
            known = [address for one in slices for address in addresses(one)]
        except FractileError as e:
            log.warning("endpoints unknown service=%s reason=%r", forward.service, str(e))
        self._known[forward] = (now, known)
        return known


def addresses(slice_: EndpointSlice) -> list[Address]:
    """The endpoints that are ready, with the slice's only port."""
    ports = [p.port for p in slice_.ports or ()][:1]
    ready = [e for e in slice_.endpoints or () if e.conditions.ready is not False]
    return [(host, port) for e in ready for host in e.addresses for port in ports]


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the one side ends; the other is then told."""
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(_CHUNK):  # as long as both sides keep it: connections of HTTP are kept open
            writer.write(data)
            await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof() if writer.can_write_eof() else writer.close()
