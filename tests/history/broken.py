"""The product with one thing broken at a time: what the model must find, or its silence about the rest says nothing.

Each is a fault that was there once, or a guard that somebody might take away. ``""`` is the product as it is.
"""

# pyright: reportPrivateUsage=false

import asyncio
from typing import Any

import msgspec

from fractile.extender.bind import Binder
from fractile.kube.reflector import Reflector
from fractile.ledger.ledger import EntryState, Ledger
from fractile.ledger.precedence import LAST, Rank
from fractile.model.placement import Placement
from fractile.model.quota import QuotaOwner
from fractile.model.refusal import Refusal
from fractile.model.units import MiB, PodUID
from fractile.reconcile.assumed_pods import AssumedPods
from fractile.reconcile.repair import Repair
from fractile.watch.event_handlers import PodHandlers
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.queued import QueuedPod
from tests.history.replica import Parts


class _ForgetsUnknown(Binder):
    """A Binding that had no answer leaves no hold."""

    async def _failed(self, args: BindingArgs, uid: PodUID, error: Any, *, before: bool) -> Refusal | None:
        try:
            return await super()._failed(args, uid, error, before=before)
        finally:
            self._ledger.forget(uid)


class _ForgetsElsewhere(Binder):
    """The node changes: what is not bound now is believed not to be bound later (the first row of the issue)."""

    async def _earlier(self, args: BindingArgs, uid: PodUID) -> Any:
        found = await super()._earlier(args, uid)
        if isinstance(found, Refusal) and "may still take effect" in found.message:
            self._ledger.forget(uid)
            return None
        return found


class _IgnoresTheUid(Binder):
    """A bound namesake counts as the pod."""

    async def _is_bound(self, args: BindingArgs, uid: PodUID) -> bool:
        pod = await self._get(args)
        if pod is None or not pod.spec.node_name:
            return False
        self._ledger.confirm(uid)
        return pod.spec.node_name == args.node


class _RemembersNoDeparted(PodHandlers):
    """An answer that a deletion has overtaken is believed."""

    def looked(self, pod: Pod) -> None:
        self._apply(pod, PodUID(pod.metadata.uid))


class _ComparesNoList(PodHandlers):
    def listed(self, uids: set[str], asked: float) -> None:
        """Whoever is known stays known."""

    def unseen(self, seconds: float) -> list[Any]:
        return []


class _LosesDeletions(Reflector[QueuedPod]):
    """What was deleted while there was no watch is never missed."""

    def _complete(self, seen: Any, version: str, asked: float) -> None:
        super()._complete(set(self._known) | seen, version, asked)


class _DoubtsEarly(AssumedPods):
    """Not bound after ten seconds: never bound."""

    async def run(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            for uid in self._ledger.overdue(1.0):
                await self.resolve(uid)


class _MovesAtOnce(Ledger):
    """The card before is free before the API server shows the one after."""

    def move(self, uid: PodUID, placement: Placement, *, version: int = 0) -> Refusal | None:
        refusal = super().move(uid, placement, version=version)
        self.moved(uid)
        return refusal


class _TrustsTheSick(Ledger):
    """Cards that are not healthy bear anything."""

    def _reported(self, uuid: Any) -> Any:
        place = self._places.get(uuid)
        return None if place is None else (place.node, place.card)

    def move(self, uid: PodUID, placement: Placement, *, version: int = 0) -> Refusal | None:
        entry = self._entries.get(uid)
        if entry is None:
            return None
        self._leave(uid)
        refusal = self._enter(uid, placement, entry.state, entry.owner)
        if refusal is not None:
            self._restore(uid, entry)
        return refusal


class _ChargesHalf(Ledger):
    """Half of the memory that a pod was given is charged."""

    def _enter(
        self, uid: PodUID, placement: Placement, state: EntryState, owner: QuotaOwner, rank: Rank = LAST
    ) -> Refusal | None:
        refusal = super()._enter(uid, placement, state, owner, rank)
        entry = self._entries.get(uid)
        if refusal is None and entry is not None:
            half = tuple(msgspec.structs.replace(c, memory=MiB(c.memory // 2)) for c in entry.charges)
            self._leave(uid)
            self._restore(uid, msgspec.structs.replace(entry, charges=half))
        return refusal


class _BeginsLate(Repair):
    """Moves of the leader before wait their turn."""

    def begin(self) -> None:
        pass


BROKEN: dict[str, Parts] = {
    "": Parts(),
    "forgets what had no answer": Parts(binder=_ForgetsUnknown),
    "forgets when the node changes": Parts(binder=_ForgetsElsewhere),
    "ignores the UID": Parts(binder=_IgnoresTheUid),
    "remembers no departed": Parts(handlers=_RemembersNoDeparted),
    "compares no list": Parts(handlers=_ComparesNoList),
    "loses deletions": Parts(reflector=_LosesDeletions),
    "doubts early": Parts(assumed=_DoubtsEarly),
    "moves at once": Parts(ledger=_MovesAtOnce),
    "trusts sick cards": Parts(ledger=_TrustsTheSick),
    "charges half": Parts(ledger=_ChargesHalf),
    "a new leader does not wait": Parts(waits=False),
    "no policy": Parts(policy=False),
    "begins moves late": Parts(repair=_BeginsLate),
}
