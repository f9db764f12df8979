"""Cards that are kept for pods whose node we chose and that kube-scheduler has not bound yet.

A reservation is an assumption in the ledger without a Binding, so it may be released at any time. It ends when the pod
is bound, deleted or refused at that node, or when kube-scheduler does not take it: as long as kube-scheduler binds some
pod with a reservation now and then, the others wait their turn.
"""

from collections.abc import Callable, Container

import msgspec

from fractile.globalplacement.counts import Ended
from fractile.ledger.ledger import EntryState, Ledger
from fractile.model.units import NodeName, PodUID
from fractile.wire.kubernetes.queued import QueuedPod

PATIENCE = 10.0  # seconds without a bind of any pod with a reservation, after which reservations are released
LONGEST = 120.0  # seconds that a reservation is kept, whatever happens to others
_RENEW = 15.0  # seconds; ``reconcile.assumed_pods`` reads pods whose assumption is older than twice that


class ReservationListener(msgspec.Struct, frozen=True):
    """``expected``: the pod will be on that node; ``not_expected``: it will not; ``give_back``: end the assumption
    and wake the pods that wait for its cards."""

    expected: Callable[[QueuedPod, NodeName], None]
    not_expected: Callable[[PodUID], None]
    give_back: Callable[[PodUID], None]


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
        self._bound = 0.0  # when kube-scheduler last bound a pod with a reservation

    def __len__(self) -> int:
        return len(self._holds)

    def __contains__(self, uid: PodUID) -> bool:
        return uid in self._holds

    def node(self, uid: PodUID) -> NodeName | None:
        """The node where cards are kept for the pod."""
        hold = self._holds.get(uid)
        return None if hold is None else hold.node

    def put(self, uid: PodUID, pod: QueuedPod, node: NodeName) -> None:
        """Record a reservation that the ledger has assumed."""
        now = self._clock()
        self._holds[uid] = _Hold(node, now, now)
        self._told.expected(pod, node)

    def begun(self, uid: PodUID, node: str) -> None:
        """kube-scheduler binds the pod: from now on the assumption belongs to the bind. If the pod goes elsewhere, or a
        card is gone in the meantime, the assumption is dropped."""
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
        """Release the pod's reservation, if it has one."""
        if self._holds.pop(uid, None) is not None:
            self._ended(how)
            self._drop(uid)

    def forget(self, uid: PodUID, how: Ended) -> None:
        """Forget a pod that is bound or gone, as the ledger already knows."""
        if self._holds.pop(uid, None) is not None:
            self._ended(how)

    def overdue(self, besides: Container[PodUID]) -> list[PodUID]:
        """Reservations that kube-scheduler does not take; the others are renewed."""
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
        if entry is not None and entry.state is EntryState.ASSUMED and not entry.sent:  # else it belongs to a Binding
            self._told.give_back(uid)
