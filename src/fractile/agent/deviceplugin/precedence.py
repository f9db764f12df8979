"""What counts against a pod whose container is about to start: the pod that was granted first keeps its part.

The sums of a card's placements should fit. If they do not, after an unlucky write, a pod that was granted its part
before must not lose it to a later one: against a pod that holds a grant of the card, only pods with an earlier grant
count. Against a pod without a grant, all pods count. What processes of departed pods still hold counts against all. The
order is that of the grants on this node, which are on its disk.
"""

from collections.abc import Sequence

import msgspec

from fractile.agent.audit.departed import DepartedPods, charges
from fractile.agent.limits.slices import Granted
from fractile.agent.node.pods import NodePods, charged
from fractile.model.placement import Charge
from fractile.model.units import CardUUID, PodUID

_Since = dict[CardUUID, tuple[float, PodUID]]


class Against(msgspec.Struct, frozen=True):
    """``charges`` of others; ``departed``: those of them whose pod is gone."""

    charges: list[Charge]
    departed: tuple[Granted, ...]

    def names(self, card: CardUUID) -> str:
        """The deleted pods that still hold a part of the card, as the end of a sentence; "" when there are none."""
        gone = sorted({f"{g.limits.namespace}/{g.limits.pod}" for g in self.departed if _has(g, card)})
        return f"; processes of {', '.join(gone)}, deleted already, still hold a part of it" if gone else ""


class Precedence:
    """Uses ``departed``, which reads the grants."""

    def __init__(self, pods: NodePods, departed: DepartedPods) -> None:
        self._pods = pods
        self._departed = departed

    async def against(self, uid: PodUID) -> Against:
        """All that counts when a container of the pod is about to start."""
        gone = tuple(g for g in await self._departed.look() if g.limits.pod_uid != uid)
        since = granted_since(self._departed.granted)
        mine = since.get(uid, {})
        found = [
            charge
            for other in self._pods
            for charge in charged([other], node=self._pods.node, besides=uid)
            if _earlier(since.get(PodUID(other.pod.metadata.uid), {}), mine, charge.card)
        ]
        return Against([*found, *charges(gone)], gone)


def granted_since(granted: Sequence[Granted]) -> dict[PodUID, _Since]:
    """When each pod was first granted each of its cards. The UID decides between equal times."""
    found: dict[PodUID, _Since] = {}
    for one in granted:
        uid = PodUID(one.limits.pod_uid)
        cards = found.setdefault(uid, {})
        for card in one.limits.cards:
            cards[card.uuid] = min(cards.get(card.uuid, (one.since, uid)), (one.since, uid))
    return found


def _earlier(theirs: _Since, mine: _Since, card: CardUUID) -> bool:
    """Whether the other pod's part of the card counts against ours."""
    return card not in mine or (card in theirs and theirs[card] < mine[card])


def _has(granted: Granted, card: CardUUID) -> bool:
    return any(c.uuid == card for c in granted.limits.cards)
