"""What a piece of a GPU is worth to those who share GPUs: prices from the cutting-stock problem.

How many GPUs are needed at least to cut the sharing pods of the mix from them is a linear program over ways to cut
one GPU. Its dual gives each size a price, and no cut of a whole GPU is worth more than 1. What is left on a device is
worth the best cut of it, so a pod that leaves 190 behind destroys what 190 are worth. Column generation as by Gilmore
and Gomory (1961), in fractions: no rounding, so that every machine finds the same prices.
"""

import math
from fractions import Fraction

import msgspec
import numpy as np

from fractile.policy.nodes.mix import Mix
from fractile.policy.nodes.view import WHOLE_GPU, Ints

UNIT = 1_000_000  # prices are millionths of a GPU
_SIZES = 64  # at most; the rarest are left out, the program grows with their square
_ROUNDS = 2000  # of the simplex method; about 50 are needed for the published traces

Pattern = tuple[int, ...]  # how many pods of each size are cut from one GPU


class Prices(msgspec.Struct, frozen=True):
    """``value[x]``: what x thousandths of one device are worth, [1001]. ``gpus``: the least number of GPUs that hold
    the mix' sharing pods, in millionths; ``demand``: what they ask for, in thousandths."""

    value: Ints
    gpus: int
    demand: int


def prices_of(mix: Mix) -> Prices:
    """Sizes and how often they occur are taken from the mix."""
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
    # 1. Begin with one way to cut for each size: as many of it as go into a GPU.
    inverse = [[Fraction(int(i == j), WHOLE_GPU // sizes[i]) for j in range(n)] for i in range(n)]
    amounts = [Fraction(c, WHOLE_GPU // s) for s, c in zip(sizes, counts, strict=True)]
    for _ in range(_ROUNDS):
        # 2. Prices that make every way in the basis worth one GPU.
        duals = [sum((inverse[i][j] for i in range(n)), Fraction(0)) for j in range(n)]
        # 3. The most valuable cut at these prices; if it is worth no more than a GPU, they are the answer.
        priced, one = _integers(duals)
        pattern = _best_cut(sizes, priced)
        if sum(k * p for k, p in zip(pattern, priced, strict=True)) <= one:
            break
        # 4. It takes the place of the way that is used up first.
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
    """The first size that a best cut of so much contains."""
    fitting = (i for i, s in enumerate(sizes) if s <= left and priced[i] > 0)
    return next((i for i in fitting if worth[left] == priced[i] + worth[left - sizes[i]]), None)


def _worth(sizes: list[int], priced: list[int]) -> list[int]:
    """The value of the best cut of 0..1000 thousandths."""
    wanted = [(s, p) for s, p in zip(sizes, priced, strict=True) if p > 0]
    worth = [0] * (WHOLE_GPU + 1)
    for x in range(1, WHOLE_GPU + 1):
        worth[x] = max((p + worth[x - s] for s, p in wanted if s <= x), default=0)
    return worth
