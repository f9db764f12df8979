"""The limits of all containers of this node that may still run, for loops that read them repeatedly.

While neither the journal nor the view of the pods changes, the last result is returned again without a thread; every
few calls the files are read all the same, in case another program changed them.
"""

import asyncio
from collections.abc import Mapping

from fractile.agent.limits.journal import Journal
from fractile.agent.node.pods import NodePods
from fractile.region.page import ContainerLimits

_REPEATS = 5  # results that are returned again before the files are read

_State = tuple[int, int, bool]


class RunningLimits:
    """Call it; one caller at a time. By token; includes all pods while the pods are not known."""

    def __init__(self, journal: Journal, pods: NodePods) -> None:
        self._journal = journal
        self._pods = pods
        self._last: tuple[_State, Mapping[str, ContainerLimits]] | None = None
        self._repeats = 0

    async def __call__(self) -> Mapping[str, ContainerLimits]:
        """Raises OSError if the journal's folder cannot be read."""
        state = self._journal.generation, self._pods.version, self._pods.complete
        if self._last is not None and self._last[0] == state and self._repeats < _REPEATS:
            self._repeats += 1
            return self._last[1]
        found = await asyncio.to_thread(self._journal.granted)
        if self._pods.complete:
            active = self._pods.active()
            found = {token: limits for token, limits in found.items() if limits.pod_uid in active}
        self._last, self._repeats = (state, found), 0
        return found
