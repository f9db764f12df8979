"""Preemption by card: which pods must leave a node so that a pod of higher priority fits on its cards.

Kube-scheduler proposes victims for each node where its own sums make room, and calls before it evicts them. A pod is in
a proposal for one of two reasons. Pods without devices are there for CPU, memory or ports: they stay in it. The others
are there for the device's sum, or for their other requests: they are replaced by the cheapest set that makes room on
the right cards and gives back at least as much CPU and memory, if the new pod requests any. If the new pod was already
nominated before, something else in the proposal mattered: then the whole proposal is kept, and extended.

Failure rule: a node where eviction cannot help is left out, so no pod is evicted in vain; the verb changes nothing.
"""

from collections.abc import Iterable

import msgspec

from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.policy.cards.choice import fits
from fractile.policy.cards.effort import CALL, Effort
from fractile.policy.cards.parts import card_numbers, parts_of
from fractile.policy.preemption import Candidate, Fits, Level, dearest, fewest
from fractile.policy.quota import Allowance, fits_within
from fractile.reconcile.nominations import Nominations, rank
from fractile.watch.assigned_pods import AssignedPods
from fractile.wire.kubernetes.extender import MetaPod, MetaVictims
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.pod_totals import PodTotals, of_pod

_LOOKS = 2000  # checks at all nodes together; kube-scheduler waits, and one takes 0.3 ms on a node of eight cards
_LEAST = 100  # checks at each node that is examined closely
_CALL = 2 * CALL  # effort: one half to find where eviction helps, the other to examine those nodes closely


class _Wanted(msgspec.Struct, frozen=True):
    """The pod to make room for. ``cards``: the most that it needs."""

    request: PodRequest
    priority: int
    created: str
    totals: PodTotals
    left: Allowance | None
    cards: int
    again: bool


class _Costs(msgspec.Struct, frozen=True):
    """The budgets for claims and disruption budgets, at all nodes together. They are separate from the effort, so that
    nodes where tenants made these checks costly are not left out."""

    claims: Effort
    budgets: Effort


class _Sought(msgspec.Struct, frozen=True):
    """A node where eviction helps. ``known``: pods of the proposal that hold devices; ``kept``: those of them that
    leave in any case, and are not among the ``candidates``. ``level``: of the most important pod that must leave."""

    node: str
    proposed: MetaVictims
    known: tuple[Candidate, ...]
    kept: tuple[Candidate, ...]
    candidates: list[Candidate]
    fits: Fits
    level: Level

    def answer(self, found: tuple[Candidate, ...]) -> MetaVictims:
        """The victims; a proposal that has nothing to do with cards is kept."""
        chosen = (*self.kept, *found)
        return _answer(self.proposed, self.known, chosen) if chosen else self.proposed


