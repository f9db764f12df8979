"""Which nodes and cards the quota leaves to a pod, as masks over the arrays of GPUs.

The labels of a column's node, and whether its cards are all of one model, change only when cards come or go or labels
change. They are then recomputed at the next use, which takes a millisecond at 5,000 nodes.
"""

from collections.abc import Iterable

import msgspec
import numpy as np

from fractile.ledger import scan
from fractile.ledger.arrays import Bools, CardArrays, CardLayer, Ints
from fractile.ledger.usage import LedgerUsage
from fractile.model.card import DeviceKind
from fractile.model.quota import NOWHERE, NodePlace
from fractile.model.request import ContainerRequest, Members, PodRequest
from fractile.policy.cards import kinds
from fractile.policy.quota import Allowance, Model

_MIXED = -1
_KEPT = 64  # layers; 64 KB each at 8,192 columns


class CapacityBounds:
    _places: list[NodePlace]
    _place: Ints  # of each column, its index into ``_places``
    _only: Ints  # of each column, the model of all its cards, or _MIXED

    def __init__(self, arrays: CardArrays, usage: LedgerUsage) -> None:
        self._arrays = arrays
        self._usage = usage
        self._seen: tuple[int, int] | None = None  # the version of the usage, and the number of columns
        self._pools: dict[frozenset[str], Bools] = {}  # columns in one of the pools; one entry per set in a quota
        self._layers: dict[tuple[frozenset[Model], frozenset[Model]], CardLayer] = {}  # by ``closed`` and ``alone``
        self._renew()

    def nodes(self, left: Allowance) -> Bools | None:
        """Columns of nodes in the pools that the pod may use; None when it may use all."""
        pools = left.pools
        if pools is None:
            return None
        self._renew()
        if pools not in self._pools:
            admitted = np.fromiter((p.pool in pools for p in self._places), np.bool_)
            self._pools[pools] = admitted[self._place]
        return self._pools[pools]

    def narrowed(self, request: PodRequest, left: Allowance) -> PodRequest:
        """The request restricted to the cards that the quota leaves to it."""
        if not left.closed and not left.alone:
            return request
        opened = self._opened(left)
        known = {id(None): opened}

        def narrow(asked: ContainerRequest) -> ContainerRequest:
            if asked.request.kind is not DeviceKind.GPU:
                return asked
            selector = asked.request.selector
            if id(selector.members) not in known:
                known[id(selector.members)] = self._both(opened, selector.members)
            selector = msgspec.structs.replace(selector, members=known[id(selector.members)])
            return msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, selector=selector))

        return msgspec.structs.replace(request, containers=tuple(map(narrow, request.containers)))

    def somewhere(self, request: PodRequest, left: Allowance | None) -> bool:
        """Whether some node seems to have room within the quota; only a check of the node itself is certain."""
        gpus = dict(kinds.parts(self.narrowed(request, left) if left else request)).get(DeviceKind.GPU)
        if gpus is None:
            return True
        meets = scan.now(self._arrays, scan.need_of(gpus))
        nodes = self.nodes(left) if left else None
        return bool((meets if nodes is None else meets & nodes).any())

    def alike(self, columns: Ints) -> list[object]:
        """For each column, what quotas can distinguish nodes by: labels, and the models of the cards."""
        self._renew()
        pairs = zip(columns.tolist(), self._place[columns].tolist(), self._only[columns].tolist(), strict=True)
        return [(place, only if only != _MIXED else self._models(column)) for column, place, only in pairs]

    def _models(self, column: int) -> tuple[int, ...]:
        there = self._arrays.memory[:, column] > 0
        return tuple(dict.fromkeys(self._arrays.model[there, column].tolist()))

    def _opened(self, left: Allowance) -> CardLayer:
        """All cards except those of closed models and those on nodes that cannot give enough."""
        self._renew()
        key = frozenset(left.closed), left.alone
        if key not in self._layers:
            if len(self._layers) >= _KEPT:
                self._layers.clear()
            self._layers[key] = CardLayer(self._arrays)
            self._layers[key].mask = self._mask(left)
        return self._layers[key]

    def _mask(self, left: Allowance) -> Bools:
        width = max(len(self._arrays.models), 1)
        closed = self._table(left.closed)
        mask: Bools = ~closed[(self._place * width) + self._arrays.model]
        if left.alone:
            short = self._table(left.alone)
            # A node with several models has -1 there, which is a valid index, so its value must be masked out.
            mask &= ~((self._only != _MIXED) & short[(self._place * width) + self._only])
        return mask

    def _table(self, models: Iterable[Model]) -> Bools:
        """Flat, place by place: whether cards of a model in a place are among ``models``."""
        wanted = set(models)
        names = self._arrays.models or [""]
        pairs = ((place.model, model) in wanted for place in self._places for model in names)
        return np.fromiter(pairs, np.bool_)

    def _both(self, opened: CardLayer, members: Members | None) -> CardLayer:
        layer = CardLayer(self._arrays)
        if isinstance(members, CardLayer):
            layer.mask = opened.mask & members.mask
        elif members is not None:
            layer.mask = opened.mask.copy()
            for uuid, cell in self._arrays.cells.items():
                layer.mask[cell] &= uuid in members
        return layer

    def _renew(self) -> None:
        seen = self._usage.version, len(self._arrays.names)
        if self._seen == seen:
            return
        self._seen = seen
        self._pools.clear()
        self._layers.clear()
        places: dict[NodePlace, int] = {}
        names = self._arrays.names
        found = (NOWHERE if name is None else self._usage.place(name) for name in names)
        self._place = np.fromiter((places.setdefault(p, len(places)) for p in found), np.int64)
        self._places = list(places)
        self._only = _only(self._arrays)


def _only(arrays: CardArrays) -> Ints:
    there = arrays.memory > 0
    most = np.where(there, arrays.model, -1).max(axis=0)
    least = np.where(there, arrays.model, len(arrays.models)).min(axis=0)
    return np.where(most == least, most, _MIXED)
