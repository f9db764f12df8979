"""The folder of one container, kept up to date: its limits, and its processes once they are read.

All work is on files: run it in a thread, for one container in one thread at a time. Failure rule: an OSError goes to
the caller, which retries.
"""

import logging
import re
import time
from pathlib import Path

from fractile.agent.gpumanager.claim import bus_address
from fractile.agent.limits.vcuda_folder import VcudaFolder
from fractile.agent.node.cgroup_tree import CgroupTree
from fractile.kube.pacing import Clock
from fractile.model.units import WHOLE
from fractile.region.page import FLAG_OFF, ContainerLimits
from fractile.wire.foreign.vcuda import CONFIG_NAME, PIDS_NAME, VcudaConfig, encode_config, encode_pids

_SEARCH = 2.0  # seconds until a cgroup that was not found is searched again; longer each time
_RAREST = 30.0
_VERSION = re.compile(r"^NVRM version:.*?\s(\d{1,4})\.(\d{1,4})", re.MULTILINE)

log = logging.getLogger(__name__)


class VcudaContainer:
    """One container; FileNotFoundError or NotADirectoryError when it has no folder."""

    def __init__(
        self, token_directory: Path, limits: ContainerLimits, cgroups: CgroupTree, *, clock: Clock = time.monotonic
    ) -> None:
        self.limits = limits
        self.folder = VcudaFolder(token_directory)
        self._token = token_directory.name
        self._cgroups = cgroups
        self._clock = clock
        self._config = b""  # as last written
        self._pids: tuple[int, ...] | None = None  # as last written; None until the files are read
        self._cgroup: Path | None = None
        self._container_id = ""
        self._searched = 0
        self._search_at = 0.0
        if self.folder.size(PIDS_NAME):
            self._pids = ()  # read before this agent started
        else:
            self.folder.write(PIDS_NAME, b"")

    @property
    def is_read(self) -> bool:
        return self._pids is not None

    def opened(self) -> None:
        """Note that the files are read."""
        self._pids = self._pids or ()

    def keep(self, config: VcudaConfig) -> None:
        """Update the folder."""
        encoded = encode_config(config)
        if encoded != self._config:
            self.folder.write(CONFIG_NAME, encoded)
            self._config = encoded
        self._follow()

    def register(self, name: str, container_id: str) -> bool:
        """Let a process find the files under this name, complete; False when the name is not allowed."""
        if container_id != self._container_id:
            self._container_id, self._cgroup = container_id, None
        self.opened()
        self._search_at = 0.0
        self._follow()
        return self.folder.link(name)

    def end(self) -> None:
        """Empty and close the folder: the pod has ended."""
        try:
            self.folder.clear()
        finally:
            self.folder.close()

    def _follow(self) -> None:
        """Write the container's processes, if the files are read."""
        if self._pids is None:
            return
        if self._cgroup is None and self._clock() >= self._search_at:
            self._search()
        if self._cgroup is None:
            return
        pids = self._cgroups.pids(self._cgroup)
        if pids is None:
            self._forget()
        elif pids != self._pids:
            self.folder.write(PIDS_NAME, encode_pids(pids))
            self._pids = pids

    def _search(self) -> None:
        self._searched += 1
        self._search_at = self._clock() + min(_RAREST, _SEARCH * self._searched)
        self._cgroup = self._cgroups.find(self.limits.pod_uid, token=self._token, container_id=self._container_id)
        if self._cgroup is None and self.folder.size(PIDS_NAME):
            self.folder.forget()  # it ended while no agent ran: these pids may be reused by now
            self._pids = ()

    def _forget(self) -> None:
        """Reset: the container has ended; its pod may restart it."""
        self.folder.forget()
        self._pids, self._cgroup, self._container_id = None, None, ""
        self._searched, self._search_at = 0, 0.0
        log.info("container ended token=%s pod=%s/%s", self._token, self.limits.namespace, self.limits.pod)


def config_of(limits: ContainerLimits, *, bus_ids: tuple[str, ...], driver: tuple[int, int]) -> VcudaConfig:
    """The configuration for gpu-manager's library. Several cards are added up, as in gpu-manager."""
    cores = sum(c.cores for c in limits.cards)
    soft = {c.cores_limit for c in limits.cards if c.cores_limit > c.cores}
    return VcudaConfig(
        pod_uid=limits.pod_uid,
        container=limits.container,
        memory=sum(c.memory for c in limits.cards),
        cores=cores,
        limit=max(soft, default=0),
        bus_id=_short(next(iter(bus_ids), "")),
        driver=driver,
        enabled=cores < WHOLE and not limits.flags & FLAG_OFF,
    )


def driver_version(file: Path) -> tuple[int, int]:
    """Major and minor version of NVIDIA's driver, from its kernel module; zeros without one."""
    try:
        found = _VERSION.search(file.read_text("utf-8", "replace"))
    except OSError:
        return 0, 0
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _short(bus_id: str) -> str:
    """The bus id in NVML's first format, with a domain of four digits: it must fit in 16 bytes. "" if it cannot."""
    address = bus_address(bus_id)
    return f"{address[0]:04x}:{address[1]}" if address is not None and address[0] <= 0xFFFF else ""
