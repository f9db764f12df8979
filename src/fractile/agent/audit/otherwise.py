"""What a stricter ``--outside-ledger`` would do to pods that the current one spares, so that it can be chosen with
care.

The reasons to spare a pod are read again once a minute, as before an eviction: an administrator may label namespaces
meanwhile. All processes of a container with the same kind of use share the answer.
"""

from collections.abc import Awaitable, Callable

import msgspec

from fractile.agent.audit.unaccounted import Finding
from fractile.agent.node.owners import ProcessOwner
from fractile.kube.pacing import Clock
from fractile.policy.outside import Policy, left_by

_AGAIN = 60.0  # seconds
_KEPT = 600.0

_Use = tuple[str, str, str, str]  # UID of the pod, container, kind, card


class _Answer(msgspec.Struct, frozen=True):
    why: str | None
    asked: float


class Otherwise:
    """``why``: why the pod is spared; "" if it is not, None if that is not known now."""

    def __init__(
        self,
        why: Callable[[ProcessOwner, Finding], Awaitable[str | None]],
        *,
        policy: Policy,
        grace: float,
        clock: Clock,
    ) -> None:
        self._why = why
        self._policy: Policy = policy
        self._grace = grace
        self._clock = clock
        self._answers: dict[_Use, _Answer] = {}

    async def ask(self, owner: ProcessOwner, finding: Finding) -> None:
        """Update the answer, at most once a minute."""
        now = self._clock()
        known = self._answers.get(_use(owner, finding))
        if known is not None and now < known.asked + _AGAIN:
            return
        self._answers = {use: a for use, a in self._answers.items() if now < a.asked + _KEPT}
        self._answers[_use(owner, finding)] = _Answer(await self._why(owner, finding), now)

    def sentence(self, owner: ProcessOwner, finding: Finding) -> str:
        """Why the pod stays, by the last answer."""
        known = self._answers.get(_use(owner, finding))
        return left_by(self._policy, finding.kind, known.why if known is not None else None, self._grace)


def _use(owner: ProcessOwner, finding: Finding) -> _Use:
    return owner.uid, owner.container, finding.kind, finding.card
