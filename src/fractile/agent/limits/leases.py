"""Reports that a process of a pod holds a lease on the file shared with its node, so that the node cannot read it.

No program needs such a lease; a container's root can take one to delay any process that opens the file. Opens here do
not wait (``region.shared``), so the only effect is that the container's own usage is unknown. Reported once for as long
as it lasts.
"""

import logging
from collections.abc import Mapping

from fractile.agent.node.pods import NodePods
from fractile.kube.events import EventRecorder
from fractile.model.units import PodUID
from fractile.region import directory, shared
from fractile.region.page import ContainerLimits

REASON = "SharedFileLeased"

log = logging.getLogger(__name__)


class Leases:
    """``seen`` is called after every check."""

    def __init__(self, pods: NodePods, events: EventRecorder) -> None:
        self._pods = pods
        self._events = events
        self._told: frozenset[str] = frozenset()

    def seen(self, leased: Mapping[str, ContainerLimits]) -> None:
        """Report those, by token, that could not be opened at this check."""
        for token in leased.keys() - self._told:
            limits = leased[token]
            log.warning("shared file leased token=%s pod=%s/%s", token, limits.namespace, limits.pod)
            seen = self._pods.by_uid(PodUID(limits.pod_uid))
            if seen is not None:
                self._events.emit(
                    seen.pod,
                    REASON,
                    f"{directory.MOUNT}/{directory.REGION} of container {limits.container} cannot be checked: "
                    f"{shared.LEASED}. No program needs such a lease; end that process",
                )
        self._told = frozenset(leased)
