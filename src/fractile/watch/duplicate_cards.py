"""Cards of one node that claim the same index: at most one of their objects belongs to a card that the node has.

An agent publishes one object per card and deletes all others that have its node's label. An object without that label,
created by hand or with the node's credential, stays and counts as room that does not exist. Pure.
"""

from collections.abc import Iterable, Iterator

from fractile.model.card import GPU, Card
from fractile.model.units import NodeName
from fractile.wire.fractile import extended_resource
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.output import inspect

_NAMED = 8  # cards in a sentence


def same_index(
    cards: Iterable[tuple[NodeName, Card]], resources: Iterable[ExtendedResource]
) -> Iterator[inspect.Problem]:
    """One problem per index. Unhealthy cards, such as replaced ones, are reported as problems already."""
    places: dict[tuple[NodeName, int], list[str]] = {}
    for node, card in cards:
        if card.type == GPU and card.healthy:
            places.setdefault((node, card.index), []).append(card.uuid)
    found = {uuid for uuids in places.values() if len(uuids) > 1 for uuid in uuids}
    if not found:
        return
    objects = {r.spec.device_id: r.metadata for r in resources if r.spec.device_id in found}
    for (node, index), uuids in places.items():
        if len(uuids) < 2:
            continue
        newest = objects[max(uuids, key=lambda uuid: (objects[uuid].creation_timestamp or "", uuid))]
        yield inspect.Problem(
            kind=extended_resource.KIND,
            namespace="",
            name=newest.name,
            uid=newest.uid,
            node=node,
            reason=f"{node} reports {len(uuids)} cards with index {index} ({_listed(uuids)}); nvidia-smi -L on the "
            "node shows which one it has; delete the object of each other one: kubectl delete extendedresource NAME, "
            "where NAME is the UUID in lower case",
        )


def _listed(uuids: list[str]) -> str:
    more = len(uuids) - _NAMED
    return ", ".join(uuids[:_NAMED]) + (f" and {more} more" if more > 0 else "")
