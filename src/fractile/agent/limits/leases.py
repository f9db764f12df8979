"""Tells a pod that a process of it holds a lease of the file that it shares with its node: the node cannot look at it.

No program needs such a lease; a container's root can take one to make whoever opens the file wait. Nobody waits
(``region.shared``), so what it reaches is that its own use is not known. Said once for as long as it lasts.
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
    """``seen`` is called after every look."""

    def __init__(self, pods: NodePods, events: EventRecorder) -> None:
        self._pods = pods
        self._events = events
        self._told: frozenset[str] = frozenset()

    def seen(self, leased: Mapping[str, ContainerLimits]) -> None:
        """By token, those that could not be opened at this look."""
        for token in leased.keys() - self._told:
            limits = leased[token]
            log.warning("shared file leased token=%s pod=%s/%s", token, limits.namespace, limits.pod)
            seen = self._pods.by_uid(PodUID(limits.pod_uid))
            if seen is not None:
                self._events.emit(
                    seen.pod,
                    REASON,
                    f"{directory.MOUNT}/{directory.REGION} of container {limits.container} cannot be looked at: "
                    f"{shared.LEASED}. No program needs one; end that process",
                )
        self._told = frozenset(leased)
