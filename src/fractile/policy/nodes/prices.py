"""What a piece of a GPU is worth to pods that share GPUs: prices from the cutting-stock problem.

The least number of GPUs from which the sharing pods of the mix can be cut is a linear program over ways to cut one GPU.
Its dual gives each size a price, and no cut of a whole GPU is worth more than 1. The remainder of a device is worth its
best cut, so a placement costs what the device loses in worth. Solved by column generation (Gilmore and Gomory, 1961) in
fractions: there is no rounding, so every machine finds the same prices.
"""

import math
from fractions import Fraction

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import WHOLE_GPU, Ints

UNIT = 1_000_000  # prices are millionths of a GPU
_SIZES = 64  # at most; the rarest are left out, since the program grows with their square
_ROUNDS = 2000  # of the simplex method; about 50 are needed for the published traces

Pattern = tuple[int, ...]  # how many pods of each size are cut from one GPU


class Prices(msgspec.Struct, frozen=True):
    """``value[x]``: the worth of x thousandths of one device, [1001]. ``gpus``: the least number of GPUs that hold the
    mix's sharing pods, in millionths; ``demand``: what these pods request, in thousandths."""

    value: Ints
    gpus: int
    demand: int


def prices_of(mix: Mix) -> Prices:
    """The prices for the sizes of a mix, weighted by how often they occur."""
    wanted: dict[int, int] = {}
    for ask, count in zip(mix.asks, mix.counts, strict=True):
        if ask.shares:
            wanted[ask.milli] = wanted.get(ask.milli, 0) + count
    demand = sum(size * count for size, count in wanted.items())
    if len(wanted) > _SIZES:
        wanted = dict(sorted(wanted.items(), key=lambda kv: (kv[0] * kv[1], kv[0]), reverse=True)[:_SIZES])
    sizes = sorted(wanted, reverse=True)
    if not sizes:
        return Prices(np.zeros(WHOLE_GPU + 1, np.int64), 0, 0)
    duals, gpus = _solve(sizes, [wanted[s] for s in sizes])
    priced, one = _integers(duals)
    value = [w * UNIT // one for w in _worth(sizes, priced)]
    return Prices(np.array(value, np.int64), int(gpus * UNIT), demand)


def _solve(sizes: list[int], counts: list[int]) -> tuple[list[Fraction], Fraction]:
    """Price of each size, and the least number of GPUs. Primal simplex on the dense inverse of the basis."""
    n = len(sizes)
    # 1. Start with one way to cut for each size: as many pieces of it as fit into a GPU.
    inverse = [[Fraction(int(i == j), WHOLE_GPU // sizes[i]) for j in range(n)] for i in range(n)]
    amounts = [Fraction(c, WHOLE_GPU // s) for s, c in zip(sizes, counts, strict=True)]
    for _ in range(_ROUNDS):
        # 2. Prices that make every way in the basis worth one GPU.
        duals = [sum((inverse[i][j] for i in range(n)), Fraction(0)) for j in range(n)]
        # 3. Find the most valuable cut at these prices; if it is worth no more than a GPU, the prices are optimal.
        priced, one = _integers(duals)
        pattern = _best_cut(sizes, priced)
        if sum(k * p for k, p in zip(pattern, priced, strict=True)) <= one:
            break
        # 4. It replaces the way that reaches zero first.
        _pivot(inverse, amounts, pattern)
    else:
        raise AssertionError("the cutting-stock program did not end")
    return duals, sum(amounts, Fraction(0))


def _pivot(inverse: list[list[Fraction]], amounts: list[Fraction], pattern: Pattern) -> None:
    used = [(j, k) for j, k in enumerate(pattern) if k]
    column = [sum((row[j] * k for j, k in used), Fraction(0)) for row in inverse]
    leaving = min((i for i, c in enumerate(column) if c > 0), key=lambda i: (amounts[i] / column[i], i))
    factor = column[leaving]
    inverse[leaving] = [v / factor for v in inverse[leaving]]
    amounts[leaving] /= factor
    for i, c in enumerate(column):
        if i != leaving and c:
            inverse[i] = [v - c * w for v, w in zip(inverse[i], inverse[leaving], strict=True)]
            amounts[i] -= c * amounts[leaving]


def _integers(duals: list[Fraction]) -> tuple[list[int], int]:
    """The prices over their common denominator, and that denominator: what a whole GPU is worth among them."""
    one = math.lcm(*(d.denominator for d in duals))
    return [int(d * one) for d in duals], one


def _best_cut(sizes: list[int], priced: list[int]) -> Pattern:
    worth = _worth(sizes, priced)
    left = WHOLE_GPU
    pattern = [0] * len(sizes)
    while (taken := _taken(sizes, priced, worth, left)) is not None:
        pattern[taken] += 1
        left -= sizes[taken]
    return tuple(pattern)


def _taken(sizes: list[int], priced: list[int], worth: list[int], left: int) -> int | None:
    """The first size in a best cut of ``left``."""
    fitting = (i for i, s in enumerate(sizes) if s <= left and priced[i] > 0)
    return next((i for i in fitting if worth[left] == priced[i] + worth[left - sizes[i]]), None)


def _worth(sizes: list[int], priced: list[int]) -> list[int]:
    """The value of the best cut of 0..1000 thousandths."""
    wanted = [(s, p) for s, p in zip(sizes, priced, strict=True) if p > 0]
    worth = [0] * (WHOLE_GPU + 1)
    for x in range(1, WHOLE_GPU + 1):
        worth[x] = max((p + worth[x - s] for s, p in wanted if s <= x), default=0)
    return worth
