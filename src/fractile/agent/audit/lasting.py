"""How long a card has been used outside the ledger, whichever of a pod's processes did it. Pure.

A process that ends and is started again is another finding, but no other use: else a pod that does so every minute
would be within its grace time for ever. So the time of those that have ended counts. Use that has paused for long is
new use. Pods that hold nothing of the card count together where they are of one namespace: they may take turns. Each of
them uses the card when its time is up, so none is evicted for what others did alone.
"""

import msgspec

from fractile.agent.audit.unaccounted import Finding
from fractile.agent.node.owners import ProcessOwner

_PAUSE = 600.0  # seconds
_Use = tuple[str, str, str]  # namespace or UID of the pod, kind, card


class _Spent(msgspec.Struct, frozen=True):
    """Seconds in which at least one process was there, and when the last one ended."""

    seconds: float
    ended: float


class Lasting:
    """All times on the caller's clock. Only uses of the last minutes are remembered."""

    def __init__(self) -> None:
        self._spent: dict[_Use, _Spent] = {}

    def ended(self, owner: ProcessOwner, finding: Finding, begun: float, now: float) -> None:
        """A finding is over, which was there since ``begun``."""
        use = _use(owner, finding)
        before = self._spent.get(use, _Spent(0.0, begun))
        self._spent[use] = _Spent(before.seconds + now - max(begun, before.ended), now)

    def seconds(self, owner: ProcessOwner, finding: Finding, begun: float) -> float:
        """Of findings that are over, before ``begun``."""
        spent = self._spent.get(_use(owner, finding))
        return 0.0 if spent is None else max(spent.seconds - max(spent.ended - begun, 0.0), 0.0)

    def forget(self, now: float) -> None:
        """What has ended long ago."""
        for use in [use for use, spent in self._spent.items() if now - spent.ended > _PAUSE]:
            del self._spent[use]


def _use(owner: ProcessOwner, finding: Finding) -> _Use:
    return owner.namespace if finding.kind == "no-slice" else owner.uid, finding.kind, finding.card
