"""Look up thousands of node names and encode their scores without a Python object for each.

Making 5,000 strings, looking each up and writing an object with its score costs more than three times as much as
decoding and encoding them. Here the bytes of the request are an array: quotes are found, each name is cut out as a row
of 64-bit words, the words are hashed, and a table maps the hash to a known name. Then all rows are compared with those
of the names found, so nothing relies on the hash. The answer is assembled from rows that are already encoded.

    ["n-1","n-22",...] ──> quotes ──> rows of words ──> hash ──> one of two tables ──> places, compared
    places, scores     ──> rows of ,{"Host":"n-1","Score":0} of one width each, digits added ──> bytes

Large arrays are kept between calls: returning their memory to the system and taking it again costs as much as all else.

Anything but a list of known names without spaces, as kube-scheduler writes it, is left to the decoder: unknown names,
escapes, names of more than 64 bytes.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

_Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]
_Bytes = NDArray[np.uint8]
_Rows = NDArray[np.void]  # bytes of one length

_WORD = 8  # bytes
_LONGEST = 64  # bytes; Kubernetes allows 253, clouds use up to about 50
_QUOTE, _COMMA = ord('"'), ord(",")
_BETWEEN = 3  # from a closing quote to the first byte of the next name
_HOST, _SCORE, _END = b',{"Host":"', b'","Score":', b"}"
_AROUND = len(_HOST) + len(_SCORE) + 1 + len(_END)  # a name
_TEN = 10
_SPARSE = 8  # slots for each name: then one name in sixteen finds its slot taken
_WIDER = 2  # bits more in the second table than in the first: it is seldom used
_TRIES = 32
_GOLDEN, _HALF, _WHOLE = np.uint64(0x9E3779B97F4A7C15), np.uint64(32), 64


class _Table(msgspec.Struct, frozen=True):
    """Which name has a hash, by its top bits; names whose slot is taken are in the second table, by the next bits."""

    words: list[int]  # the words that tell all names apart
    factors: _Words  # one for each of these words
    hashes: _Words  # of each name
    first: NDArray[np.int32]
    second: NDArray[np.int32]
    bits: int

    def find(self, rows: _Words) -> _Ints:
        """For each row the index of the name that it must be if it is a known name."""
        hashes = _hashes(rows, self.words, self.factors)
        places = self.first.take(_slots(hashes, self.bits))
        others = (self.hashes.take(places) != hashes).nonzero()[0]
        if len(others):
            places[others] = self.second.take(_later_slots(hashes[others], self.bits))
        return places.astype(np.int64)


class _Scratch:
    """Arrays that are reused between calls; an array that is too small is replaced."""

    def __init__(self) -> None:
        self._kept: dict[str, _Bytes] = {}

    def bytes(self, name: str, count: int) -> _Bytes:
        kept = self._kept.get(name)
        if kept is None or len(kept) < count:
            kept = self._kept[name] = np.empty(count, np.uint8)
        return kept[:count]

    def like(self, name: str, rows: _Words) -> _Words:
        return self.bytes(name, rows.nbytes).view(np.uint64).reshape(rows.shape)


class KnownNames:
    """The names that can be recognised by their bytes. A name's place is its index; None is a place without a name. Not
    thread-safe."""

    def __init__(self, names: Sequence[str | None]) -> None:
        self._names = list(names)
        known = [(place, n.encode()) for place, n in enumerate(names) if n is not None and _plain(n)]
        self._of = np.array([place for place, _ in known], np.int64)
        self._plain = [n for _, n in known]
        self._lengths = np.array([len(n) for n in self._plain], np.int64)
        self._width = -(-int(self._lengths.max(initial=1)) // _WORD) * _WORD
        self._masks = _masks(self._width)
        text = b"".join(n.ljust(self._width, b"\0") for n in self._plain)
        self._rows = np.frombuffer(text, np.uint64).reshape(len(known), self._width // _WORD)
        self._table = _table(self._rows) if known else None
        self._nth = _nth(self._lengths)
        self._scratch = _Scratch()
        self._encoded: dict[tuple[int, bool], _Rows] = {}

    def holds(self, names: Sequence[str | None]) -> bool:
        """Whether this object was built from these names."""
        return self._names == names

    def find(self, text: bytes | msgspec.Raw) -> "FoundNames | None":
        """The names of a JSON list; None unless all are known and plainly written."""
        data = self._scratch.bytes("data", len(text) + self._width)
        data[: len(text)] = np.frombuffer(text, np.uint8)
        if self._table is None or not _in_brackets(data[: len(text)]):
            return None
        quotes = np.equal(data[: len(text)], _QUOTE, out=self._scratch.bytes("quotes", len(text)).view(np.bool_))
        at = quotes.nonzero()[0]
        start, end = at[0::2] + 1, at[1::2]
        if len(start) != len(end) or not _separated(data, start, end):
            return None
        lengths = end - start
        if lengths.max() > self._width:
            return None
        rows = _cut(data, start, lengths, self._masks)
        found = self._table.find(rows)
        there = self._rows.take(found, axis=0, out=self._scratch.like("rows", rows), mode="clip")
        alike = bool((there == rows).all()) and np.array_equal(self._lengths.take(found), lengths)
        return FoundNames(self._of.take(found), found) if alike else None

    def scored(self, found: "FoundNames", scores: _Ints) -> bytes:
        """The answer of prioritize, with a score of 0 .. 10 for each name. Names of equal length are grouped, since
        kube-scheduler ignores the order."""
        sort = 2 * self._lengths.take(found.rows) + (scores == _TEN)
        out = self._scratch.bytes("out", int((sort // 2 + sort % 2).sum()) + len(sort) * _AROUND + 1)
        written = 0
        for each in np.bincount(sort).nonzero()[0].tolist():
            which = (sort == each).nonzero()[0]
            encoded = self._with_score(each // 2, tens=bool(each % 2))
            rows = out[written : written + len(which) * encoded.itemsize]
            encoded.take(self._nth.take(found.rows[which]), out=rows.view(encoded.dtype), mode="clip")
            if not each % 2:
                rows.reshape(len(which), -1)[:, -1 - len(_END)] += scores[which].astype(np.uint8)
            written += len(rows)
        out[0], out[-1] = ord("["), ord("]")
        return out.tobytes()

    def _with_score(self, length: int, *, tens: bool) -> _Rows:
        rows = self._encoded.get((length, tens))
        if rows is None:
            end = _SCORE + (b"10" if tens else b"0") + _END
            text = b"".join(_HOST + n + end for n in self._plain if len(n) == length)
            rows = self._encoded[length, tens] = np.frombuffer(text, f"V{len(_HOST) + length + len(end)}")
        return rows


class FoundNames(msgspec.Struct, frozen=True):
    """``places`` of the names, in the order of the request; ``rows``: among the names recognised by their bytes."""

    places: _Ints
    rows: _Ints


def _plain(name: str) -> bool:
    """Whether JSON writes the name without escapes, and it is short enough."""
    return name.isascii() and name.isprintable() and not {'"', "\\"} & set(name) and 0 < len(name) <= _LONGEST


def _masks(width: int) -> _Words:
    """For each length a mask that keeps that many bytes. [width + 1, words]"""
    keep = np.arange(width) < np.arange(width + 1)[:, None]
    return (keep * np.uint8(255)).view(np.uint64)


def _in_brackets(data: _Bytes) -> bool:
    """Whether the text begins and ends as a list of names."""
    return len(data) > 3 and (data[:2].tobytes(), data[-2:].tobytes()) == (b'["', b'"]')


def _separated(data: _Bytes, start: _Ints, end: _Ints) -> bool:
    """Whether nothing but a comma stands between a name and the next."""
    return bool((start[1:] - end[:-1] == _BETWEEN).all() and (data[end[:-1] + 1] == _COMMA).all())


def _cut(data: _Bytes, start: _Ints, lengths: _Ints, masks: _Words) -> _Words:
    """The bytes of each name, followed by zeros. Words that even the shortest name fills need no mask."""
    width = masks.shape[1] * _WORD
    windows = np.ndarray((len(data) - width,), f"V{width}", data, 0, (1,))
    rows = windows[start].view(np.uint64).reshape(len(start), -1)
    whole = int(lengths.min()) // _WORD
    rows[:, whole:] &= masks[:, whole:].take(lengths, axis=0)
    return rows


def _hashes(rows: _Words, words: list[int], factors: _Words) -> _Words:
    """The hash of each row. A word's upper half is mixed into its lower half, since a product spreads upwards only and
    names differ in the last byte of a word as often as in the first."""
    mixed = np.zeros(len(rows), np.uint64)
    for word, factor in zip(words, factors, strict=True):
        column = rows[:, word]
        mixed ^= (column ^ (column >> _HALF)) * factor
    return (mixed ^ (mixed >> _HALF)) * _GOLDEN


def _slots(hashes: _Words, bits: int) -> _Ints:
    return (hashes >> np.uint64(_WHOLE - bits)).view(np.int64)


def _later_slots(hashes: _Words, bits: int) -> _Ints:
    """The slots by the bits that follow those of the first table."""
    return _slots(hashes << np.uint64(bits), bits + _WIDER)


def _table(rows: _Words) -> _Table | None:
    """The table; None if the names do not fit into two tables, which has not been seen in any cluster."""
    bits, words = (len(rows) * _SPARSE).bit_length(), _telling(rows)
    tries = (_tried(rows, words, bits, seed=t) for t in range(_TRIES))
    return next((found for found in tries if found is not None), None)


def _telling(rows: _Words) -> list[int]:
    """The first words that tell all names apart: what follows is mostly the domain."""
    words: list[int] = []
    for word in (rows != rows[0]).any(axis=0).nonzero()[0].tolist():
        words.append(word)
        if len(np.unique(rows[:, words], axis=0)) == len(rows):
            break
    return words


def _tried(rows: _Words, words: list[int], bits: int, *, seed: int) -> _Table | None:
    random = np.random.Generator(np.random.PCG64(seed))
    factors = random.integers(2**63, 2**64, len(words), np.uint64) | np.uint64(1)
    hashes = _hashes(rows, words, factors)
    first, pushed = _fill(_slots(hashes, bits), np.arange(len(rows)), bits)
    second, left = _fill(_later_slots(hashes[pushed], bits), pushed, bits + _WIDER)
    table = _Table(words, factors, hashes, first, second, bits)
    return None if len(left) or (table.find(rows) != np.arange(len(rows))).any() else table


def _fill(slots: _Ints, who: _Ints, bits: int) -> tuple[NDArray[np.int32], _Ints]:
    """A table, and the names whose slot was taken."""
    table = np.zeros(1 << bits, np.int32)
    table[slots] = who
    return table, who[table[slots] != who]


def _nth(lengths: _Ints) -> _Ints:
    """For each name, how many names of its length come before it."""
    nth = np.zeros(len(lengths), np.int64)
    for length in np.unique(lengths).tolist():
        which = (lengths == length).nonzero()[0]
        nth[which] = np.arange(len(which))
    return nth
