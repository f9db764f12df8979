"""What a placed pod holds and uses, and what its containers wait for. Pure."""

from collections.abc import Iterable, Iterator

from fractile.ledger.ledger import Ledger
from fractile.model.units import PodUID
from fractile.reports.why.read import Read
from fractile.wire.kubernetes.why_objects import ObservedContainer, ObservedPod
from fractile.wire.output.node_usage import NodeUsage, SliceUsage
from fractile.wire.output.why import Holding, Use

_MIB = 2**20


def holdings(read: Read, ledger: Ledger) -> Iterator[Holding]:
    """What each container holds by the pod's placement, if the ledger accepted that."""
    entry = ledger.entry(PodUID(read.pod.metadata.uid))
    if entry is None:
        return
    known = {card.uuid: card for card in ledger.cards(entry.placement.node)}
    for container in entry.placement.containers:
        for part in container.slices:
            card = known.get(part.card)
            yield Holding(
                container=container.container,
                role=container.role.value,
                card=part.card,
                index=card.index if card else None,
                model=card.model if card else "",
                memory_mib=part.memory,
                cores_percent=part.cores,
                shares=part.shares,
                use=_use(read.usage, read.pod.metadata.uid, container.container, part.card),
            )


def _use(usage: NodeUsage | None, uid: str, container: str, card: str) -> Use | None:
    found = (
        part
        for c in (usage.containers if usage else ())
        if (c.pod_uid, c.container) == (uid, container)
        for part in c.cards
        if part.uuid == card
    )
    return next(map(_used, found), None)


def _used(part: SliceUsage) -> Use:
    busy = part.utilization_percent if part.utilization_percent is not None else part.share_percent
    return Use(
        used_mib=_mib(part.held_bytes),
        peak_mib=_mib(part.peak_bytes),
        busy_percent=None if busy is None else round(float(busy), 1),
        refusals=part.refusals,
    )


def _mib(bytes: int | None) -> int | None:
    return None if bytes is None else -(-bytes // _MIB)


def containers(pod: ObservedPod) -> Iterator[str]:
    """What each container that does not run yet waits for, in kubelet's words."""
    status = pod.status
    yield from _waiting((*(status.init_container_statuses or ()), *(status.container_statuses or ())))


def _waiting(statuses: Iterable[ObservedContainer]) -> Iterator[str]:
    for status in statuses:
        waiting = status.state.waiting if status.state else None
        if waiting is not None:
            more = f" ({waiting.message})" if waiting.message else ""
            yield f"container {status.name} waits: {waiting.reason}{more}"
