"""Replaces kube-proxy in a local cluster: forwards a loopback port per Service to an endpoint that is ready.

The API server and kube-scheduler of a local cluster are processes on this machine and cannot use Service addresses.
Failure rule: open. If the API server does not answer, the last known endpoints are used until it does.
"""

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

import msgspec

from fractile.errors import FractileError
from fractile.kube.client import KubeClient
from fractile.lab.machine.forwarding import Address, Way, forward
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta

_FRESH = 0.25  # seconds for which endpoints are cached
_SERVICE = "kubernetes.io/service-name"

log = logging.getLogger(__name__)


class Forward(msgspec.Struct, frozen=True):
    """A ``port`` of the loopback address, and the Service that it leads to."""

    port: int
    namespace: str
    service: str


class EndpointConditions(KubeStruct, frozen=True):
    ready: bool | None = None


class Endpoint(KubeStruct, frozen=True):
    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = EndpointConditions()


class Port(KubeStruct, frozen=True):
    port: int = 0


class EndpointSlice(KubeStruct, frozen=True):
    """The fields of a discovery.k8s.io/v1 EndpointSlice that a proxy needs."""

    metadata: ObjectMeta = ObjectMeta()
    endpoints: list[Endpoint] | None = None
    ports: list[Port] | None = None


class ServiceProxy:
    """Serves all forwards until it is cancelled."""

    def __init__(self, client: KubeClient, forwards: Sequence[Forward]) -> None:
        self._client = client
        self._forwards = forwards
        self._known: dict[Forward, tuple[float, list[Address]]] = {}

    async def run(self) -> None:
        await forward([Way(f.port, f"{f.namespace}/{f.service}", partial(self._ready, f)) for f in self._forwards])

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
    """The addresses of the ready endpoints, with the slice's first port."""
    ports = [p.port for p in slice_.ports or ()][:1]
    ready = [e for e in slice_.endpoints or () if e.conditions.ready is not False]
    return [(host, port) for e in ready for host in e.addresses for port in ports]
