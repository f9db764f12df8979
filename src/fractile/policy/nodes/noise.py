"""Random numbers that depend only on their arguments: a 64-bit mixing function instead of a generator with state."""

import numpy as np

from fractile.policy.nodes.view import Ints


def noise(draw: int, who: Ints) -> Ints:
    """A number from 0 to 2^62 - 1 for each of ``who``, different for every ``draw``: the finish of splitmix64 (Steele,
    Lea, Flood 2014: "Fast splittable pseudorandom number generators"), applied twice."""
    start = _mixed(np.full(1, draw % 2**64, np.uint64))
    return (_mixed(who.astype(np.uint64) + start) >> np.uint64(2)).astype(np.int64)


def _mixed(x: "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]") -> "np.ndarray[tuple[int, ...], np.dtype[np.uint64]]":
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
