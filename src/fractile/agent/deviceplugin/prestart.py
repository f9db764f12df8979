"""PreStartContainer: the ids have exactly one owner now, so everything about it is checked, and its limits are written.

Failure rule: closed. If anything is missing or does not fit, the container does not start, the reason appears in the
pod's events, and kubelet calls again: a refusal loses nothing (evidence/kubelet.md#refusals).

Kubelet may have chosen other cards than the placement names: it reuses an init container's devices without a call, and
while the API server is away, GetPreferredAllocation does not know the placement. Then the real cards are reported in
``fractile.dev/kubelet-choice``; the control plane moves the ledger if they fit and rewrites the placement, and only
then does the container start.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import msgspec

from fractile.agent.deviceplugin.assigned import Assigned
from fractile.agent.deviceplugin.precedence import Against, Precedence
from fractile.agent.deviceplugin.runtime_class import RuntimeClasses
from fractile.agent.deviceplugin.worth import same
from fractile.agent.kubelet.kubelet_state import Kubelet, KubeletState, KubeletStateMissing
from fractile.agent.kubelet.owner import Denied, Owned, owner, recorded_owner
from fractile.agent.limits import fence, library, vcuda_folder
from fractile.agent.limits.isolation import Isolation
from fractile.agent.limits.library_content import LibraryContent
from fractile.agent.limits.limits_writer import LimitsWriter
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.pods import NodePods, charged, placement_of
from fractile.debug.trace_steps import Trace, TraceStep
from fractile.dialects import table
from fractile.errors import ApiError, Unreachable, WireError
from fractile.kube.pacing import Clock, Sleep
from fractile.model.card import GPU, Card
from fractile.model.placement import Charge, ContainerPlacement, Placement, Slice, charges
from fractile.model.units import WHOLE, CardUUID, ContainerName, PodUID
from fractile.policy.cards.state import cores_fit
from fractile.region.page import FLAG_OFF
from fractile.wire.fractile import placement as placement_wire
from fractile.wire.fractile.device_ids import count_by_card

_WAIT = 20.0  # seconds for the control plane to move the ledger, of the 30 that kubelet gives us
_POLL = 0.25
_SYNC = 6.0

T = TypeVar("T")

log = logging.getLogger(__name__)


class PreStart:
    """Checks and grants, for all resources. ``granted`` is called when limits were written; ``ready``, if any, writes
    the other files of containers made for gpu-manager, and does not raise."""

    def __init__(
        self,
        kubelet: Kubelet,
        pods: NodePods,
        granter: LimitsWriter,
        assigned: Assigned,
        current_catalog: CurrentCatalog,
        *,
        library_content: LibraryContent | None = None,
        precedence: Precedence | None = None,
        runtimes: RuntimeClasses | None = None,
        isolation: Isolation | None = None,
        granted: Callable[[], None] = lambda: None,
        ready: Callable[[PodUID], Awaitable[None]] | None = None,
        trace: Trace | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._trace = trace
        self._kubelet = kubelet
        self._pods = pods
        self._granter = granter
        self._assigned = assigned
        self._current_catalog = current_catalog
        self._library = library_content or LibraryContent()
        self._precedence = precedence
        self._runtimes = runtimes
        self._isolation = isolation
        self._granted = granted
        self._ready = ready
        self._clock = clock
        self._sleep = sleep

    async def check(self, resource: str, ids: frozenset[str]) -> Denied | None:
        """None when the container that holds the ids may start."""
        started = self._clock()
        # 1. Which pod holds exactly these ids, by kubelet's records and the API server?
        found = await _closed(self._owner(resource, ids))
        denied = found if isinstance(found, Denied) else await _closed(self._grant(*found, resource, ids))
        owned = None if isinstance(found, Denied) else found[0]
        pod = owned.request.key if owned is not None else "-"
        reason = denied.reason if denied is not None else "granted"
        ms = (self._clock() - started) * 1000
        log.info("prestart resource=%s size=%d pod=%s reason=%s ms=%.1f", resource, len(ids), pod, reason, ms)
        if self._trace is not None and owned is not None:
            ended, attributes = time.time_ns(), {"fractile.resource": resource, "fractile.ids": len(ids)}
            error = denied.reason if denied is not None else ""
            self._trace(TraceStep("prestart", owned.uid, pod, ended - int(ms * 1e6), ended, error, attributes))
        return denied

    async def _grant(self, owned: Owned, state: KubeletState, resource: str, ids: frozenset[str]) -> Denied | None:
        # 2. Do its own mounts leave the library and the limits alone, does its runtime load it, and is it intact?
        denied = fence.denied(owned.pod)
        if denied is None and self._runtimes is not None:
            denied = await self._runtimes.denied(owned.pod)
        if denied is None:
            holders = state.recorded_holders(resource, ids)
            denied = await asyncio.to_thread(library.denied, holders, self._library)
        if denied is not None:
            return denied
        # 3. Do its containers hold what the placement gives them? If kubelet chose otherwise, wait for the ledger.
        placement = await self._agreed(owned)
        if isinstance(placement, Denied):
            return placement
        # 4. Does it fit in addition to what the other pods of the node were given before?
        denied = await self._no_room(owned, placement)
        if denied is not None:
            return denied
        # 5. Write the limits of every container that holds the ids.
        flags = await self._flags(owned)
        denied = await asyncio.to_thread(self._granter.grant, owned, placement, resource, ids, state, flags=flags)
        if denied is not None:
            return denied
        # 6. Update the neighbours on the card, and the dialects' annotations, in the background.
        self._granted()
        if self._ready is not None and vcuda_folder.wanted(resource):
            await self._ready(owned.uid)
        self._assigned.granted(owned.pod, owned.request)
        return None

    async def _owner(self, resource: str, ids: frozenset[str]) -> tuple[Owned, KubeletState] | Denied:
        state = await self._kubelet.record()
        owned = await recorded_owner(resource, ids, state, self._pods)
        if owned is not None:
            return owned, state
        state = await self._kubelet.state()
        listed = await owner(resource, ids, state, self._pods)
        return listed if isinstance(listed, Denied) else (listed, state)

    async def _flags(self, owned: Owned) -> int:
        verdict = await self._isolation.verdict(owned.pod) if self._isolation is not None else None
        return FLAG_OFF if verdict is not None and verdict.off else 0

    async def _agreed(self, owned: Owned) -> Placement | Denied:
        placement = self._placement(owned)
        if isinstance(placement, Denied):
            return placement
        real = _real(owned, placement, self._current_catalog.catalog)
        if isinstance(real, Denied):
            return real
        if _agree(placement, real):
            return placement
        choice = placement_wire.encode(real)
        if (owned.pod.metadata.annotations or {}).get(placement_wire.CHOICE_ANNOTATION) != choice:
            log.warning("kubelet chose other cards pod=%s choice=%s", owned.request.key, choice)
            await self._pods.annotate(owned.pod, {placement_wire.CHOICE_ANNOTATION: choice})
        return await self._confirmed(owned, real)

    async def _confirmed(self, owned: Owned, real: Placement) -> Placement | Denied:
        """The placement as soon as it names the cards that kubelet chose."""
        deadline = self._clock() + _WAIT
        while self._clock() < deadline:
            await self._sleep(_POLL)
            pod = await self._pods.fresh(owned.request.namespace, owned.request.name)
            if pod is None or pod.metadata.uid != owned.uid:
                return Denied(f"pod {owned.request.key} is gone")
            placement = self._placement(msgspec.structs.replace(owned, pod=pod))
            if isinstance(placement, Denied) or _agree(placement, real):
                return placement
        cards = ", ".join(c.card for c in charges(real))
        return Denied(
            f"kubelet gave pod {owned.request.key} {cards}, but its placement names other cards, and the control plane "
            f"has not confirmed the change within {_WAIT:.0f} s: the cards may have no room for the pod, or the "
            "control plane does not run"
        )

    def _placement(self, owned: Owned) -> Placement | Denied:
        placement = placement_of(owned.pod)
        if placement is None:
            return Denied(
                f"pod {owned.request.key} has no placement; bind it with a scheduler that calls Fractile's extender"
            )
        if placement.node != self._pods.node:
            return Denied(f"the placement of pod {owned.request.key} is for node {placement.node[:80]}")
        return placement

    async def _no_room(self, owned: Owned, placement: Placement) -> Denied | None:
        if not await self._pods.synced(_SYNC):
            return Denied("the node's other pods are not known yet: the API server has not listed them")
        self._pods.learn(owned.pod)
        used: dict[CardUUID, list[Charge]] = {}
        mine = charges(placement)
        against = await self._against(owned.uid)
        for charge in (*against.charges, *mine):
            used.setdefault(charge.card, []).append(charge)
        for charge in mine:
            card = self._current_catalog.catalog.card(charge.card)
            if card is None:
                return Denied(f"card {charge.card} of the placement does not answer on this node")
            denied = too_much(card, used[card.uuid], charge, owned.request.key)
            if denied is not None:
                return Denied(denied.reason + against.names(charge.card))
        return None

    async def _against(self, uid: PodUID) -> Against:
        if self._precedence is not None:
            return await self._precedence.against(uid)
        return Against([*charged(self._pods, node=self._pods.node, besides=uid)], ())


async def _closed(step: Awaitable[T]) -> T | Denied:
    """Turn errors of reading and writing into a refusal."""
    try:
        return await step
    except (KubeletStateMissing, WireError, ApiError, Unreachable, OSError) as e:
        return Denied(str(e))


def too_much(card: Card, used: Sequence[Charge], mine: Charge, pod: str) -> Denied | None:
    """Why the total on one card, ``mine`` included, is too much; None when it fits."""
    if card.type != GPU:
        shares = sum(c.shares for c in used)
        said = f"{card.type} {card.uuid} has {card.shares} share(s) and the pods placed on it need {shares}"
        return Denied(f"{said}, of which {mine.shares} for pod {pod}") if shares > card.shares else None
    memory, cores = sum(c.memory for c in used), sum(c.cores for c in used)
    if memory > card.memory:
        return Denied(
            f"card {card.index} ({card.uuid}) has {card.memory} MiB and the pods placed on it need {memory} MiB, of "
            f"which {mine.memory} for pod {pod}"
        )
    if not cores_fit(WHOLE, cores, coreless=any(c.coreless for c in used)):
        return Denied(
            f"the pods on card {card.index} ({card.uuid}) need {cores} % of its cores, of which {mine.cores} % for pod "
            f"{pod}; 100 % can be promised only if every container has a share"
        )
    return None


def _real(owned: Owned, placement: Placement, catalog: Catalog) -> Placement | Denied:
    """The placement by kubelet's choice. Kubelet admits all containers of a pod before the first one starts, so only an
    ordinary init container can be unknown, when the checkpoint is unreadable: that one is taken as placed."""
    held: dict[ContainerName, tuple[Slice, ...]] = {}
    for asked in owned.request.containers:
        ids = owned.ids(asked)
        if ids is not None and len(ids) != asked.amount:
            return Denied(f"container {asked.container} holds {len(ids)} {asked.resource}, but asks for {asked.amount}")
        given = placement.slices_for(asked)
        slices = (
            given if ids is None else table.slices_held(asked, count_by_card(sorted(ids)), [*catalog.all], given=given)
        )
        held[asked.container] = held.get(asked.container, ()) + slices
    roles = {c.container: c.role for c in owned.request.containers}
    return Placement(
        placement.node,
        tuple(ContainerPlacement(name, role, held[name]) for name, role in roles.items() if held[name]),
    )


def _agree(placement: Placement, real: Placement) -> bool:
    return all(same(placement.slices_of(c.container), c.slices) for c in real.containers)
