"""GetPreferredAllocation: make kubelet's choice of ids agree with the placement of the pod that it admits.

Failure rule: never an error, which would fail the pod permanently. Whatever goes wrong, some ids are preferred and the
reason is logged; PreStart, which kubelet repeats, then settles their meaning. It can move a placement to where kubelet
put the pod only if there is room, and kubelet never chooses again: so if the pod is not known, the card with the most
room is preferred.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import msgspec

from fractile.agent.deviceplugin.preferred_ids import prefer
from fractile.agent.kubelet.identity import AdmittedContainer, Unknown, who_asks
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.node.pods import NodePods, placement_of
from fractile.dialects import table
from fractile.dialects.dialect import Facts
from fractile.errors import ApiError, FractileError, Unreachable, WireError
from fractile.kube.pacing import Clock, Sleep
from fractile.model.request import ContainerRequest, PodRequest, peak_amount
from fractile.model.units import CardUUID, PodUID
from fractile.wire.fractile.device_ids import split

_BUDGET = 8.0  # seconds for one answer; kubelet admits no other pod meanwhile and has no limit of its own
_AGAIN = 0.25  # seconds until an unavailable API server is called again
_REMEMBERED = 256  # preferred sets; a node runs 110 pods
_UNSEEN = 60.0  # seconds until the watch has surely shown a pod that kubelet admits

log = logging.getLogger(__name__)


_Mask = dict[CardUUID, int]  # the numbers of a card's ids as bits: 8,000 ids take 1 kB instead of 1 MB


class _Preferred(msgspec.Struct):
    uid: PodUID
    until: float  # by our clock; after it, it counts only while the pod exists
    ids: _Mask
    request: PodRequest
    container: ContainerRequest  # the one that was admitted; once given, the last one that got some of the ids
    given: bool = False

    @property
    def facts(self) -> Facts:
        return _facts(self.request, self.container)

    def successor(self, resource: str, amount: int) -> ContainerRequest | None:
        """The next container in kubelet's order that requests the resource, if it requests ``amount``. Kubelet admits
        the containers of a pod one after the other, and gives each the devices of ordinary init containers first: so
        this one gets a part of these ids now."""
        after = self.request.containers[self.request.containers.index(self.container) + 1 :]
        found = next((c for c in after if c.amount_of(resource)), None)
        return found if found is not None and found.amount_of(resource) == amount else None


class PreferredAllocation:
    """Answers for all resources, and remembers for which pod it preferred which ids. ``room``: what the pods of
    the node leave of each card, in the card's own unit."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: NodePods,
        *,
        room: Callable[[], Mapping[CardUUID, int]] = dict[CardUUID, int],
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._kubelet = kubelet
        self._pods = pods
        self._room = room
        self._clock = clock
        self._sleep = sleep
        self._preferred: dict[str, deque[_Preferred]] = {}

    async def prefer(
        self, resource: str, *, available: list[str], must_include: list[str], size: int, distinct: bool = False
    ) -> list[str]:
        """The ids to use; never fails. ``distinct``: of different cards, if the placement is not known."""
        started = self._clock()
        asking = await self._identify(resource)
        wanted, why = _wanted(resource, asking)
        room = None if wanted else self._room()
        chosen = prefer(available, must_include, size, wanted=wanted, distinct=distinct, room=room)
        self._remember(resource, _mask(chosen), asking)
        log.info(
            "prefer resource=%s size=%d pod=%s container=%s steered=%s reason=%s ms=%.1f",
            resource,
            size,
            asking.request.key if isinstance(asking, AdmittedContainer) else "-",
            asking.container.container if isinstance(asking, AdmittedContainer) else "-",
            bool(wanted),
            why,
            (self._clock() - started) * 1000,
        )
        return chosen

    async def facts(self, resource: str, ids: frozenset[str]) -> Facts:
        """What is known of the container that gets these ids.

        Kubelet did not ask about a container that took over an init container's ids, but these ids were preferred for
        its pod (evidence/kubelet.md#init-containers). Kubelet's order usually identifies it; it is looked up only if
        that fails, since a pod may have hundreds of containers, and if that fails too the pod's sum is still known.
        """
        mask = _mask(ids)
        known = next((s for s in self._preferred.get(resource, ()) if _within(mask, s.ids)), None)
        if known is not None and not known.given and known.ids == mask:
            known.given = True
            return known.facts
        if known is not None and self._clock() < known.until:
            successor = known.successor(resource, len(ids))
            if successor is not None:
                known.container = successor
                return known.facts
        asking = await self._identify(resource)
        if isinstance(asking, AdmittedContainer):
            return _facts(asking.request, asking.container)
        return Facts(known.facts.pod_amount if known else len(ids))

    async def _identify(self, resource: str) -> AdmittedContainer | Unknown:
        """Identify the container within the budget; waits for an API server that is away for less."""
        reason = ""
        try:
            async with asyncio.timeout(_BUDGET):
                while True:
                    try:
                        return await who_asks(resource, await self._kubelet.state(), self._pods)
                    except FractileError as e:
                        reason = str(e)
                        if not _passes(e):
                            return Unknown(reason)
                    await self._sleep(_AGAIN)
        except TimeoutError:
            return Unknown(reason or f"no answer within {_BUDGET:.0f} s")

    def _remember(self, resource: str, ids: _Mask, asking: AdmittedContainer | Unknown) -> None:
        """Remember the ids for their new owner. Ids given out again no longer belong to the earlier one, and those of
        pods that are gone are forgotten: a set of 32,000 ids is 4 kB."""
        before, now = self._preferred.get(resource, ()), self._clock()
        there = (s for s in before if _disjoint(s.ids, ids) and (now < s.until or self._pods.by_uid(s.uid)))
        kept = deque(there, maxlen=_REMEMBERED)
        if isinstance(asking, AdmittedContainer):
            uid, until = PodUID(asking.pod.metadata.uid), now + _UNSEEN
            kept.append(_Preferred(uid, until, ids, asking.request, asking.container))
        self._preferred[resource] = kept


def _passes(error: FractileError) -> bool:
    return isinstance(error, Unreachable) or (isinstance(error, ApiError) and (error.code == 429 or error.code >= 500))


def _mask(ids: Iterable[str]) -> _Mask:
    numbers: dict[CardUUID, bytearray] = {}
    for device in ids:
        try:
            card, k = split(device)
        except WireError:
            continue
        bits = numbers.setdefault(card, bytearray())
        bits.extend(bytes(max(k // 8 + 1 - len(bits), 0)))
        bits[k // 8] |= 1 << k % 8
    return {card: int.from_bytes(bits, "little") for card, bits in numbers.items()}


def _within(a: _Mask, b: _Mask) -> bool:
    return all(not bits & ~b.get(card, 0) for card, bits in a.items())


def _disjoint(a: _Mask, b: _Mask) -> bool:
    return all(not bits & b.get(card, 0) for card, bits in a.items())


def _facts(request: PodRequest, container: ContainerRequest) -> Facts:
    return Facts(peak_amount(request.containers, container.resource), container.amounts)


def _wanted(resource: str, asking: AdmittedContainer | Unknown) -> tuple[Mapping[CardUUID, int], str]:
    """How many ids of which card the placement stands for, or why that is not known."""
    if isinstance(asking, Unknown):
        return {}, asking.reason
    try:
        placement = placement_of(asking.pod)
    except FractileError as e:
        return {}, str(e)
    if placement is None:
        return {}, "the pod has no placement"
    slices = placement.slices_for(asking.container)
    if not slices:
        return {}, "the placement does not name the container"
    return table.ids_wanted(resource, asking.container, slices), "placement"
