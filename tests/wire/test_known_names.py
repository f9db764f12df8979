"""Names found in the bytes of a request, beside the decoder that makes strings of them."""

import json

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.wire.known_names import KnownNames
from fractile.wire.kubernetes.extender import HostPriority

# Bytes at the ends of words, names that are the beginnings of others, and one of the longest.
NAMES = ["n", "n1", "n12", "n-234567", "n-2345678", "n-234567890123456", "ip-10-0-12-7.eu.compute.internal", "x" * 64]

written = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters='"\\'), min_size=1, max_size=64)
lists = st.lists(written, min_size=1, max_size=40, unique=True)


def compact(names: list[str]) -> bytes:
    return json.dumps(names, separators=(",", ":")).encode()


def places(known: KnownNames, text: bytes) -> list[int] | None:
    found = known.find(text)
    return None if found is None else found.places.tolist()


@given(lists, st.data())
def test_names_are_found_where_they_stand(names: list[str], data: st.DataObject) -> None:
    asked = data.draw(st.lists(st.sampled_from(names), min_size=1))
    assert places(KnownNames(names), compact(asked)) == [names.index(n) for n in asked]


@given(lists, lists)
def test_nothing_is_said_of_a_list_with_a_name_that_nobody_knows(names: list[str], asked: list[str]) -> None:
    wanted = [names.index(n) for n in asked] if set(asked) <= set(names) else None
    assert places(KnownNames(names), compact(asked)) == wanted


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_no_other_that_begins_like_it(name: str) -> None:
    known = KnownNames([n for n in NAMES if n != name])
    assert places(known, compact([name])) is None
    assert places(KnownNames(NAMES), compact([name])) == [NAMES.index(name)]


def test_thousands_of_names_that_differ_in_any_of_their_bytes_are_told_apart() -> None:
    names = [f"{i % 7}{'-' * (i % 11)}ip-10-{i % 251}-{i // 256}-{i % 256}.eu-central-1" for i in range(12_000)]
    assert len(set(names)) == len(names)
    assert places(KnownNames(names), compact(names[::-1])) == list(range(len(names)))[::-1]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(b'["a", "b"]', id="a space"),
        pytest.param(b'[ "a","b"]', id="a space in front"),
        pytest.param(b'["\\u0061","b"]', id="an escape"),
        pytest.param(b'["a";"b"]', id="no comma"),
        pytest.param(b'["a""b"]', id="nothing between"),
        pytest.param(b'["a","b]', id="a quote is missing"),
        pytest.param(b'["a",1,"b"]', id="a number"),
        pytest.param(b'["a",["b"]]', id="a list in a list"),
        pytest.param(b'["a\0","b"]', id="a zero byte behind a name"),
        pytest.param(b'[""]', id="an empty name"),
        pytest.param(b"[]", id="no names"),
        pytest.param(b"null", id="null"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_is_not_plainly_a_list_of_known_names_is_left_to_the_decoder(text: bytes) -> None:
    assert places(KnownNames(["a", "b"]), text) is None


def test_places_without_a_name_and_names_that_json_changes_are_passed_over() -> None:
    odd = ["a\nb", 'a"b', "a\\b", "\N{SNOWMAN}", "y" * 65, ""]
    known = KnownNames([None, "a", *odd, None, "b"])
    assert places(known, b'["b","a"]') == [9, 1]
    assert all(places(known, compact([n])) is None for n in odd)


def test_nobody_is_found_among_no_names() -> None:
    assert places(KnownNames([]), b'["a"]') is None
    assert places(KnownNames([None]), b'["a"]') is None


@given(lists, st.data())
def test_scores_are_answered_for_every_name(names: list[str], data: st.DataObject) -> None:
    asked = data.draw(st.permutations(names))
    scores = data.draw(st.lists(st.integers(0, 10), min_size=len(asked), max_size=len(asked)))
    known = KnownNames([None, *names])
    found = known.find(compact(asked))
    assert found is not None
    for _ in range(2):  # the second time from rows that are there
        answer = known.scored(found, np.array(scores, np.int64))
        decoded = msgspec.json.decode(answer, type=list[HostPriority])
        assert sorted((p.host, p.score) for p in decoded) == sorted(zip(asked, scores, strict=True))
        assert answer == msgspec.json.encode(decoded), "as compact as the encoder's"


def test_a_book_of_names_says_whether_it_was_made_of_these() -> None:
    known = KnownNames(["a", None])
    assert known.holds(["a", None])
    assert not known.holds(["a", "b"])
