"""The node's cards and other devices: their health, and their objects in the API server."""

from collections.abc import Coroutine
from functools import partial
from typing import Any

from fractile.agent.deviceplugin.plugin_conflict import PluginConflicts
from fractile.agent.devices.availability import Availability
from fractile.agent.devices.health import HealthMonitor
from fractile.agent.devices.health_events import HealthEvents
from fractile.agent.devices.inventory import Inventory
from fractile.agent.devices.publish_file import DeviceFile
from fractile.agent.devices.publish_holders import NodeHolders
from fractile.agent.devices.xid_attribution import XidAttribution, pod_of
from fractile.agent.kubelet.arrivals import arriving
from fractile.kube.client import KubeClient
from fractile.main.node.known import NodeKnowledge
from fractile.main.node.kubelet_calls import KubeletCalls
from fractile.main.node.options import AgentOptions
from fractile.nvml.driver import Driver


class NodeDevices:
    """``availability`` withdraws the objects when the agent ends; ``close`` stops reading the kernel's log."""

    def __init__(
        self, driver: Driver, known: NodeKnowledge, calls: KubeletCalls, client: KubeClient, options: AgentOptions
    ) -> None:
        self._known, self._client, self._options = known, client, options
        self._xids = XidAttribution(pod_of(known.pods, known.journal))
        if options.kernel_log is not None:
            self._xids.open(options.kernel_log)
        self.health = HealthMonitor(
            driver,
            known.current_catalog,
            HealthEvents(known.pods, known.events, suspects=self._xids),
            rules=options.rules,
            interval=options.look,
        )
        holders = NodeHolders(known.pods, lambda: known.departed.present)
        self._file = (
            DeviceFile(
                options.devices, known.current_catalog, node=options.node, others=self.health.verdict, holders=holders
            )
            if options.devices is not None
            else None
        )
        if self._file is not None:
            self._file.look()
        self.availability = Availability(
            client,
            known.current_catalog,
            registered=calls.registrar.registered,
            known=self.health.adopted,
            enforced=options.installed is not None,
            verdict=self._file.verdict if self._file is not None else self.health.verdict,
            stamp=self.health.stamp,
            holders=holders,
            arriving=partial(arriving, known.kubelet, known.pods),
        )

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        known, options = self._known, self._options
        inventory = Inventory(
            self._client,
            known.current_catalog,
            self.health,
            known.events,
            node=options.node,
            served=options.dialects,
            strange=self.availability.forget,
        )
        conflicts = PluginConflicts(
            self._client, known.current_catalog, known.events, node=options.node, plugins=options.plugins
        )
        return (
            self.availability.run(),
            self.health.run(),
            inventory.run(),
            conflicts.run(),
            *([self._file.run()] if self._file is not None else []),
        )

    def close(self) -> None:
        self._xids.close()
