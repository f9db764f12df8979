"""Cards that are kept for pods whose node we chose and kube-scheduler has not bound yet.

A reservation is an assumption in the ledger that no Binding stands behind, so it may be given back at any time. It ends
when the pod is bound, deleted or refused at that node, or when kube-scheduler does not take it: as long as it binds
some pod with a reservation now and then, the others wait their turn.
"""

from collections.abc import Callable, Container

import msgspec

from fractile.globalplacement.counts import Ended
from fractile.ledger.ledger import EntryState, Ledger
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.queued import QueuedPod

PATIENCE = 10.0  # seconds in which kube-scheduler binds some pod that holds a reservation, or they are given back
LONGEST = 120.0  # seconds that one is kept, whatever happens to others
_RENEW = 15.0  # seconds; ``control.doubt`` asks the API server about assumptions older than twice that


class ReservationListener(msgspec.Struct, frozen=True):
    """``expected``: the pod will be on that node; ``not_expected``: it will not; ``given_back``: forget the assumption
    and tell who waits for its cards."""

    expected: Callable[[QueuedPod, NodeName], None]
    not_expected: Callable[[PodUID], None]
    given_back: Callable[[PodUID], None]


class _Hold(msgspec.Struct, frozen=True):
    node: NodeName
    since: float
    renewed: float


class Reservations:
    """By pod UID. ``clock`` is monotonic; ``ended`` counts how each ended."""

    def __init__(
        self,
        ledger: Ledger,
        clock: Callable[[], float],
        told: ReservationListener,
        *,
        ended: Callable[[Ended], None] = lambda how: None,
    ) -> None:
        self._ledger = ledger
        self._clock = clock
        self._told = told
        self._ended = ended
        self._holds: dict[PodUID, _Hold] = {}
        self._bound = 0.0  # when kube-scheduler last bound a pod that held one

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, uid: PodUID) -> bool:
        return uid in self._holds

    def node(self, uid: PodUID) -> NodeName | None:
        """Where cards are kept for the pod."""
        hold = self._holds.get(uid)
        return None if hold is None else hold.node

    def put(self, uid: PodUID, pod: QueuedPod, node: NodeName) -> None:
        """The ledger has assumed it."""
        now = self._clock()
        self._holds[uid] = _Hold(node, now, now)
        self._told.expected(pod, node)

    def begun(self, uid: PodUID, node: str) -> None:
        """kube-scheduler binds the pod: from now on the assumption is the bind's. Where it goes elsewhere, or a card is
        gone meanwhile, nothing of it stays."""
        hold = self._holds.pop(uid, None)
        if hold is None:
            return
        self._bound = self._clock()
        entry = self._ledger.entry(uid)
        there = {card.uuid for card in self._ledger.cards(node)}
        if hold.node == node and entry is not None and all(charge.card in there for charge in entry.charges):
            self._ended(Ended.TAKEN)
            return
        self._ended(Ended.ELSEWHERE)
        self._drop(uid)

    def give_back(self, uid: PodUID, how: Ended) -> None:
        """If there is one."""
        if self._holds.pop(uid, None) is not None:
            self._ended(how)
            self._drop(uid)

    def forget(self, uid: PodUID, how: Ended) -> None:
        """The pod is bound or gone, which the ledger knows."""
        if self._holds.pop(uid, None) is not None:
            self._ended(how)

    def overdue(self, besides: Container[PodUID]) -> list[PodUID]:
        """Those that kube-scheduler does not take; the others are renewed."""
        now = self._clock()
        stalled = now - self._bound > PATIENCE
        late: list[PodUID] = []
        for uid, hold in list(self._holds.items()):
            age = now - hold.since
            if uid not in besides and (age > LONGEST or (stalled and age > PATIENCE)):
                late.append(uid)
            elif now - hold.renewed > _RENEW:
                self._ledger.renew(uid)
                self._holds[uid] = msgspec.structs.replace(hold, renewed=now)
        return late

    def _drop(self, uid: PodUID) -> None:
        self._told.not_expected(uid)
        entry = self._ledger.entry(uid)
        if entry is not None and entry.state is EntryState.ASSUMED:
            self._told.given_back(uid)
