"""Local gRPC services, both sides: names of the methods, and typed calls and handlers over the messages.

All are kubelet's, except that of gpu-manager's library. Written by hand instead of generated: there are ten methods,
and generated code is untyped and tied to one gRPC version.
"""

# gRPC's type stubs leave the message types of channels, handlers and servers open; this module fills them in.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

import functools
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast

import grpc
import grpc.aio
import msgspec
from google.protobuf.message import Message

from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.kubelet.api import podresources_pb2 as pr
from fractile.agent.kubelet.api import vcuda_pb2 as vcuda

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)

VERSION = "v1beta1"
KUBELET_SOCKET = "kubelet.sock"

# 60,000 ids take 3 MB, and a List has the ids of every pod; gRPC's own limit is 4 MB.
_MAX_MESSAGE = 64 * 2**20
Options = Sequence[tuple[str, int]]
_SERVER_OPTIONS: Options = [("grpc.max_receive_message_length", _MAX_MESSAGE)]
_CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", _MAX_MESSAGE),
    ("grpc.max_send_message_length", _MAX_MESSAGE),
    # A shared subchannel would remember that the previous kubelet was gone, and wait a second.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
]


class Method(msgspec.Struct, Generic[Q, R], frozen=True):
    """One method of a service: its path on the wire and its messages."""

    path: str
    request: type[Q]
    response: type[R]

    @property
    def service(self) -> str:
        return self.path.split("/")[1]

    @property
    def name(self) -> str:
        return self.path.split("/")[2]


REGISTER = Method("/v1beta1.Registration/Register", dp.RegisterRequest, dp.Empty)
OPTIONS = Method("/v1beta1.DevicePlugin/GetDevicePluginOptions", dp.Empty, dp.DevicePluginOptions)
LIST_AND_WATCH = Method("/v1beta1.DevicePlugin/ListAndWatch", dp.Empty, dp.ListAndWatchResponse)
PREFER = Method(
    "/v1beta1.DevicePlugin/GetPreferredAllocation", dp.PreferredAllocationRequest, dp.PreferredAllocationResponse
)
ALLOCATE = Method("/v1beta1.DevicePlugin/Allocate", dp.AllocateRequest, dp.AllocateResponse)
PRE_START = Method("/v1beta1.DevicePlugin/PreStartContainer", dp.PreStartContainerRequest, dp.PreStartContainerResponse)
LIST = Method("/v1.PodResourcesLister/List", pr.ListPodResourcesRequest, pr.ListPodResourcesResponse)
LIST_ENCODED = Method("/v1.PodResourcesLister/List", pr.ListPodResourcesRequest, pr.EncodedPodResourcesResponse)
GET = Method("/v1.PodResourcesLister/Get", pr.GetPodResourcesRequest, pr.GetPodResourcesResponse)
GET_ALLOCATABLE = Method(
    "/v1.PodResourcesLister/GetAllocatableResources", pr.AllocatableResourcesRequest, pr.AllocatableResourcesResponse
)
REGISTER_VDEVICE = Method("/vcuda.VCUDAService/RegisterVDevice", vcuda.VDeviceRequest, vcuda.VDeviceResponse)

RpcError = grpc.RpcError


class Context(Protocol):
    """A handler's argument in addition to the request."""

    def peer(self) -> str:
        """The caller's address: for a unix socket, the name that it is bound to."""
        ...

    async def abort(self, code: grpc.StatusCode, details: str) -> NoReturn:
        """Answer with an error."""
        ...


class Handler(msgspec.Struct, frozen=True):
    """The implementation of one method; made by ``unary`` or ``streaming``, used by ``serve``."""

    service: str
    name: str
    behaviour: Any  # gRPC's own type has no useful parameters


@functools.cache
def _stay() -> None:
    """Keep gRPC's poller for the life of this process. Otherwise it ends with the last server or channel, the next one
    starts another, and the end sometimes hangs (seen in tests/agent; grpc/grpc#22365, #43364)."""
    grpc.aio.init_grpc_aio()  # pyright: ignore[reportAttributeAccessIssue]  # the stubs leave it out


