"""Allocate: a pure function of the ids. It must not fail for a transient cause, since the pod would be lost permanently
(evidence/kubelet.md#refusals); a full disk is such a cause, and PreStart recreates the directory. It does fail for ids
that can never be granted: then the pod could never start, and its controller creates another one.

The answer holds the cards and amounts that the ids stand for, and a fresh token directory, still without limits. So a
wrong choice of ids can give a wrong card, which PreStart detects and repairs, but never another pod's limits.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from pathlib import Path

from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.kubelet.api import deviceplugin_pb2 as dp
from fractile.agent.limits import vcuda_folder
from fractile.agent.limits.isolation import Isolation
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.library import LibraryVersion
from fractile.agent.node.catalog import Catalog
from fractile.dialects import table
from fractile.dialects.dialect import Facts, ResourceKind
from fractile.errors import WireError
from fractile.kube.pacing import Clock
from fractile.model.units import CardUUID
from fractile.region import directory
from fractile.wire.fractile.device_ids import count_by_card, device_id, split
from fractile.wire.fractile.resource_class import DEVICE_SLOT

_PAUSE = 1.0  # seconds: Allocates closer together belong to the same admission

log = logging.getLogger(__name__)


class Allocator:
    """Writes the token directory and builds the answer."""

    def __init__(
        self,
        journal: Journal,
        preferred_allocation: PreferredAllocation,
        *,
        library: LibraryVersion | None = None,
        isolation: Isolation | None = None,
        virtual_manager: bool = False,
        clock: Clock = time.monotonic,
    ) -> None:
        self._journal = journal
        self._preferred_allocation = preferred_allocation
        self._library = library
        self._isolation = isolation
        self._virtual_manager = virtual_manager
        self._clock = clock
        self._waiting = 0
        self._answered = float("-inf")

    def busy(self) -> bool:
        """Whether kubelet admits pods: it waits for an answer, or has just got one. It admits no other pod then."""
        return self._waiting > 0 or self._clock() - self._answered < _PAUSE

    async def allocate(self, resource: str, ids: list[str], catalog: Catalog) -> dp.ContainerAllocateResponse:
        """The answer for one container; WireError when an id is not ours, or no container can use the ids. Empty for a
        resource that is only counted, whatever the ids are: the container's primary resource decides."""
        if table.kind(resource) is ResourceKind.COUNTED:
            return dp.ContainerAllocateResponse()
        started = self._clock()
        held = held_by_card(resource, ids, catalog)
        if table.torn(resource, held):
            raise WireError(_torn(resource, held))
        if resource == DEVICE_SLOT:
            return answer_for_others(held, catalog)
        self._waiting += 1
        try:
            return await self._answer(resource, ids, held, catalog, started)
        finally:
            self._waiting -= 1
            self._answered = self._clock()

    async def _answer(
        self, resource: str, ids: list[str], held: Mapping[CardUUID, int], catalog: Catalog, started: float
    ) -> dp.ContainerAllocateResponse:
        wanted = frozenset(ids)
        facts = await self._preferred_allocation.facts(resource, wanted)
        token = self._journal.new_token()
        try:
            await asyncio.to_thread(self._journal.create, token, resource, wanted)
        except OSError as e:
            log.warning("token directory not written token=%s reason=%s", token, e)
        answer = table.container_answer(resource, held, cards=catalog.cards, unit=catalog.unit, facts=facts)
        environment = answer.environment | await self._environment()
        cards, ms = ",".join(f"{c}:{n}" for c, n in held.items()), (self._clock() - started) * 1000
        log.info("allocate resource=%s token=%s cards=%s ms=%.1f", resource, token, cards, ms)
        return dp.ContainerAllocateResponse(
            envs=environment,
            annotations=answer.annotations,
            mounts=[
                *_mounts(self._journal.path(token)),
                *(vcuda_folder.mounts(self._journal.path(token), resource) if self._virtual_manager else ()),
                *(self._library.mounts() if self._library else ()),
            ],
        )

    async def _environment(self) -> dict[str, str]:
        """The variables of the node, not of the dialect."""
        environment = await self._isolation.environment() if self._isolation is not None else {}
        return environment | (self._library.environment() if self._library is not None else {})


def answer_for_others(held: Mapping[CardUUID, int], catalog: Catalog) -> dp.ContainerAllocateResponse:
    """The answer for a container with non-GPU devices: they have no limits, so there is no directory."""
    offers = catalog.offers(held)
    names = table.container_answer(
        DEVICE_SLOT, held, cards=[*catalog.all], unit=catalog.unit, facts=Facts(sum(held.values()))
    )
    environment: dict[str, str] = {}
    for name, value in (pair for o in offers for pair in o.environment):
        environment[name] = f"{environment[name]},{value}" if name in environment else value
    nodes = dict.fromkeys(n for o in offers for n in o.nodes)  # several devices may share one
    mounts = dict.fromkeys(m for o in offers for m in o.mounts)
    log.info("allocate resource=%s devices=%s", DEVICE_SLOT, ",".join(f"{c}:{n}" for c, n in held.items()))
    return dp.ContainerAllocateResponse(
        envs=environment | names.environment,
        devices=[dp.DeviceSpec(container_path=n.container, host_path=n.host, permissions=n.permissions) for n in nodes],
        mounts=[dp.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only) for m in mounts],
    )


def _mounts(token_directory: Path) -> list[dp.Mount]:
    """The token directory, read-only, and in it the one file that the container's processes write; the outer one first.

    Not the folder of that file: a container that may create files there may fill the node's disk with unlinked ones.
    """
    return [
        dp.Mount(container_path=directory.MOUNT, host_path=str(token_directory), read_only=True),
        dp.Mount(
            container_path=f"{directory.MOUNT}/{directory.REGION}", host_path=str(token_directory / directory.REGION)
        ),
    ]


def _torn(resource: str, held: Mapping[CardUUID, int]) -> str:
    return (
        f"kubelet took the {sum(held.values())} units of {resource} from {len(held)} cards, and no container can use "
        "them; it does so while pods that have ended still hold units; delete the pod, and create it again in a moment"
    )


def held_by_card(resource: str, ids: list[str], catalog: Catalog) -> dict[CardUUID, int]:
    """How many ids of each card; WireError when there are none, or some are not of a card of this node."""
    if not ids:
        raise WireError(f"kubelet asked for {resource} without a device id")
    counts = catalog.counts(resource)
    for device in ids:
        card, k = split(device)
        if k >= counts.get(card, 0) or device != device_id(card, k):
            raise WireError(
                f"device id {device[:80]!r} is not a {resource} of this node; check whether its card is lost"
            )
    return count_by_card(dict.fromkeys(ids))
