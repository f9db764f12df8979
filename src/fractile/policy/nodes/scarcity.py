"""How much a GPU model is wanted by those who can use no other: its share of such demand by its share of supply."""

import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import Ints, View

UNIT = 1_000_000


def scarcity(mix: Mix, view: View) -> Ints:
    """Per model of the view, in millionths: 1,000,000 where constrained requests alone ask for the model's whole share.

    A request that takes several models asks for each by its supply. [models]
    """
    supply = supply_of(view)
    everything = sum(a.total * c for a, c in zip(mix.asks, mix.counts, strict=True))
    wanted = [0] * len(supply)  # in millionths of thousandths
    for ask, count in zip(mix.asks, mix.counts, strict=True):
        named = [i for i, name in enumerate(view.models) if name in ask.models]
        among = sum(supply[i] for i in named)
        for i in named if ask.gpus and among else ():
            wanted[i] += ask.total * count * UNIT * supply[i] // among
    total = sum(supply)
    rates = [w * total // (everything * s) if s and everything else 0 for w, s in zip(wanted, supply, strict=True)]
    return np.array(rates, np.int64)


def supply_of(view: View) -> list[int]:
    """How many GPUs of each model there are."""
    return [int(n) for n in np.bincount(view.model, weights=view.gpus, minlength=len(view.models))]
