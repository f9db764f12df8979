"""Room that is kept for pods that kube-scheduler nominated to a node: those for which other pods are being evicted.

Kube-scheduler counts them in the sums of the node, but does not know their cards. A claim is computed when needed:
where the nominated pod would go once the pods that are leaving for it have left. The chosen victims are remembered,
since their deletion is seen only a moment later; after a restart the pods that are leaving are enough. A claim counts
against pods of lower priority, and against those of the same priority if the nominated pod is older, so that two of
them never wait for each other.

Claims are kept until something changes on the node, since every call about the node needs them. A call in which they
would take too long stops when its effort is spent, and the next one continues: until then no room is kept for the pods
that come last.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import msgspec

from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.placement import Charge, Placement, charges
from fractile.model.refusal import Refusal
from fractile.model.units import PodUID
from fractile.policy.cards.choice import choose
from fractile.policy.cards.effort import Effort
from fractile.watch.assigned_pods import AssignedPod, AssignedPods
from fractile.watch.waiting_pods import WaitingPod, WaitingPods

_LIFETIME = 60.0  # seconds; pods have a grace period to leave, and are then seen to be leaving
_REMEMBERED = 1000
_CONTAINER = 12  # looks; the cost of preparing the choice for one container of a pod, 30 us

Rank = tuple[int, str, PodUID]
Claim = tuple[Charge, ...]


def rank(priority: int, created: str, uid: PodUID) -> Rank:
    """The order of pods: the higher priority first, then the older pod."""
    return (-priority, created, uid)


class _Step(msgspec.Struct, frozen=True):
    """Where one nominated pod would go without the pods ``gone``, after the steps before it; None: nowhere."""

    pod: WaitingPod
    gone: frozenset[PodUID]
    claim: Claim | None

    def answers(self, pod: WaitingPod, gone: frozenset[PodUID]) -> bool:
        return (self.pod is pod or self.pod == pod) and self.gone == gone


class _Known(msgspec.Struct):
    """The steps of a node, in order, for the cards and classes as of ``stamp``."""

    stamp: tuple[int, int]
    steps: list[_Step]


class Nominations:
    """Read by filter and bind. ``remember`` is called with chosen victims, node by node."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: WaitingPods,
        assigned_pods: AssignedPods,
        classes: ClassIndex,
        clock: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._assigned_pods = assigned_pods
        self._classes = classes
        self._clock = clock
        self._known: dict[str, _Known] = {}  # by node
        self._chosen: dict[PodUID, tuple[float, Mapping[str, frozenset[PodUID]]]] = {}  # the oldest first

    @property
    def remembered(self) -> int:
        """Number of pods whose victims are remembered."""
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
        """The nodes to which pods are nominated."""
        return self._waiting.nominating()

    def claims(self, node: str, asking: Rank, effort: Effort | None = None) -> list[Claim]:
        """The claims of pods that are nominated to the node and precede ``asking``. ``effort``: the call's budget for
        claims, at all nodes together."""
        effort = effort or Effort(dead_ends=self._ledger.dead_ends)
        ahead = self._ahead(node, asking)
        steps = self._steps(node) if ahead else []
        leaving = [r for r in self._assigned_pods.on(node) if r.leaving]
        found: list[Claim] = []
        for n, pod in enumerate(ahead):
            gone = self._gone(node, pod, leaving)
            if n >= len(steps) or not steps[n].answers(pod, gone):
                del steps[n:]
                step = self._step(node, pod, gone, found, effort)
                if step is None:
                    break
                steps.append(step)
            if (claim := steps[n].claim) is not None:
                found.append(claim)
        return found

    def _ahead(self, node: str, asking: Rank) -> list[WaitingPod]:
        """The pods ahead of ``asking``, in order: always the head of the same list, whatever ``asking`` is."""
        ranked = [
            (r, w)
            for w in self._waiting.nominated_to(node)
            if (r := rank(w.priority, w.created, w.uid)) < asking
            and not isinstance(w.request, Refusal)
            and self._ledger.entry(w.uid) is None
        ]
        return [w for _, w in sorted(ranked, key=lambda pair: pair[0])]

    def _steps(self, node: str) -> list[_Step]:
        """The steps that are still valid; the caller may append more."""
        stamp = self._ledger.stamp(node), self._classes.changes
        known = self._known.get(node)
        if known is None or known.stamp != stamp:
            named = self._waiting.nominating()
            if len(self._known) > 2 * len(named):
                self._known = {n: self._known[n] for n in named if n in self._known}
            known = self._known[node] = _Known(stamp, [])
        return known.steps

    def _step(
        self, node: str, pod: WaitingPod, gone: frozenset[PodUID], before: Sequence[Claim], effort: Effort
    ) -> _Step | None:
        """None when the effort did not suffice; a call that has spent nothing yet decides at least one pod."""
        if effort.over:
            return None
        fresh = effort.spent == 0
        assert not isinstance(pod.request, Refusal)
        request = resolve(pod.request, self._classes)
        state = self._ledger.imagine(node, gone=gone, taken=before)
        if isinstance(request, Refusal) or state is None:
            return _Step(pod, gone, None)
        effort.spend(len(state.cards) + _CONTAINER * len(request.containers) + sum(map(len, before)) // 4)
        chosen = choose(request, state, effort=effort)
        if chosen is None and effort.over and not fresh:
            return None
        return _Step(pod, gone, None if chosen is None else charges(Placement(state.node, chosen)))

    def _gone(self, node: str, pod: WaitingPod, leaving: Iterable[AssignedPod]) -> frozenset[PodUID]:
        seen = frozenset(r.uid for r in leaving if r.priority < pod.priority)
        until, chosen = self._chosen.get(pod.uid, (0.0, {}))
        return seen | chosen.get(node, frozenset()) if until >= self._clock() else seen
