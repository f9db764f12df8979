"""How much a GPU model is needed by pods that can use no other: its share of that demand over its share of supply."""

import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import Ints, View

UNIT = 1_000_000


def scarcity(mix: Mix, view: View) -> Ints:
    """The scarcity of each model of the view, in millionths: 1,000,000 where constrained requests alone need all of it.

    A request that accepts several models counts for each in proportion to its supply. [models]
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
    """The number of GPUs of each model."""
    return [int(n) for n in np.bincount(view.model, weights=view.gpus, minlength=len(view.models))]
