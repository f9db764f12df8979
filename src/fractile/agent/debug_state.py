"""The agent's state for /debug/state: on a unix socket next to its other files, for root only.

The agent's own page is plain HTTP, over which no token may travel. Users who can open the socket, by `kubectl exec`
in the agent's pod or on the node itself, could read all of it anyway. Changes nothing.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from fractile.agent.devices.health import HealthMonitor
from fractile.agent.limits.journal import Journal
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.agent.usage.http import Handler, PageRequest, Response
from fractile.debug.process_state import AnyReflector, feed_state, process_state
from fractile.kube.pacing import Clock
from fractile.wire.output import debug_state as wire

SOCKET = "debug.sock"  # in the state directory
ALIVE = "/healthz"

_ELSEWHERE = (
    "this port checks no token, so it does not show the state; on the node: `fractile debug-state --socket {socket}`\n"
)


class AgentParts(msgspec.Struct, frozen=True):
    """What the agent works with. ``registered``: the resources that kubelet has accepted."""

    current_catalog: CurrentCatalog
    health: HealthMonitor
    journal: Journal
    pods: NodePods
    feeds: Sequence[AnyReflector]
    registered: Callable[[], frozenset[str]]
    library: str


class AgentDebugState:
    """The handlers: ``shown`` on the socket, ``refused`` on the page that is open to every client."""

    def __init__(
        self, known: AgentParts, state: Path, *, clock: Clock = time.monotonic, now: Clock = time.time
    ) -> None:
        self._known = known
        self._clock = clock
        self._now = now
        self._began = clock()
        self.socket = state / SOCKET

    def routes(self) -> dict[str, Handler]:
        return {wire.PATH: self.shown, ALIVE: self.alive}

    async def alive(self, request: PageRequest) -> Response:
        """Answer kubelet's probe, sent by `fractile alive`: only root can keep it from being answered."""
        return Response(b"ok\n")

    async def shown(self, request: PageRequest) -> Response:
        directories = await asyncio.to_thread(_directories, self._known.journal)
        return Response(wire.encode(self._state(directories)), "application/json")

    async def refused(self, request: PageRequest) -> Response:
        return Response(_ELSEWHERE.format(socket=self.socket).encode(), status=403)

    def _state(self, directories: tuple[wire.DirectoryState, ...]) -> wire.AgentState:
        known = self._known
        return wire.AgentState(
            time=self._now(),
            node=known.pods.node,
            process=process_state(uptime=round(self._clock() - self._began, 3)),
            feeds=tuple(map(feed_state, known.feeds)),
            library=known.library,
            plugins=tuple(_plugins(known.current_catalog.catalog, known.registered())),
            devices=tuple(_devices(known.current_catalog.catalog, known.health)),
            directories=directories,
            pods=sum(1 for _ in known.pods),
        )


def _plugins(catalog: Catalog, registered: frozenset[str]) -> list[wire.PluginState]:
    found: list[wire.PluginState] = []
    for resource in catalog.resources:
        healthy = [well for _, well in catalog.devices(resource)]
        found.append(
            wire.PluginState(
                resource=resource, registered=resource in registered, ids=len(healthy), healthy=sum(healthy)
            )
        )
    return found


def _devices(catalog: Catalog, health: HealthMonitor) -> list[wire.DeviceState]:
    return [
        wire.DeviceState(
            uuid=card.uuid,
            index=card.index,
            model=card.model,
            memory=card.memory,
            healthy=card.healthy,
            reason=health.verdict(card.uuid).reason,
        )
        for card in catalog.all
    ]


def _directories(journal: Journal) -> tuple[wire.DirectoryState, ...]:
    """Blocks. Leaves out directories that are being removed meanwhile."""
    granted = journal.granted()
    return tuple(
        wire.DirectoryState(
            token=grant.token,
            pod_uid=limits.pod_uid if limits else "",
            namespace=limits.namespace if limits else "",
            pod=limits.pod if limits else "",
            container=limits.container if limits else "",
            flags=limits.flags if limits else 0,
            cards={c.uuid: c.memory for c in limits.cards} if limits else {},
        )
        for grant in journal.grants()
        for limits in (granted.get(grant.token),)
    )
