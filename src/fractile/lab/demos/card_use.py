"""What is free on a local cluster's cards, and which pods hold the rest: from the cards' objects, through kubectl.

The agents write the holders of a card into its object, a few seconds late at most.
"""

from collections.abc import Iterator

import msgspec

from fractile.lab.demos.workload import Kubectl
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.quantity import parse

_MIB = 2**20


class _List(msgspec.Struct, frozen=True):
    items: list[ExtendedResource]


def free(kubectl: Kubectl, node: str) -> list[int]:
    """The free MiB of each card of the node, by index."""
    return [_mib(c.spec.memory) - _mib(c.status.used.memory if c.status.used else "") for c in _cards(kubectl, node)]


def others(kubectl: Kubectl, namespace: str) -> Iterator[str]:
    """The pods of other namespaces that hold parts of cards, in words."""
    for card in _cards(kubectl):
        for held in card.status.bound_to or ():
            if held.namespace != namespace:
                where = f"card {card.spec.index} of {card.spec.node_name}"
                yield f"{held.namespace}/{held.pod} ({_mib(held.memory)} MiB of {where})"


def _cards(kubectl: Kubectl, node: str = "") -> list[ExtendedResource]:
    found = msgspec.json.decode(kubectl("get", "extendedresources", "-o", "json"), type=_List).items
    mine = [card for card in found if not node or card.spec.node_name == node]
    return sorted(mine, key=lambda card: (card.spec.node_name, card.spec.index))


def _mib(quantity: str) -> int:
    return int(parse(quantity)) // _MIB if quantity else 0