class Preemption:
    """Decides the preempt verb; its promises are remembered in ``nominations``."""

    def __init__(self, ledger: Ledger, assigned_pods: AssignedPods, nominations: Nominations) -> None:
        self._ledger = ledger
        self._assigned_pods = assigned_pods
        self._nominations = nominations

    def victims(self, pod: Pod, request: PodRequest, proposed: dict[str, MetaVictims]) -> dict[str, MetaVictims]:
        """The victims, for each node where eviction helps. ``request`` is resolved.

        Kube-scheduler takes the node whose highest victim priority is the lowest. So that priority is determined first,
        and only nodes that have it are examined closely, as many as time allows.
        """
        wanted = self._wanted(pod, request)
        if isinstance(wanted, Refusal):
            return {}
        dead_ends = self._ledger.dead_ends
        effort = Effort(_CALL, dead_ends=dead_ends)
        costs = _Costs(claims=Effort(dead_ends=dead_ends), budgets=Effort())
        sought: list[_Sought] = []
        for node, victims in proposed.items():
            if effort.left <= _CALL // 2:
                break  # unchecked nodes are left out
            if (one := self._sought(node, wanted, victims, effort, costs)) is not None:
                sought.append(one)
        best = min((s.level for s in sought), default=None)
        looks = max(_LEAST, _LOOKS // max(1, sum(s.level == best for s in sought)))
        chosen: dict[str, MetaVictims] = {}
        spent = 0
        for one in sorted(sought, key=lambda s: (s.level, s.node)):
            if chosen and (one.level != best or spent >= _LOOKS):
                break
            found = fewest(one.candidates, one.fits, cards=wanted.cards, looks=looks, over=lambda: effort.over)
            spent += looks
            if found is not None:
                chosen[one.node] = one.answer(found)
        self._nominations.remember(
            request.uid, {node: frozenset(PodUID(p.uid) for p in v.pods or ()) for node, v in chosen.items()}
        )
        return chosen

    def _wanted(self, pod: Pod, request: PodRequest) -> _Wanted | Refusal:
        left = self._ledger.usage.allowance(request)
        if isinstance(left, Refusal):
            return left
        return _Wanted(
            request=request,
            priority=pod.spec.priority or 0,
            created=pod.metadata.creation_timestamp or "",
            totals=of_pod(pod),
            left=left,
            cards=len(parts_of(request.containers, card_numbers(request.containers))),
            again=bool(pod.status.nominated_node_name),
        )

    def _sought(
        self, node: str, wanted: _Wanted, proposed: MetaVictims, effort: Effort, costs: _Costs
    ) -> "_Sought | None":
        """The candidates on a node: all pods of lower priority, if they give back what the proposal does; otherwise
        those outside the proposal, all of which then leaves. None when neither helps."""
        below = self._assigned_pods.below(node, wanted.priority, costs.budgets.spend)
        uids = frozenset(PodUID(p.uid) for p in proposed.pods or ())
        known = tuple(c for c in below if c.uid in uids)
        fits = self._fits(node, wanted, effort, costs.claims)
        giving = self._giving_back(fits, known, below, wanted)
        if not wanted.again and (level := dearest(below, giving)) is not None:
            return _Sought(node, proposed, known, (), below, giving, level)
        others = [c for c in below if c.uid not in uids]

        def beside(gone: frozenset[PodUID]) -> bool:
            return fits(gone | uids)

        level = dearest(others, beside)
        return None if level is None else _Sought(node, proposed, known, known, others, beside, level)

    def _fits(self, node: str, wanted: _Wanted, effort: Effort, claiming: Effort) -> Fits:
        """A test whether the pod fits without given pods, in addition to the pods for which room is kept. ``claiming``:
        the budget for finding out where those will be."""
        claims = self._nominations.claims(node, rank(wanted.priority, wanted.created, wanted.request.uid), claiming)
        taken = sum(map(len, claims))
        place = self._ledger.usage.place(node)

        def fitting(gone: frozenset[PodUID]) -> bool:
            if effort.over:
                return False
            state = self._ledger.imagine(node, gone=gone, taken=claims)
            if state is None:
                return False
            effort.spend(2 * len(state.cards) + (len(gone) + taken) // 2)  # the cost of ``imagine``
            if wanted.left is None:
                return fits(wanted.request, state, effort)
            return fits_within(wanted.request, state, place, wanted.left, effort)

        return fitting

    def _giving_back(self, fits: Fits, known: Iterable[Candidate], below: Iterable[Candidate], wanted: _Wanted) -> Fits:
        """The same test, also requiring that the victims give back as much CPU and memory as those proposed."""
        least = _totals(known)
        by_uid = {c.uid: c for c in below}
        cpu = least.cpu if wanted.totals.cpu else 0
        memory = least.memory if wanted.totals.memory else 0

        def giving(gone: frozenset[PodUID]) -> bool:
            back = _totals(by_uid[uid] for uid in gone)
            return back.cpu >= cpu and back.memory >= memory and fits(gone)

        return giving


def _answer(proposed: MetaVictims, known: Iterable[Candidate], chosen: Iterable[Candidate]) -> MetaVictims:
    """Order the victims by priority, the highest first, as kube-scheduler requires. The priority of pods without
    devices is unknown: each counts as much as the pod after it in the proposal."""
    priorities = {c.uid: c.priority for c in known}
    ranked = [(c.priority, PodUID(c.uid)) for c in chosen]
    following = min((priority for priority, _ in ranked), default=0)
    for pod in reversed(proposed.pods or ()):
        uid = PodUID(pod.uid)
        if uid in priorities:
            following = priorities[uid]
        else:
            ranked.append((following, uid))
    order = sorted(dict.fromkeys(ranked), key=lambda pair: -pair[0])
    # Kube-scheduler's number counts its own victims; those that hold no device are unknown here.
    foreign = max(0, proposed.violations - sum(c.violates for c in known))
    return MetaVictims([MetaPod(uid) for _, uid in order], foreign + sum(c.violates for c in chosen))


def _totals(candidates: Iterable[Candidate]) -> PodTotals:
    cpu = memory = 0
    for candidate in candidates:
        cpu += candidate.cpu
        memory += candidate.memory
    return PodTotals(cpu, memory)
