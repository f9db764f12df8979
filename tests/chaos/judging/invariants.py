"""What must be true of a quiet cluster, and of two moments of it. Pure; each answers with sentences, none when all is
well. What a pod that is on its way may lack is for ``settled`` to say; here only running pods must have it all."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from fractile.dialects.table import ids_wanted
from fractile.errors import WireError
from fractile.model.placement import charges
from fractile.model.request import Role
from fractile.wire.fractile.device_ids import count_by_card
from tests.chaos.judging.snapshot import SeenPod, Snapshot, Token

_FULL = 100  # percent of a card's time
_MIB = 2**20

Life = tuple[tuple[str, str | None, int], ...]  # of the containers: name, id, restarts


def violations(seen: Snapshot) -> list[str]:
    """All that is wrong at this moment."""
    return [*never(seen), *lasting(seen)]


def never(seen: Snapshot) -> list[str]:
    """What must not be, not even for a moment."""
    return [*overallocated(seen), *shared_ids(seen)]


def lasting(seen: Snapshot) -> list[str]:
    """Where one book may be a moment behind another, and must follow."""
    return [*ledger_differs(seen), *kubelet_differs(seen), *tokens_differ(seen)]


def overallocated(seen: Snapshot) -> Iterator[str]:
    """No card is promised twice: by the annotations of the pods that hold something."""
    cards = {card.uuid: (node, card) for node, card in seen.cards}
    memory, cores, slices = Counter[str](), Counter[str](), defaultdict[str, list[str]](list)
    for pod in seen.holding:
        if (placed := pod.placement) is None:
            yield f"unplaced: {pod.name} is bound to {pod.spec.node_name} and has no placement"
            continue
        for charge in charges(placed):
            memory[charge.card] += charge.memory
            cores[charge.card] += charge.cores
            slices[charge.card].append(pod.name)
            if charge.card not in cards:
                yield f"overallocated: {pod.name} holds {charge.card}, which no node has"
            elif cards[charge.card][0] != pod.spec.node_name:
                yield f"overallocated: {pod.name} runs on {pod.spec.node_name} and holds {charge.card} of another node"
    for uuid, (_, card) in cards.items():
        if memory[uuid] > card.memory or cores[uuid] > _FULL:
            yield (
                f"overallocated: {uuid} has {card.memory} MiB; {', '.join(slices[uuid])} hold {memory[uuid]} MiB "
                f"and {cores[uuid]} % of its time"
            )


def ledger_differs(seen: Snapshot) -> Iterator[str]:
    """The ledger counts the pods that the annotations name, and doubts none."""
    if seen.ledger is None:
        yield "ledger: no replica of the control plane is ready"
        return
    held, said = len(seen.holding), seen.ledger
    if (said.bound, said.assumed, said.conflicts) != (held, 0, 0):
        yield f"ledger: {held} pods hold cards; it knows {said.bound}, {said.assumed} assumed, {said.conflicts} doubted"


def kubelet_differs(seen: Snapshot) -> Iterator[str]:
    """Kubelet's checkpoint gives each running container what its placement says, and pod-resources the same."""
    for pod in seen.holding:
        if pod.running:
            yield from _of_pod(seen, pod)
    alive = {(p.spec.node_name, p.metadata.namespace, p.name) for p in seen.pods if not p.finished}
    for node, listed in seen.listed.items():
        for (namespace, name, container), held in listed.items():
            if held and (node, namespace, name) not in alive:
                yield f"kubelet: {node} says that {namespace}/{name} ({container}) holds devices; there is no such pod"


def _of_pod(seen: Snapshot, pod: SeenPod) -> Iterator[str]:
    request, placed, node = pod.request, pod.placement, pod.spec.node_name
    if request is None or placed is None:
        return
    for asked in request.containers:
        entries = [
            e
            for e in seen.records.get(node, ())
            if (e.uid, e.container, e.resource) == (pod.uid, asked.container, asked.resource)
        ]
        wanted = ids_wanted(asked.resource, asked, placed.slices_for(asked))
        held = _counted(entries[0].ids) if entries else {}
        if held != wanted and asked.role is not Role.INIT:
            yield f"kubelet: {pod.name} ({asked.container}) holds {held} of {asked.resource}; placed: {wanted}"
        listed = seen.listed.get(node, {}).get((pod.metadata.namespace, pod.name, asked.container), {})
        if asked.role is not Role.INIT and entries and listed.get(asked.resource, frozenset()) != entries[0].ids:
            yield f"kubelet: its two books of {pod.name} ({asked.container}) differ about {asked.resource}"


def _counted(ids: Collection[str]) -> dict[str, int]:
    try:
        return {str(card): count for card, count in count_by_card(ids).items()}
    except WireError:
        return {"malformed": len(ids)}


def shared_ids(seen: Snapshot) -> Iterator[str]:
    """No device id is in the hands of two living pods. Kubelet forgets those of a dead one with the next admission."""
    alive = {p.uid: p.name for p in seen.pods if not p.finished}
    for node, entries in seen.records.items():
        owners: dict[tuple[str, str], str] = {}
        for entry in entries:
            for one in entry.ids if entry.uid in alive else ():
                first = owners.setdefault((entry.resource, one), entry.uid)
                if first != entry.uid:
                    yield f"shared: {one} of {entry.resource} on {node}: {alive[first]} and {alive[entry.uid]}"
                    break


def tokens_differ(seen: Snapshot) -> Iterator[str]:
    """Each running container has a directory that grants what its placement says."""
    granted: dict[tuple[str, str, str], list[Token]] = {}
    for token in seen.tokens:
        granted.setdefault((token.node, token.uid, token.container), []).append(token)
    for pod in seen.holding:
        placed = pod.placement if pod.running else None
        for container in placed.containers if placed is not None else ():
            if container.role is Role.INIT:
                continue
            wanted = Counter[str]()
            for piece in container.slices:
                wanted[piece.card] += piece.memory * _MIB
            found = granted.get((pod.spec.node_name, pod.uid, container.container), [])
            if dict(wanted) not in [dict(token.cards) for token in found]:
                said = [dict(t.cards) for t in found] or "no directory"
                yield f"tokens: {pod.name} ({container.container}) was placed {dict(wanted)}; granted: {said}"


def unowned(seen: Snapshot) -> set[tuple[str, str]]:
    """The directories, by node and name, whose pod is no more: the agent sweeps them away after some minutes."""
    alive = {p.uid for p in seen.pods if not p.finished}
    return {(t.node, t.name) for t in seen.tokens if t.uid not in alive}


def leaked(since: Mapping[tuple[str, str], float], now: float, seconds: float) -> Iterator[str]:
    """The directories that nobody has owned for longer than an agent may need."""
    for (node, name), first in since.items():
        if now - first > seconds:
            yield f"leaked: directory {name} on {node} has had no owner for {now - first:.0f} s"


def killed(lives: Mapping[str, tuple[str, Life]], seen: Snapshot, deleted: Collection[str]) -> Iterator[str]:
    """``lives``: uid -> name and life of each pod that was seen to run. All run on, but those that were deleted."""
    there = {p.uid: p for p in seen.pods}
    for uid, (name, life) in lives.items():
        if name in deleted:
            continue
        pod = there.get(uid)
        if pod is None:
            yield f"killed: {name} ran and is no more; nobody deleted it"
        elif pod.finished:
            yield f"killed: {name} ran and is {pod.status.phase}: {pod.status.reason} {pod.status.message}"
        elif pod.life != life:
            yield f"killed: {name} had the containers {life}, it has {pod.life}"
