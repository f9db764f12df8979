"""Writes the limits of a container into the token directory that it has mounted."""

import logging
from collections.abc import Container, Sequence
from functools import partial

import msgspec

from fractile.agent.kubelet.kubelet_state import KubeletState, mounted
from fractile.agent.kubelet.owner import Denied, Owned
from fractile.agent.limits.journal import Journal
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.model.placement import Placement, Slice
from fractile.model.request import ContainerRequest, PodRequest, Request
from fractile.model.units import CardUUID, Percent
from fractile.region.page import CardLimits, ContainerLimits
from fractile.wire.kubernetes.objects import PodStatus

_MIB = 2**20
SEATS = 2048  # containers that the arbiter serves: SCHEDULE_TENANTS of native/arbiter/schedule.h

log = logging.getLogger(__name__)


class LimitsWriter:
    """All its work is on files: run it in a thread."""

    def __init__(self, journal: Journal, current_catalog: CurrentCatalog) -> None:
        self._journal = journal
        self._current_catalog = current_catalog

    def grant(
        self,
        owned: Owned,
        placement: Placement,
        resource: str,
        ids: frozenset[str],
        state: KubeletState,
        *,
        flags: int = 0,
    ) -> Denied | None:
        """Write the limits of each container for which kubelet may be calling. The call does not name the container,
        and an init container and all of its successors may hold exactly these ids. They start one after the other, each
        after its own call: so it is for one that was granted before, or for the next one. Later ones get no page yet,
        and so no seat. ``flags``: of the page, see ``ContainerLimits``. Raises OSError if the file system does."""
        sharing: list[tuple[ContainerRequest, list[str]]] = []
        for container in owned.request.containers:
            if container.resource != resource or owned.ids(container) != ids or container.request.shares:
                continue  # non-GPU devices have no limits
            sharing.append((container, self._tokens(owned, container, ids, state)))
        pages = self._journal.pages()
        for container, tokens in sharing[: _granted_before(sharing, pages, owned.pod.status) + 1]:
            if not tokens:
                return Denied(
                    f"the token directory of container {container.container} is unknown; if the agent's --state-dir "
                    "was changed, delete the pod so that it is created again"
                )
            pages.update(tokens)
            if len(pages) > SEATS:  # a container without a seat would not be paced
                return Denied(
                    f"{SEATS} containers of this node hold a part of a card, and the arbiter has no more seats; "
                    "the container starts when another one has ended"
                )
            limits = limits_of(owned.request, container, placement, self._current_catalog.catalog, flags=flags)
            for token in tokens:
                self._journal.change(token, partial(_granted, limits))
        return None

    def _tokens(self, owned: Owned, container: ContainerRequest, ids: frozenset[str], state: KubeletState) -> list[str]:
        entry = state.entry(owned.uid, container.container, container.resource)
        if entry is None:
            return self._by_ids(owned, container, ids)
        directory = mounted(entry)
        token = self._journal.token(directory) if directory else ""
        if token and not self._journal.exists(token):
            log.warning("token directory created again token=%s pod=%s", token, owned.request.key)
            self._journal.refill(token, container.resource, ids)
        return [token] if token else []

    def _by_ids(self, owned: Owned, container: ContainerRequest, ids: frozenset[str]) -> list[str]:
        """Without the checkpoint: every directory with these ids that does not belong to another pod."""
        found: list[str] = []
        for grant in self._journal.find(container.resource, ids):
            known = self._journal.limits(grant.token)
            if known is None or known.pod_uid == owned.uid:
                found.append(grant.token)
        return found


def _granted_before(
    sharing: Sequence[tuple[ContainerRequest, list[str]]], pages: Container[str], status: PodStatus
) -> int:
    """How many of them, counted from the first, may have started: by the pages that they have, or, if these were
    removed, by the pod's status, which may be late."""
    shown = (*(status.init_container_statuses or ()), *(status.container_statuses or ()))
    started = {one.name for one in shown if one.has_started}
    counts = [
        number
        for number, (container, tokens) in enumerate(sharing, start=1)
        if container.container in started or any(token in pages for token in tokens)
    ]
    return max(counts, default=0)


def _granted(limits: ContainerLimits, present: ContainerLimits | None) -> ContainerLimits:
    """The limits, with the fields of an existing page that others maintain: flags of cards (``enforce``), findings."""
    known = {c.uuid: c for c in present.cards} if present is not None else {}
    cards = (
        msgspec.structs.replace(c, flags=known[c.uuid].flags, unaccounted=known[c.uuid].unaccounted)
        if c.uuid in known
        else c
        for c in limits.cards
    )
    return msgspec.structs.replace(limits, cards=tuple(cards))


def limits_of(
    pod: PodRequest, container: ContainerRequest, placement: Placement, catalog: Catalog, *, flags: int = 0
) -> ContainerLimits:
    """The limits that the placement gives to a container of the pod."""
    return ContainerLimits(
        pod_uid=pod.uid,
        namespace=pod.namespace,
        pod=pod.name,
        container=container.container,
        cards=card_limits(placement.slices_for(container), container.request, catalog),
        priority=container.request.priority,
        flags=flags,
    )


def card_limits(slices: tuple[Slice, ...], request: Request, catalog: Catalog) -> tuple[CardLimits, ...]:
    """The limits of the slices on each card, ordered by UUID, so that the same cards always have the same counters."""
    memory: dict[CardUUID, int] = {}
    cores: dict[CardUUID, int] = {}
    for s in slices:
        memory[s.card] = memory.get(s.card, 0) + s.memory * _MIB
        cores[s.card] = min(100, cores.get(s.card, 0) + s.cores)
    return tuple(
        CardLimits(
            uuid=uuid,
            memory=memory[uuid],
            context=card.context * _MIB if (card := catalog.card(uuid)) else 0,
            cores=Percent(cores[uuid]),
            cores_limit=_limit(request, cores[uuid]),
            weight=cores[uuid] or 1,
        )
        for uuid in sorted(memory)
    )


def _limit(request: Request, cores: int) -> Percent:
    """A class gives a hard limit, which is in the placement and not in the request."""
    return Percent(cores) if request.device_class else request.cores_limit
