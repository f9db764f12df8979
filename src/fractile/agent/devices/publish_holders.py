"""Which pods hold which device of the node, for the status of its object, by their placements.

The amounts are those that the ledger charges (init containers run one after another), so that both count alike.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping

import msgspec

from fractile.agent.limits.slices import Granted
from fractile.agent.node.pods import NodePods, placement_of
from fractile.errors import WireError
from fractile.model.card import GPU, Card
from fractile.model.placement import Placement, charges
from fractile.model.units import WHOLE, CardUUID
from fractile.wire.fractile.extended_resource import AVAILABLE, BOUND, PARTLY_BOUND, BoundTo, Used

MOST = 64  # containers that a status names; ``used`` counts all of them

_MIB = 2**20

Owner = tuple[str, str, Placement]  # namespace and name of a pod, and what it was given


class DeviceHold(msgspec.Struct, frozen=True):
    """What is held of one device. ``slices`` are containers, of a non-GPU device its shares. ``departed``: the
    part of it that is held by processes of pods which are gone."""

    memory: int = 0  # MiB
    cores: int = 0
    slices: int = 0
    by: tuple[BoundTo, ...] = ()
    departed: Used | None = None

    def phase(self, card: Card) -> str:
        """The phase of a healthy device: whether anything is left of it."""
        if not self.slices:
            return AVAILABLE
        if card.type != GPU:
            return BOUND if self.slices >= card.shares else PARTLY_BOUND
        return BOUND if self.memory >= card.memory or self.cores >= WHOLE else PARTLY_BOUND

    def used(self, card: Card) -> Used:
        gpu = card.type == GPU
        return Used(memory=f"{self.memory}Mi" if gpu else "", cores=self.cores, slices=self.slices)


NOBODY = DeviceHold()


def holders(owners: Iterable[Owner]) -> dict[CardUUID, DeviceHold]:
    """Holders by device; independent of the order of the pods."""
    found: dict[CardUUID, DeviceHold] = {}
    for namespace, pod, placement in sorted(owners, key=lambda o: o[:2]):
        named = _named(namespace, pod, placement)
        for charge in charges(placement):
            before = found.get(charge.card, NOBODY)
            found[charge.card] = DeviceHold(
                before.memory + charge.memory,
                before.cores + charge.cores,
                before.slices + (charge.shares or charge.slices),
                (*before.by, *named.get(charge.card, ()))[:MOST],
            )
    return found


def with_departed(found: Mapping[CardUUID, DeviceHold], gone: Iterable[Granted]) -> dict[CardUUID, DeviceHold]:
    """The same, plus what containers hold whose pods are gone."""
    added = dict(found)
    for one in gone:
        for card in one.limits.cards:
            before, memory = added.get(card.uuid, NOBODY), -(-card.memory // _MIB)
            mine = before.departed or Used(memory="0Mi")
            named = BoundTo(
                namespace=one.limits.namespace,
                pod=one.limits.pod,
                container=one.limits.container,
                memory=f"{memory}Mi" if memory else "",
                cores=card.cores,
            )
            added[card.uuid] = DeviceHold(
                before.memory + memory,
                before.cores + card.cores,
                before.slices + 1,
                (*before.by, named)[:MOST],
                Used(
                    memory=f"{int(mine.memory.removesuffix('Mi')) + memory}Mi",
                    cores=mine.cores + card.cores,
                    slices=mine.slices + 1,
                ),
            )
    return added


class NodeHolders:
    """The holders by the view of the node's pods; None while it is not complete. Recomputed when the view changes.
    ``departed``: grants that count although their pods are gone."""

    def __init__(self, pods: NodePods, departed: Callable[[], tuple[Granted, ...]] = tuple) -> None:
        self._pods = pods
        self._departed = departed
        self._known: tuple[tuple[int, tuple[Granted, ...]], Mapping[CardUUID, DeviceHold]] | None = None

    def __call__(self) -> Mapping[CardUUID, DeviceHold] | None:
        if not self._pods.complete:
            return None
        seen = self._pods.version, self._departed()
        if self._known is None or self._known[0] != seen:
            self._known = seen, with_departed(holders(_owners(self._pods)), seen[1])
        return self._known[1]


def _owners(pods: NodePods) -> Iterator[Owner]:
    for seen in pods:
        if seen.pod.finished:
            continue
        try:
            placement = placement_of(seen.pod)
        except WireError:
            continue  # the control plane reports it
        if placement is not None and placement.node == pods.node:
            yield seen.pod.metadata.namespace, seen.pod.metadata.name, placement


def _named(namespace: str, pod: str, placement: Placement) -> dict[CardUUID, list[BoundTo]]:
    found: dict[CardUUID, list[BoundTo]] = {}
    for container in placement.containers:
        for card in dict.fromkeys(s.card for s in container.slices):
            memory = sum(s.memory for s in container.slices if s.card == card)
            cores = sum(s.cores for s in container.slices if s.card == card)
            text = f"{memory}Mi" if memory else ""
            named = BoundTo(
                namespace=namespace, pod=pod, container=container.container, memory=text, cores=min(cores, WHOLE)
            )
            found.setdefault(card, []).append(named)
    return found
