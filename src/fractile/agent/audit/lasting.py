"""How long a card has been used outside the ledger, by any of a pod's processes. Pure.

A process that ends and is started again is another finding but the same use: otherwise a pod that restarts it every
minute would stay within its grace time forever. So the time of processes that have ended counts. After a long pause it
is new use. Pods that hold nothing of the card count together within one namespace: they may take turns. Each of them
uses the card when its time is up, so no pod is evicted for what others did alone.
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
    """All times are on the caller's clock. Only uses of the last minutes are remembered."""

    def __init__(self) -> None:
        self._spent: dict[_Use, _Spent] = {}

    def ended(self, owner: ProcessOwner, finding: Finding, begun: float, now: float) -> None:
        """Record that a finding, which stood since ``begun``, is over."""
        use = _use(owner, finding)
        before = self._spent.get(use, _Spent(0.0, begun))
        self._spent[use] = _Spent(before.seconds + now - max(begun, before.ended), now)

    def seconds(self, owner: ProcessOwner, finding: Finding, begun: float) -> float:
        """Seconds of findings that are over, before ``begun``."""
        spent = self._spent.get(_use(owner, finding))
        return 0.0 if spent is None else max(spent.seconds - max(spent.ended - begun, 0.0), 0.0)

    def forget(self, now: float) -> None:
        """Forget uses that ended long ago."""
        for use in [use for use, spent in self._spent.items() if now - spent.ended > _PAUSE]:
            del self._spent[use]


def _use(owner: ProcessOwner, finding: Finding) -> _Use:
    return owner.namespace if finding.kind == "no-slice" else owner.uid, finding.kind, finding.card
