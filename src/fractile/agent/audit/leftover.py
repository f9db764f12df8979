"""Processes of a pod that the API server no longer has, on a card that the pod was never given.

Such a pod cannot be evicted: its object is gone, and kubelet gives its containers the time that the pod's owner chose.
What a pod was given and still holds is reported by ``departed``. Reported once for each pod, in the log and as an event
of the node; an administrator must end the processes. Static pods, which have another UID in the API, are excluded.
"""

import logging

from fractile.agent.audit.departed import REASON
from fractile.agent.audit.unaccounted import Finding
from fractile.agent.node.owners import Owners, ProcessOwner
from fractile.kube.events import EventRecorder, ObjectRef
from fractile.model.units import PodUID

_MIB = 2**20

log = logging.getLogger(__name__)


class Leftover:
    """``look`` calls the API server at most as often as ``Owners`` does."""

    def __init__(self, events: EventRecorder, owners: Owners) -> None:
        self._events = events
        self._owners = owners
        self._told: set[PodUID] = set()

    async def look(self, finding: Finding, owner: ProcessOwner | None) -> str:
        """The UID of the pod of such a process, if the pod is gone; "" otherwise."""
        process = finding.process
        if finding.kind != "no-slice" or process is None:
            return ""
        uid = PodUID(owner.uid) if owner is not None else self._owners.outermost(process.places)
        if "-" not in uid or not await self._owners.gone(uid):
            return ""
        if uid not in self._told:
            self._told.add(uid)
            self._tell(finding, owner, uid)
        return uid

    def _tell(self, finding: Finding, owner: ProcessOwner | None, uid: PodUID) -> None:
        process = finding.process
        assert process is not None
        who = f"pod {owner.namespace}/{owner.pod} (uid {uid})" if owner is not None else f"the pod with uid {uid}"
        log.warning(
            "used by a deleted pod uid=%s pid=%d card=%s bytes=%s", uid, process.pid, finding.card, finding.bytes
        )
        self._events.emit(
            ObjectRef("Node", "", self._owners.node, ""),
            REASON,
            f"process {process.pid} ({process.command}) of {who} uses {(finding.bytes or 0) // _MIB} MiB of card "
            f"{finding.card}, of which the pod had no part, although the pod is gone from the API server, as after a "
            "forced deletion; end the process on the node",
        )
