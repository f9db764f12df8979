"""What the cluster says to a request: which cards its classes stand for, and whether any node could serve it if it were
empty. Reads the ledger, changes nothing.
"""

from collections.abc import Callable
from typing import Protocol

from fractile.ledger import scan
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Refusal
from fractile.model.request import PodRequest
from fractile.policy import reasons


class Cluster(Protocol):
    """``never``: one sentence with the numbers of the node that comes closest; "" when a node would do, or when that
    cannot be said."""

    def resolve(self, request: PodRequest) -> PodRequest | Refusal: ...

    def never(self, request: PodRequest) -> str: ...


class Capacity:
    """The cluster as the ledger knows it. ``resolve`` fills in what classes stand for."""

    def __init__(self, ledger: Ledger, resolve: Callable[[PodRequest], PodRequest | Refusal]) -> None:
        self._ledger = ledger
        self._resolve = resolve

    def resolve(self, request: PodRequest) -> PodRequest | Refusal:
        return self._resolve(request)

    def never(self, request: PodRequest) -> str:
        arrays = self._ledger.arrays
        if not arrays.cards.any() or scan.ever(arrays, scan.need_of(request)).any():
            return ""
        column = int(arrays.largest.argmax())
        reason = reasons.explain(request, self._ledger.node_at(column)).message
        return f"no node can serve this pod, however empty: {reason} (node {arrays.names[column]})"
