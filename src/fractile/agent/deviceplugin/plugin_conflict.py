"""Does another device plugin serve one of our resources on this node? Then kubelet uses the last one to speak.

Kubelet keeps one plugin per resource: a second registration replaces the first, whose list of devices is still taken
when it changes (pkg/kubelet/cm/devicemanager/manager.go). Containers would then get ids of one and an answer of the
other. Two signs are checked: ids in kubelet's record that are not ours, and sockets that are known to be of other
plugins and answer. A conflict is only reported, as an event of the node and a log line, each time that it changes:
removing either of the two plugins, or the family from ``--dialects``, is for people.
"""

import asyncio
import logging
import socket
from collections.abc import Iterable
from pathlib import Path

from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.kube.pacing import Sleep
from fractile.model.units import NodeName
from fractile.wire.foreign import kubelet_checkpoint
from fractile.wire.fractile.device_ids import split
from fractile.wire.kubernetes.objects import Node

REASON = "TwoDevicePlugins"

# Names of sockets: evidence/gpushare.md#names, evidence/gpu-manager.md#names, evidence/hami.md#names.
SOCKETS = {
    "nvidia-gpu.sock": ("nvidia.com/gpu", "NVIDIA's or HAMi's device plugin"),
    "aliyungpushare.sock": ("aliyun.com/gpu-mem", "gpushare's device plugin"),
    "vcore.sock": ("tencent.com/vcuda-core", "gpu-manager"),
    "vmemory.sock": ("tencent.com/vcuda-memory", "gpu-manager"),
}

_ROUND = 60.0  # seconds
_CONNECT = 1.0
_SOMEBODY = "another device plugin"

log = logging.getLogger(__name__)


class PluginConflicts:
    """``look`` finds which other plugin serves which resource of ours; ``run`` checks regularly and emits node
    events."""

    def __init__(
        self,
        client: KubeClient,
        current_catalog: CurrentCatalog,
        events: EventRecorder,
        *,
        node: NodeName,
        plugins: Path,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._client = client
        self._current_catalog = current_catalog
        self._events = events
        self._node = node
        self._plugins = plugins
        self._sleep = sleep
        self._told: dict[str, str] = {}
        self._seen: dict[str, str] = {}

    async def run(self) -> None:
        """Work forever. What one check shows may be a plugin of ours starting; what two show is reported."""
        while True:
            await self._sleep(_ROUND)
            await self.round()

    async def round(self) -> None:
        """Check, and report what the last check showed too."""
        before, self._seen = self._seen, await asyncio.to_thread(self.look)
        lasting = {resource: who for resource, who in self._seen.items() if before.get(resource) == who}
        for resource, who in lasting.items():
            if self._told.get(resource) != who:
                await self._tell(resource, who)
        self._told = lasting

    def look(self) -> dict[str, str]:
        """The other server of each of our resources now, by resource; blocks on files and sockets for a moment."""
        catalog = self._current_catalog.catalog
        found = dict.fromkeys(self._strange(catalog), _SOMEBODY)
        for name, (resource, who) in SOCKETS.items():
            if resource in catalog.resources and _answers(self._plugins / name):
                found[resource] = who
        return found

    def _strange(self, catalog: Catalog) -> Iterable[str]:
        """Resources for which kubelet has recorded ids that are not ours."""
        try:
            text = (self._plugins / kubelet_checkpoint.FILE_NAME).read_bytes()
            recorded = kubelet_checkpoint.registered(text, catalog.resources)
        except (OSError, WireError):
            return ()  # no record, or an unreadable one: not known
        cards = {card.uuid for card in catalog.cards}
        return [resource for resource, ids in recorded.items() if not all(_ours(device, cards) for device in ids)]

    async def _tell(self, resource: str, who: str) -> None:
        message = (
            f"{who} also serves {resource} on this node, and kubelet uses the device plugin that registered last: "
            "remove it from this node, or leave the resource to it with --dialects"
        )
        log.error("two device plugins node=%s resource=%s other=%r", self._node, resource, who)
        try:
            self._events.emit(await self._client.get(paths.node(self._node), Node), REASON, message)
        except (ApiError, Unreachable, WireError) as e:
            log.warning("event not sent node=%s reason=%s", self._node, e)


def _ours(device: str, cards: Iterable[str]) -> bool:
    try:
        return split(device)[0] in cards
    except WireError:
        return False


def _answers(path: Path) -> bool:
    """Whether a program listens there; files of sockets outlive their programs."""
    with socket.socket(socket.AF_UNIX) as one:
        one.settimeout(_CONNECT)
        try:
            one.connect(str(path))
        except OSError:
            return False
    return True
