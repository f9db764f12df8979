"""Use of a card by a pod in consecutive polls, by any of the pod's processes. Pure.

A process that is there for one poll only confirms nothing by itself, so processes that take turns would never be found.
So these count together, by kind, pod and card, and their grace time begins with the first poll that showed one. This
applies only to kinds that a single poll shows for certain. Kinds that depend on a region, which a process enters and
leaves while it is read, are confirmed for each process alone: else a container with many short programs would be
suspected.
"""

from collections.abc import Callable, Iterable, Sequence

import msgspec

from fractile.agent.audit.unaccounted import Finding
from fractile.agent.node.cgroup import CgroupPlace
from fractile.agent.node.owners import ProcessOwner
from fractile.wire.output.node_usage import Kind

_CERTAIN: frozenset[Kind] = frozenset({"no-slice", "no-library"})

_Use = tuple[str, ...]  # kind, card, pod


class Streak(msgspec.Struct):
    """``finding``: the first, or the one reported to its owner; ``since`` in seconds since 1970, ``begun`` on the
    audit's clock; ``looks``: consecutive polls that showed it. The other fields are the initial values of the audit's
    case of a later process."""

    finding: Finding
    since: float
    begun: float
    looks: int = 0
    found: bool = False
    told: bool = False
    owner: ProcessOwner | None = None
    stays: str = ""
    evictable: bool = False
    spared: str = ""
    next_try: float = 0.0


class Streaks:
    """``outermost``: the UID of a process's pod, "" for none."""

    def __init__(self, outermost: Callable[[Sequence[CgroupPlace]], str]) -> None:
        self._outermost = outermost
        self._streaks: dict[_Use, Streak] = {}

    def look(self, findings: Iterable[Finding], *, since: float, now: float) -> list[Streak]:
        """Compare with the poll before; returns the streaks that are over."""
        present = {use: finding for finding in findings if (use := self._use(finding)) is not None}
        over = [self._streaks.pop(use) for use in [use for use in self._streaks if use not in present]]
        for use, finding in present.items():
            self._streaks.setdefault(use, Streak(finding, since, now)).looks += 1
        return over

    def of(self, finding: Finding) -> Streak | None:
        """None: its kind is not certain, or its owner is unknown."""
        use = self._use(finding)
        return self._streaks.get(use) if use is not None else None

    def alone(self, finding: Finding) -> bool:
        """Whether it counts for itself."""
        return self._use(finding) is None

    def _use(self, finding: Finding) -> _Use | None:
        process = finding.process
        if finding.kind not in _CERTAIN or process is None:
            return None
        pod = self._outermost(process.places) or next((p.container_id for p in process.places if p.container_id), "")
        return (finding.kind, finding.card, pod) if pod else None
