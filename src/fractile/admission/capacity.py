"""Check a request against the cluster: which cards its classes stand for, and whether any node could serve it if it
were empty. Reads the ledger, changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fractile.ledger import scan
from fractile.ledger.arrays import Bools, CardArrays, CardLayer
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.policy.cards import kinds, reasons
from fractile.policy.cards.effort import Effort


class ClusterFit(Protocol):
    """``never``: why no node could ever serve the request, with the closest node's numbers; "" if one could or
    unknown."""

    def resolve(self, request: PodRequest) -> PodRequest | Refusal: ...

    def never(self, request: PodRequest) -> str: ...


class ClusterCapacity:
    """The cluster according to the ledger. ``resolve`` replaces classes by what they stand for."""

    def __init__(self, ledger: Ledger, resolve: Callable[[PodRequest], PodRequest | Refusal]) -> None:
        self._ledger = ledger
        self._resolve = resolve

    def resolve(self, request: PodRequest) -> PodRequest | Refusal:
        return self._resolve(request)

    def never(self, request: PodRequest) -> str:
        parts = [(self._ledger.arrays_of(kind), part) for kind, part in kinds.parts(request)]
        arrays, _ = parts[0]
        meets = self._ever(*parts[0])
        for other, part in parts[1:]:
            meets = meets & scan.carried(self._ever(other, part), other, arrays)
        if meets.any() or not any(a.cards.any() for a, _ in parts):
            return ""
        effort = Effort(dead_ends=self._ledger.dead_ends)
        node, reason = min((self._why(request, arrays.names[c], effort) for c in _closest(parts)), key=_usefulness)
        return f"no node can serve this pod, even if it were empty: {reason.message} (node {node})"

    def _ever(self, arrays: CardArrays, part: PodRequest) -> Bools:
        return scan.ever(arrays, scan.need_of(part))

    def _why(self, request: PodRequest, node: str | None, effort: Effort) -> tuple[str, Refusal]:
        state = self._ledger.node(node or "")
        return node or "", reasons.no_cards() if state is None else reasons.explain(request, state, effort)


def _closest(parts: Sequence[tuple[CardArrays, PodRequest]]) -> list[int]:
    """Columns of nodes that may be closest: the one with the largest card, and the one with most devices of each
    class."""
    arrays, part = parts[0]
    layers = [m for c in part.containers if isinstance(m := c.request.selector.members, CardLayer)]
    return [int(arrays.largest.argmax()), *(int(layer.mask.sum(axis=0).argmax()) for layer in layers)]


def _usefulness(found: tuple[str, Refusal]) -> bool:
    """Sort key: refusals with numbers come before those that only say that the node has no such card."""
    return found[1].code is not Code.TOO_LARGE
