"""Group nodes that no pod can tell apart into kinds, the "models" of the policies' view.

A policy knows only one condition: the names of accepted models. Here a name stands for all nodes that have equal cards
and that every pod's conditions (models, classes, labels, taints) treat alike. So scarcity and fragments take all
conditions into account. If pods have more different conditions than ``MOST`` kinds can distinguish, the least common
ones are left to the exact records, which know them all.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np

from fractile.policy.nodes.view import Flags, Ints
from fractile.policy.nodes.where import Where
from fractile.sim.snapshot.cluster_snapshot import Demand, DemandPart, Machine

MOST = 64

_Conditions = tuple[object, ...]


class Kinds:
    """``of_row``: the kind of each node [N]; ``names``: the names of the kinds. Masks are computed once."""

    def __init__(self, machines: Sequence[Machine], demands: Iterable[Demand]) -> None:
        self._machines = tuple(machines)
        self._width = max([1, *(len(m.cards) for m in machines)])
        self._barred: dict[Where, tuple[Flags, Flags]] = {}
        self._admitted: dict[_Conditions, Flags] = {}
        self.of_row: Ints = self._told_apart(demands)
        self.names = tuple(str(k) for k in range(int(self.of_row.max(initial=-1)) + 1))
        self._first = [int(np.argmax(self.of_row == k)) for k in range(len(self.names))]

    def barred(self, where: Where) -> tuple[Flags, Flags]:
        """Masks of nodes whose taints, and of nodes whose labels, keep the pod away. [N] each"""
        known = self._barred.get(where)
        if known is None:
            found = [(m.untolerated_by(where) is not None, not where.admits(m.name, m.labels)) for m in self._machines]
            table = np.array(found, np.bool_).reshape(len(found), 2)
            known = self._barred[where] = table[:, 0].copy(), table[:, 1].copy()
        return known

    def admitted(self, part: DemandPart) -> Flags:
        """Mask of cards that the part's conditions admit; positions without a card may be either. [N, D]"""
        key = part.selectors, part.models
        known = self._admitted.get(key)
        if known is None:
            known = self._admitted[key] = self._admit(part)
        return known

    def accept(self, demand: Demand) -> tuple[Flags, bool]:
        """The kinds whose nodes all meet the demand's conditions [K], and whether no node of other kinds meets them."""
        ok = self._open(demand)
        among = np.bincount(self.of_row, weights=ok, minlength=len(self.names))
        sizes = np.bincount(self.of_row, minlength=len(self.names))
        return among == sizes, bool(((among == sizes) | (among == 0)).all())

    def card_memory(self) -> Ints:
        """Memory of the cards of each kind; 0 where there are none or it is unknown. [K]"""
        return np.array([m.cards[0].memory if m.cards else 0 for m in map(self._machines.__getitem__, self._first)])

    def _open(self, demand: Demand) -> Flags:
        taint, label = self.barred(demand.where)
        ok = ~(taint | label)
        return ok if demand.part is None else ok & self.admitted(demand.part).all(axis=1)

    def _admit(self, part: DemandPart) -> Flags:
        if not part.constrained:
            return np.ones((len(self._machines), self._width), np.bool_)
        found = np.ones((len(self._machines), self._width), np.bool_)
        by_model: dict[str, bool] = {}
        plain = not any(s.cards or s.not_cards or s.members is not None for s in part.selectors)
        for row, machine in enumerate(self._machines):
            for device, card in enumerate(machine.cards):
                ok = by_model.get(card.model) if plain else None
                if ok is None:
                    ok = by_model[card.model] = part.admits(card)
                found[row, device] = ok
        return found

    def _told_apart(self, demands: Iterable[Demand]) -> Ints:
        cards: dict[tuple[object, ...], int] = {}
        of_row = np.array([cards.setdefault(_cards(m), len(cards)) for m in self._machines], np.int64)
        conditions = Counter(_conditions(d) for d in demands)
        for demand, _ in conditions.most_common():
            refined = np.unique(2 * of_row + self._open(demand), return_inverse=True)[1].astype(np.int64)
            if int(refined.max(initial=0)) < MOST:
                of_row = refined
        return of_row


def _cards(machine: Machine) -> tuple[object, ...]:
    return tuple(sorted({(c.model, c.memory) for c in machine.cards}))


def _conditions(demand: Demand) -> Demand:
    part = demand.part
    if part is None:
        return Demand(0, 0, None, demand.where)
    return Demand(0, 0, DemandPart(1, selectors=part.selectors, models=part.models), demand.where)
