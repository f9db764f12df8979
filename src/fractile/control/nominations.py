"""Room that is kept for pods which kube-scheduler nominated to a node: those for whom others are being evicted.

Kube-scheduler counts them in the sums of the node; only we know on which cards they will be. A claim is worked out when
somebody asks: where the nominated pod would go once the pods have left that are leaving for it. What was promised when
they were chosen is remembered, since their deletion is seen only a moment later; after a restart what is leaving says
enough. A claim counts for pods of lower priority, and of the same when the nominated pod is older, so that two of them
never wait for each other.
"""

from collections.abc import Callable, Mapping

from fractile.control.residents import Residents
from fractile.control.waiting import WaitingPod, WaitingPods
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.placement import Placement
from fractile.model.refusal import Refusal
from fractile.model.units import PodUID
from fractile.policy.plan import plan

_LIFETIME = 60.0  # seconds; pods have their grace to leave, and are then seen to be leaving
_REMEMBERED = 1000

Rank = tuple[int, str, PodUID]


def rank(priority: int, created: str, uid: PodUID) -> Rank:
    """Who comes first: the higher priority, then the older pod."""
    return (-priority, created, uid)


class Nominations:
    """Read by filter and bind. ``remember`` is told of victims that were chosen, node by node."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: WaitingPods,
        residents: Residents,
        classes: ClassIndex,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._residents = residents
        self._classes = classes
        self._clock = clock
        self._chosen: dict[PodUID, tuple[float, Mapping[str, frozenset[PodUID]]]] = {}  # the oldest first

    @property
    def remembered(self) -> int:
        """For how many pods victims are remembered."""
        return len(self._chosen)

    def remember(self, uid: PodUID, victims: Mapping[str, frozenset[PodUID]]) -> None:
        self._chosen.pop(uid, None)
        self._chosen[uid] = self._clock() + _LIFETIME, victims
        now = self._clock()
        for old in [u for u, (until, _) in self._chosen.items() if until < now]:
            del self._chosen[old]
        while len(self._chosen) > _REMEMBERED:
            del self._chosen[next(iter(self._chosen))]

    def nodes(self) -> list[str]:
        """The nodes to which somebody is nominated."""
        return self._waiting.nominating()

    def claims(self, node: str, asking: Rank) -> list[Placement]:
        """Where the pods will go that are nominated to the node and come before the one that asks."""
        found: list[Placement] = []
        ahead = [(r, w) for w in self._waiting.nominated_to(node) if (r := rank(w.priority, w.created, w.uid)) < asking]
        for _, pod in sorted(ahead, key=lambda pair: pair[0]):
            placed = self._placed(node, pod, found)
            if placed is not None:
                found.append(placed)
        return found

    def _placed(self, node: str, pod: WaitingPod, before: list[Placement]) -> Placement | None:
        if isinstance(pod.request, Refusal) or self._ledger.entry(pod.uid) is not None:
            return None
        request = resolve(pod.request, self._classes)
        state = self._ledger.imagine(node, gone=self._leaving(node, pod), come=before)
        if isinstance(request, Refusal) or state is None:
            return None
        placed = plan(request, state)
        return placed if isinstance(placed, Placement) else None

    def _leaving(self, node: str, pod: WaitingPod) -> frozenset[PodUID]:
        seen = frozenset(r.uid for r in self._residents.on(node) if r.leaving and r.priority < pod.priority)
        until, chosen = self._chosen.get(pod.uid, (0.0, {}))
        return seen | chosen.get(node, frozenset()) if until >= self._clock() else seen
