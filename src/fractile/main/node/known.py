"""What the agent knows: cards, pods of its node, directories that it granted, and kubelet's record."""

import asyncio
import logging
import secrets
from pathlib import Path

from fractile.agent.audit.departed import DepartedPods
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.isolation import Isolation
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.library_content import LibraryContent
from fractile.agent.limits.slices import Slices
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods
from fractile.errors import SetupError
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.main.node.options import AgentOptions, SharedFiles
from fractile.model.units import PodUID
from fractile.nvml.driver import Driver
from fractile.region import bounded
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME as CHECKPOINT

log = logging.getLogger(__name__)


class NodeKnowledge:
    """``watch`` must be run by the caller; ``resources`` are offered to kubelet."""

    def __init__(self, driver: Driver, client: KubeClient, options: AgentOptions) -> None:
        catalog = Catalog.of(
            driver.cards(), options.unit, slots=options.slots, dialects=options.dialects, others=options.others
        )
        self.resources = catalog.resources
        self.current_catalog = CurrentCatalog(catalog)
        self.journal = Journal(
            options.state / "slices", new_token=new_token, in_memory=_in_memory(options.shared_files, options.state)
        )
        self.content = LibraryContent()
        self.kubelet = Kubelet(options.pod_resources, options.plugins / CHECKPOINT)
        self.pods = NodePods(client, node=options.node, unit=options.unit, dialects=options.dialects)
        self.watch = self.pods.follow()
        self.isolation = Isolation(client, node=options.node, fresh=options.label_refresh)
        self.events = EventRecorder(client, "fractile-agent")
        self.departed = DepartedPods(Slices(self.journal), self.pods, self.events)

    async def granted_before(self) -> list[PodUID]:
        """UIDs of the pods to which an earlier agent granted anything, once all pods of the node are known."""
        while not await self.pods.synced(60.0):
            log.warning("pods of the node not listed yet node=%s", self.pods.node)
        grants = await asyncio.to_thread(lambda: [self.journal.limits(g.token) for g in self.journal.grants()])
        return [limits.pod_uid for limits in grants if limits is not None]


def new_token() -> str:
    """A name that no directory or socket has had before."""
    return secrets.token_hex(16)


def _in_memory(wanted: SharedFiles, state: Path) -> bool:
    """Whether the files that containers may write get file systems of their own."""
    if wanted == "disk":
        return False
    reason = bounded.why_not(state)
    if not reason:
        return True
    if wanted == "memory":
        raise SetupError(f"--shared-files=memory: {reason}; run the agent privileged, or give it --shared-files=disk")
    log.warning(
        "shared files in=disk reason=%r",
        f"{reason}; a container's shared file can fill the disk until the agent cuts it back",
    )
    return False
