"""Random numbers as Go programs draw them (``math/rand`` with a seed), so that their runs can be repeated.

The generator is Mitchell and Reeds': x[n] = x[n-607] + x[n-273] modulo 2^64, started from words that a small
multiplicative generator derives from the seed, each mixed with one of 607 fixed words. The fixed words are the state of
the same generator, started from 1, after 7.8e12 steps (Go's ``math/rand/gen_cooked.go``). They are computed here
instead of listed: the recurrence is linear, so that many steps are one polynomial, z^7.8e12 modulo z^607 - z^334 - 1,
which takes 43 squarings and a few hundredths of a second.
"""

from collections.abc import Iterator
from functools import cache
from itertools import islice
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]
_T = TypeVar("_T")

_LENGTH = 607
_TAP = 273
_STEPS = 7_800_000_000_000
_PRIME = 2**31 - 1
_FACTOR = 48_271
_NO_SEED = 89_482_311  # instead of 0, at which the small generator would stay
_WORD = 2**64 - 1


class GoRandom:
    """``rand.New(rand.NewSource(seed))``, in pure Python and therefore slow."""

    def __init__(self, seed: int) -> None:
        fixed = _fixed_words()
        self._words = [word ^ int(fixed[i]) for i, word in enumerate(_started(seed, 20))]
        self._tap, self._feed = 0, _LENGTH - _TAP

    def skip(self, count: int) -> None:
        """Skip the draws of other code: ``Int63`` and ``Float64`` take one each."""
        for _ in range(count):
            self._next()

    def randrange(self, stop: int) -> int:
        """``Intn``, for a ``stop`` that fits into 31 bits."""
        if stop & (stop - 1) == 0:
            return (self._next() >> 32 & 0x7FFFFFFF) & (stop - 1)
        most = 2**31 - 1 - 2**31 % stop
        while (drawn := self._next() >> 32 & 0x7FFFFFFF) > most:
            pass
        return drawn % stop

    def shuffle(self, items: list[_T]) -> None:
        """``Shuffle``: Fisher and Yates from the end."""
        for i in range(len(items) - 1, 0, -1):
            j = self._scaled(i + 1)
            items[i], items[j] = items[j], items[i]

    def permutation(self, count: int) -> list[int]:
        """``Perm``."""
        order: list[int] = []
        for i in range(count):
            j = self.randrange(i + 1)
            order.append(order[j] if j < i else i)
            order[j] = i
        return order

    def _scaled(self, stop: int) -> int:
        """Below ``stop`` by multiplication (Lemire 2019: "Fast random integer generation in an interval")."""
        unfair = 2**32 % stop
        while (product := (self._next() >> 31 & 0xFFFFFFFF) * stop) & 0xFFFFFFFF < unfair:
            pass
        return product >> 32

    def _next(self) -> int:
        self._tap = (self._tap - 1) % _LENGTH
        self._feed = (self._feed - 1) % _LENGTH
        word = (self._words[self._feed] + self._words[self._tap]) & _WORD
        self._words[self._feed] = word
        return word


def _started(seed: int, shift: int) -> Iterator[int]:
    """607 words, each of three numbers of the small generator, ``shift`` bits apart; its first 20 numbers are
    skipped."""
    small = islice(_small(seed % _PRIME or _NO_SEED), 20, None)
    for _ in range(_LENGTH):
        yield next(small) << 2 * shift ^ next(small) << shift ^ next(small)


def _small(x: int) -> Iterator[int]:
    while True:
        x = x * _FACTOR % _PRIME
        yield x


@cache
def _fixed_words() -> Words:
    """The fixed words in the generator's order: place p holds the word of a step n = 334 - p mod 607. [607]"""
    place = (_LENGTH - _TAP - np.arange(1 - _LENGTH, 1)) % _LENGTH  # of x[-606..0]
    words = np.array(list(_started(1, 10)), np.uint64)[place]
    far = _advanced(words, _STEPS)
    fixed = np.zeros(_LENGTH, np.uint64)
    fixed[(place - _STEPS) % _LENGTH] = far
    return fixed


def _advanced(words: Words, steps: int) -> Words:
    """x[n..n+606] of x[0..606]: with z^n = sum of c[i] z^i, x[n+k] is the sum of c[i] x[i+k]."""
    power = _power(steps)
    known = np.concatenate([words, np.zeros(_LENGTH - 1, np.uint64)])
    for n in range(_LENGTH, len(known)):
        known[n] = known[n - _LENGTH] + known[n - _TAP]
    return np.correlate(known, power, "valid")


def _power(steps: int) -> Words:
    """z^steps modulo the generator's polynomial, coefficients modulo 2^64, by squaring."""
    power = np.zeros(_LENGTH, np.uint64)
    power[0] = 1
    for bit in bin(steps)[2:]:
        power = _reduced(np.convolve(power, power))
        if bit == "1":
            power = _reduced(np.concatenate([np.zeros(1, np.uint64), power]))
    return power


def _reduced(product: Words) -> Words:
    """Reduce by z^i = z^(i-273) + z^(i-607), the highest powers first, at most as many at a time as do not overlap."""
    top = len(product)
    while top > _LENGTH:
        low = max(_LENGTH, top - _TAP)
        excess = product[low:top].copy()
        product[low - _TAP : top - _TAP] += excess
        product[low - _LENGTH : top - _LENGTH] += excess
        top = low
    return product[:_LENGTH]
