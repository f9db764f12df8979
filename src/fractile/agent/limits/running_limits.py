"""The limits of all containers of this node that may still run, for loops that ask again and again.

While neither the journal nor the view of the pods moves, the last answer is the next one, and costs no thread; now and
then the files are looked at all the same, in case somebody else touched them.
"""

import asyncio
from collections.abc import Mapping

from fractile.agent.limits.journal import Journal
from fractile.agent.node.pods import NodePods
from fractile.region.page import ContainerLimits

_REPEATS = 5  # answers that are given again before the files are looked at

_State = tuple[int, int, bool]


class RunningLimits:
    """Call it; one caller at a time. By token; of all pods as long as the pods are not known."""

    def __init__(self, journal: Journal, pods: NodePods) -> None:
        self._journal = journal
        self._pods = pods
        self._last: tuple[_State, Mapping[str, ContainerLimits]] | None = None
        self._repeats = 0

    async def __call__(self) -> Mapping[str, ContainerLimits]:
        """Raises OSError where the folder of the journal cannot be read."""
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