def channel(socket: Path) -> grpc.aio.Channel:
    """A channel to a unix socket; an async context manager. It connects at the first call."""
    _stay()
    return grpc.aio.insecure_channel(f"unix:{socket}", options=_CHANNEL_OPTIONS)


async def call(channel: grpc.aio.Channel, method: Method[Q, R], request: Q, *, timeout: float | None) -> R:
    """One call; RpcError when it fails or times out."""
    stub = channel.unary_unary(
        method.path, request_serializer=_serialize, response_deserializer=method.response.FromString
    )
    return cast(R, await stub(request, timeout=timeout))


async def call_socket(socket: Path, method: Method[Q, R], request: Q, *, timeout: float) -> R:
    """One call on a fresh connection, so that it reaches a kubelet that has just started without delay."""
    async with channel(socket) as fresh:
        return await call(fresh, method, request, timeout=timeout)


Identity = tuple[int, int, int]


class KubeletChannel:
    """A connection to a unix socket, kept as long as the same socket is at the path: a call is 1 ms shorter than on a
    fresh connection. A call that fails because the server is unavailable is retried once on a fresh connection, so that
    it reaches a kubelet that has just started. One call at a time."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._kept: tuple[Identity, grpc.aio.Channel] | None = None

    async def call(self, method: Method[Q, R], request: Q, *, timeout: float) -> R:
        """One call; RpcError when it fails or times out."""
        there = identity(self._socket)
        if self._kept is not None and self._kept[0] == there:
            try:
                return await call(self._kept[1], method, request, timeout=timeout)
            except grpc.aio.AioRpcError as e:
                if e.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
        await self.close()
        if there is None:
            return await call_socket(self._socket, method, request, timeout=timeout)
        fresh = channel(self._socket)
        self._kept = there, fresh
        return await call(fresh, method, request, timeout=timeout)

    async def close(self) -> None:
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept[1].close(None)


def identity(path: Path) -> Identity | None:
    """Identity of one server's socket; an inode number alone may be reused immediately."""
    try:
        return _identity(path.stat())
    except OSError:
        return None


@contextmanager
def exactly(path: Path, server: Identity) -> Generator[Path | None]:
    """Another path of this server's socket, by which no call can reach a later server; None when it has gone."""
    try:
        held = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        yield None
        return
    try:
        yield Path(f"/proc/self/fd/{held}") if _identity(os.fstat(held)) == server else None
    finally:
        os.close(held)


def _identity(stat: os.stat_result) -> Identity:
    return stat.st_dev, stat.st_ino, stat.st_mtime_ns


def stream(channel: grpc.aio.Channel, method: Method[Q, R], request: Q) -> AsyncIterator[R]:
    """A call with a stream of answers; RpcError when the other side ends it."""
    stub = channel.unary_stream(
        method.path, request_serializer=_serialize, response_deserializer=method.response.FromString
    )
    return cast(AsyncIterator[R], stub(request))


def unary(method: Method[Q, R], behaviour: Callable[[Q, Context], Awaitable[R]]) -> Handler:
    """A method with one answer."""
    handler = grpc.unary_unary_rpc_method_handler(
        behaviour, request_deserializer=method.request.FromString, response_serializer=_serialize
    )
    return Handler(method.service, method.name, handler)


def streaming(method: Method[Q, R], behaviour: Callable[[Q, Context], AsyncIterator[R | bytes]]) -> Handler:
    """A method that answers with a stream, of messages or of encoded messages."""
    handler = grpc.unary_stream_rpc_method_handler(
        behaviour, request_deserializer=method.request.FromString, response_serializer=_serialize
    )
    return Handler(method.service, method.name, handler)


async def serve(socket: Path, *handlers: Handler, options: Options = _SERVER_OPTIONS) -> grpc.aio.Server:
    """Start a server on a unix socket. gRPC unlinks the path when it stops: never use one path twice."""
    _stay()
    server = grpc.aio.server(options=options)
    for service in sorted({h.service for h in handlers}):
        own = {h.name: h.behaviour for h in handlers if h.service == service}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, own),))
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
