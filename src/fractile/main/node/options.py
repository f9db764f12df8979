"""The command line of ``fractile agent``, checked."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import msgspec

from fractile.agent.devices.health import INTERVAL
from fractile.agent.limits.isolation import FRESH
from fractile.agent.limits.library import LibraryVersion
from fractile.dialects import table
from fractile.dialects.nvidia import SLOTS
from fractile.main.agent_usage import UsageOptions
from fractile.main.tracing import Tracing
from fractile.model.offer import Offer
from fractile.model.units import MemoryUnit, NodeName
from fractile.policy.health import HealthRules

SharedFiles = Literal["auto", "memory", "disk"]


class AgentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """``kubeconfig`` None: the credentials of the pod that this runs in. ``plugins``: kubelet's folder of device
    plugins, ``pod_resources``: its socket. ``state`` is kept over restarts. ``installed`` None: nothing is enforced
    inside containers. ``look``: seconds between two checks of the cards. ``others``: non-GPU devices in addition to
    those of the file ``devices``. ``host`` None: the container runtime is not checked. ``kernel_log`` None: no XIDs are
    attributed. ``traces`` None: nothing is traced."""

    node: NodeName
    kubeconfig: Path | None
    unit: MemoryUnit
    plugins: Path
    pod_resources: Path
    state: Path
    shared_files: SharedFiles = "disk"
    installed: LibraryVersion | None = None
    slots: int = SLOTS
    dialects: frozenset[str] = table.NAMES
    rules: HealthRules = HealthRules()
    look: float = INTERVAL
    usage: UsageOptions = UsageOptions()
    virtual_manager: bool = True
    others: Sequence[Offer] = ()
    label_refresh: float = FRESH
    devices: Path | None = None
    host: Path | None = None
    runtime_handlers: Sequence[str] = ()
    kernel_log: Path | None = None
    traces: Tracing | None = None
