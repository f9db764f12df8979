"""Preemption by card: which pods must leave a node so that a pod of higher priority fits, on cards and not in sums.

Kube-scheduler proposes victims for each node that its own sums make possible; it asks before it evicts them. A pod is
in a proposal for one of two reasons. Pods that hold no device are there for CPU, memory or ports: they stay. The others
are there for the device's sum, or for what they request besides: they are replaced by the cheapest set that makes room
on the right cards and gives back at least as much CPU and memory, if the pod requests any. When a pod asks again that
was nominated before, something else of the proposal mattered: then all of it stays, and is added to.

Failure rule: a node where it cannot help is left out, so nobody is evicted for nothing; the verb changes nothing.
"""

from collections.abc import Iterable

import msgspec

from fractile.control.nominations import Nominations, rank
from fractile.control.residents import Residents
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.model.units import PodUID
from fractile.policy.cards import fits
from fractile.policy.parts import card_numbers, parts_of
from fractile.policy.preemption import Candidate, Fits, fewest
from fractile.policy.quota import Allowance, fits_within
from fractile.wire.extender import MetaPod, MetaVictims
from fractile.wire.objects import Pod
from fractile.wire.pod_totals import Totals, of_pod

_LOOKS = 6000  # at all nodes together; kube-scheduler waits
_LEAST = 100  # at each of them


class _Wanted(msgspec.Struct, frozen=True):
    """The pod that shall fit. ``cards``: how many it needs at most."""

    request: PodRequest
    priority: int
    created: str
    totals: Totals
    left: Allowance | None
    cards: int
    again: bool


class Preemption:
    def __init__(self, ledger: Ledger, residents: Residents, nominations: Nominations) -> None:
        self._ledger = ledger
        self._residents = residents
        self._nominations = nominations

    def victims(self, pod: Pod, request: PodRequest, proposed: dict[str, MetaVictims]) -> dict[str, MetaVictims]:
        """For each node where it helps, who must leave. ``request`` is resolved."""
        wanted = self._wanted(pod, request)
        if isinstance(wanted, Refusal):
            return {}
        looks = max(_LEAST, _LOOKS // max(1, len(proposed)))
        found = {node: self._on(node, wanted, victims, looks) for node, victims in proposed.items()}
        chosen = {node: victims for node, victims in found.items() if victims is not None}
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

    def _on(self, node: str, wanted: _Wanted, proposed: MetaVictims, looks: int) -> MetaVictims | None:
        # 1. Who might leave, and who leaves whatever we say.
        below = self._residents.below(node, wanted.priority)
        uids = {PodUID(p.uid) for p in proposed.pods or ()}
        known = [c for c in below if c.uid in uids]
        # 2. The cheapest set that makes room; with what was proposed, if nothing else gives back as much.
        fits = self._fits(node, wanted)
        chosen: tuple[Candidate, ...] | None = None
        if not wanted.again:
            chosen = fewest(below, self._giving_back(fits, known, below, wanted), cards=wanted.cards, looks=looks)
        if chosen is None:
            others = [c for c in below if c.uid not in uids]
            added = fewest(others, lambda gone: fits(gone | uids), cards=wanted.cards, looks=looks)
            chosen = None if added is None else (*known, *added)
        if chosen is None:
            return None
        # 3. A proposal that has nothing to do with cards is kept.
        return _answer(proposed, known, chosen) if chosen else proposed

    def _fits(self, node: str, wanted: _Wanted) -> Fits:
        """Whether the pod fits without those, beside the pods for which room is kept."""
        claims = self._nominations.claims(node, rank(wanted.priority, wanted.created, wanted.request.uid))
        place = self._ledger.usage.place(node)

        def fitting(gone: frozenset[PodUID]) -> bool:
            state = self._ledger.imagine(node, gone=gone, come=claims)
            if state is None:
                return False
            if wanted.left is None:
                return fits(wanted.request, state)
            return fits_within(wanted.request, state, place, wanted.left)

        return fitting

    def _giving_back(self, fits: Fits, known: list[Candidate], below: list[Candidate], wanted: _Wanted) -> Fits:
        """The same, if what leaves gives back as much CPU and memory as what was proposed."""
        least = _totals(known)
        by_uid = {c.uid: c for c in below}
        cpu = least.cpu if wanted.totals.cpu else 0
        memory = least.memory if wanted.totals.memory else 0

        def giving(gone: frozenset[PodUID]) -> bool:
            back = _totals(by_uid[uid] for uid in gone)
            return back.cpu >= cpu and back.memory >= memory and fits(gone)

        return giving


def _answer(proposed: MetaVictims, known: list[Candidate], chosen: Iterable[Candidate]) -> MetaVictims:
    """The highest priority first, as kube-scheduler wants it. Of pods without devices the priority is not known: they
    count as much as the pod that followed them in the proposal."""
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
    # Kube-scheduler's number counts its own victims: those of them that hold nothing are not known to us.
    foreign = max(0, proposed.violations - sum(c.violates for c in known))
    return MetaVictims([MetaPod(uid) for _, uid in order], foreign + sum(c.violates for c in chosen))


def _totals(candidates: Iterable[Candidate]) -> Totals:
    cpu = memory = 0
    for candidate in candidates:
        cpu += candidate.cpu
        memory += candidate.memory
    return Totals(cpu, memory)
