"""What a decoder is given: valid examples, the same with something changed, and things that were never valid."""

import copy
import json
from typing import Any, cast

import msgspec
from hypothesis import strategies as st

_HOSTILE = st.sampled_from(
    cast(
        list[Any],
        [
            None, True, 0, -1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, 1e308, float("nan"), float("inf"),
            "", "0", "-1", "1e999", "9" * 60, "x" * 5000, "\x00", "\n", "\u2028", "\ud800", "٣", "../..", "a/b:c",
            [], {}, [[]], [None], {"": None}, "AAAA", "4Gi", "10.5m", "0x10", "1/0", "nan", "::", "GPU-a::0-999999",
        ],
    )
)  # fmt: skip
_JSON = st.recursive(
    _HOSTILE | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
DEEP = (b"[" * 5_000, b'{"a":' * 5_000, b"[" * 500 + b"]" * 500, b"- " * 5_000, b"a: &a [*a]")
"""What makes readers that call themselves run out of stack."""
_PIECES = st.binary(max_size=8) | st.sampled_from(
    [b"\x00", b"\xff\xff\xff\xff", b"-", b"9" * 30, b'"', b"{", b"\n", b":"]
)


def json_bytes(value: object) -> bytes:
    """Python's own writer, which also writes what is no JSON: NaN, and half of a pair of surrogates as an escape."""
    return json.dumps(value).encode()


@st.composite
def _cut(draw: st.DrawFn, data: bytes) -> bytes:
    """Some pieces removed, doubled, or replaced by others."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        end = min(len(data), at + draw(st.integers(0, 12)))
        piece = draw(_PIECES | st.just(data[at:end] * 2))
        data = data[:at] + piece + data[end:]
    return data


@st.composite
def _changed(draw: st.DrawFn, tree: Any) -> Any:
    """Up to three values of the tree replaced by hostile ones, or their fields left out."""
    tree = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 3))):
        places = [*_places(tree)]
        if not places:
            return draw(_JSON)
        holder, key = draw(st.sampled_from(places))
        if draw(st.booleans()) or isinstance(holder, list):
            holder[key] = copy.deepcopy(draw(_HOSTILE | _JSON))  # the lists among them are always the same ones
        else:
            holder.pop(key, None)
    return tree


def _places(tree: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    if isinstance(tree, dict):
        items = list(cast(dict[str, Any], tree).items())
    else:
        items = list(enumerate(cast(list[Any], tree))) if isinstance(tree, list) else []
    for key, value in items[:64]:
        found += [(tree, key), *_places(value)]
    return found


def values(seeds: list[Any]) -> st.SearchStrategy[Any]:
    """Plain JSON: the decoder's own examples with something changed, or anything."""
    return _JSON | st.sampled_from(seeds).flatmap(_changed)


def mappings(seeds: list[Any]) -> st.SearchStrategy[Any]:
    """Objects, as the API server has them where it promises one."""
    return values(seeds).filter(lambda value: isinstance(value, dict))


def raw(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    trees = [tree for seed in seeds if (tree := _tree(seed)) is not None]
    found = st.binary(max_size=200) | _JSON.map(json_bytes) | st.sampled_from(seeds).flatmap(_cut)
    return found | st.sampled_from(trees).flatmap(_changed).map(json_bytes) if trees else found


def text(seeds: list[bytes]) -> st.SearchStrategy[str]:
    return st.text(max_size=80) | raw(seeds).map(lambda data: data.decode("utf-8", "replace"))


def _tree(seed: bytes) -> Any:
    try:
        found: Any = msgspec.json.decode(seed)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return cast(Any, found) if isinstance(found, (dict, list)) else None
