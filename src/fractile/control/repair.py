"""Writes a bound pod's annotation anew when it differs from the ledger, or when kubelet chose other cards.

Kubelet is the truth for which card, the ledger for how much (node.md 3.3). The agent reports kubelet's choice in
``fractile.dev/kubelet-choice``; the ledger moves the hold there if the cards have room, and only then does the
placement say so and the container start. Without room the pod stays as it is and its event says why.
"""

import asyncio
import logging
from collections.abc import Callable

from fractile.control.feed import Warn
from fractile.dialects.table import parse_pod, placement_annotations
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.ledger.ledger import Ledger
from fractile.model.placement import Placement
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, PodUID
from fractile.policy.verify import mismatch
from fractile.wire import placement
from fractile.wire.objects import Pod

log = logging.getLogger(__name__)

_RETRY = 2.0  # seconds between two tries of a write that failed


class Repair:
    """A queue of pods to look at again; ``run`` works it off."""

    def __init__(
        self, *, ledger: Ledger, client: KubeClient, unit: MemoryUnit, warn: Warn, wall_ns: Callable[[], int]
    ) -> None:
        self._ledger = ledger
        self._client = client
        self._unit = unit
        self._warn = warn
        self._wall_ns = wall_ns
        self._pods: dict[PodUID, Pod] = {}  # the newest state of each
        self._work = asyncio.Event()

    def request(self, pod: Pod) -> None:
        self._pods[PodUID(pod.metadata.uid)] = pod
        self._work.set()

    async def run(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            for uid, pod in list(self._pods.items()):
                if await self._settle(uid, pod) and self._pods.get(uid) is pod:
                    del self._pods[uid]
            if self._pods:
                await asyncio.sleep(_RETRY)
                self._work.set()

    async def _settle(self, uid: PodUID, pod: Pod) -> bool:
        """Bring ledger and annotation together; False when the API has to be asked again."""
        entry = self._ledger.entry(uid)
        request = parse_pod(pod, self._unit)
        if entry is None or not isinstance(request, PodRequest):
            return True  # finished meanwhile
        # 1. What kubelet chose, if the agent has said so and it makes sense.
        choice = self._choice(pod, request)
        # 2. Move the hold there, if there is room.
        if choice is not None and choice != entry.placement:
            refusal = self._ledger.move(uid, choice)
            if refusal is not None:
                self._warn(pod, "CardTaken", f"kubelet chose other cards than planned, and {refusal.message}")
                return True
        # 3. One write: the placement that the ledger holds.
        return await self._write(uid, pod, request)

    async def _write(self, uid: PodUID, pod: Pod, request: PodRequest) -> bool:
        entry = self._ledger.entry(uid)
        if entry is None:
            return True
        cards = self._ledger.cards(entry.placement.node)
        annotations: dict[str, str | None] = {
            **placement_annotations(request, entry.placement, cards=cards, unit=self._unit, now_ns=self._wall_ns()),
            placement.ANNOTATION: placement.encode(entry.placement),
            placement.CHOICE_ANNOTATION: None,
        }
        meta = pod.metadata
        try:
            # The UID makes the server refuse the patch for a later pod of the same name.
            await self._client.merge_patch(
                paths.pod(meta.namespace, meta.name), {"metadata": {"uid": uid, "annotations": annotations}}
            )
        except (ApiError, Unreachable) as e:
            log.warning("repair failed pod=%s/%s reason=%s", meta.namespace, meta.name, e)
            return isinstance(e, ApiError) and e.code in (404, 409, 422)
        log.info("placement rewritten pod=%s/%s node=%s", meta.namespace, meta.name, entry.placement.node)
        return True

    def _choice(self, pod: Pod, request: PodRequest) -> Placement | None:
        text = (pod.metadata.annotations or {}).get(placement.CHOICE_ANNOTATION)
        if text is None:
            return None
        try:
            choice = placement.decode(text)
        except WireError as e:
            log.warning("choice ignored pod=%s/%s reason=%s", pod.metadata.namespace, pod.metadata.name, e)
            return None
        if choice.node != pod.spec.node_name or mismatch(request, choice) is not None:
            return None
        return choice
