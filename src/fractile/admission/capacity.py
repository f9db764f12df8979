"""What the cluster says to a request: which cards its classes stand for, and whether any node could serve it if it were
empty. Reads the ledger, changes nothing.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from fractile.ledger import scan
from fractile.ledger.arrays import Bools, CardArrays, CardLayer
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.policy.cards import others, reasons
from fractile.policy.cards.effort import Effort


class ClusterFit(Protocol):
    """``never``: one sentence with the numbers of the node that comes closest; "" when a node would do, or when that
    cannot be said."""

    def resolve(self, request: PodRequest) -> PodRequest | Refusal: ...

    def never(self, request: PodRequest) -> str: ...


class ClusterCapacity:
    """The cluster as the ledger knows it. ``resolve`` fills in what classes stand for."""

    def __init__(self, ledger: Ledger, resolve: Callable[[PodRequest], PodRequest | Refusal]) -> None:
        self._ledger = ledger
        self._resolve = resolve

    def resolve(self, request: PodRequest) -> PodRequest | Refusal:
        return self._resolve(request)

    def never(self, request: PodRequest) -> str:
        parts = self._parts(request)
        arrays, _ = parts[0]
        meets = self._ever(*parts[0])
        for other, part in parts[1:]:
            meets = meets & scan.carried(self._ever(other, part), other, arrays)
        if meets.any() or not any(a.cards.any() for a, _ in parts):
            return ""
        effort = Effort(dead_ends=self._ledger.dead_ends)
        node, reason = min((self._why(request, arrays.names[c], effort) for c in _closest(parts)), key=_usefulness)
        return f"no node can serve this pod, however empty: {reason.message} (node {node})"

    def _parts(self, request: PodRequest) -> list[tuple[CardArrays, PodRequest]]:
        """What is asked of GPUs and what of other devices, each with where it must be found."""
        if not others.mixed(request):
            return [(self._ledger.arrays, request)]
        gpus, devices = others.of_gpus(request), others.of_others(request)
        return [*([(self._ledger.arrays, gpus)] if gpus.containers else []), (self._ledger.others, devices)]

    def _ever(self, arrays: CardArrays, part: PodRequest) -> Bools:
        return scan.ever(arrays, scan.need_of(part))

    def _why(self, request: PodRequest, node: str | None, effort: Effort) -> tuple[str, Refusal]:
        state = self._ledger.node(node or "")
        return node or "", reasons.no_cards() if state is None else reasons.explain(request, state, effort)


def _closest(parts: Sequence[tuple[CardArrays, PodRequest]]) -> list[int]:
    """Columns of nodes that may come close: with the largest card, and with the most devices of each class."""
    arrays, part = parts[0]
    layers = [m for c in part.containers if isinstance(m := c.request.selector.members, CardLayer)]
    return [int(arrays.largest.argmax()), *(int(layer.mask.sum(axis=0).argmax()) for layer in layers)]


def _usefulness(found: tuple[str, Refusal]) -> bool:
    """Numbers say more than that a node has no such card at all."""
    return found[1].code is not Code.TOO_LARGE
