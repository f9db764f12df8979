"""The limits page: which bytes make sense."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.units import CardUUID, ContainerName, Percent, PodUID
from fractile.region import layout, page
from fractile.region.layout import LIMITS, LIMITS_CARD
from fractile.region.page import CardLimits, ContainerLimits
from tests.region.examples import FIRST, SECOND
from tests.region.examples import LIMITS as EXAMPLE
from tests.region.native import generate
from tests.wire.golden_files import golden

GOLDEN = golden("limits-v2.bin")


def names(most: int, least: int = 0) -> st.SearchStrategy[str]:
    return st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=least, max_size=most)


def numbers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(0, 2**bits - 1)


percents = st.integers(0, 100).map(Percent)
cards = st.builds(
    CardLimits,
    uuid=names(95, 1).map(CardUUID),
    memory=numbers(64),
    context=numbers(64),
    unaccounted=numbers(64),
    cores=percents,
    cores_limit=percents,
    weight=numbers(32),
    flags=numbers(32),
)
pages = st.builds(
    ContainerLimits,
    pod_uid=names(63).map(PodUID),
    namespace=names(255),
    pod=names(255),
    container=names(255).map(ContainerName),
    cards=st.lists(cards, max_size=5, unique_by=lambda c: c.uuid).map(tuple),
    flags=numbers(32),
    priority=numbers(32),
    generation=numbers(64),
)


def changed(**fields: Any) -> ContainerLimits:
    return msgspec.structs.replace(EXAMPLE, **fields)


def patched(name: str, value: int) -> bytes:
    data = bytearray(GOLDEN)
    LIMITS.put(data, 0, name, value)
    return bytes(data)


def test_the_golden_page_is_what_is_written_and_read() -> None:
    assert page.encode(EXAMPLE) == GOLDEN
    assert page.decode(GOLDEN) == EXAMPLE
    beside = json.loads(golden("limits-v2.json"))
    assert beside == json.loads(msgspec.json.encode(EXAMPLE))


@settings(max_examples=60, deadline=None)
@given(pages, st.integers(0, 2**31 - 1))
def test_decoding_is_the_inverse_whatever_the_sequence_is(limits: ContainerLimits, half: int) -> None:
    data = page.encode(limits, sequence=2 * half)
    assert len(data) == page.SIZE == layout.LIMITS.size
    assert page.decode(data) == limits


@settings(max_examples=300, deadline=None)
@given(st.integers(0, page.SIZE - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_means_what_it_says(at: int, mask: int) -> None:
    data = bytearray(GOLDEN)
    data[at] ^= mask
    try:
        read = page.decode(bytes(data))
    except WireError:
        return
    word, arbiter = LIMITS.get(data, 0, "sequence"), LIMITS.get(data, 0, "arbiter")
    assert page.encode(read, sequence=word, arbiter=arbiter) == data


@pytest.mark.parametrize("length", [0, 1, 7, 8, 63, 895, 896, 4096, page.SIZE - 8, page.SIZE - 1])
def test_a_page_cut_short_is_never_read(length: int) -> None:
    with pytest.raises(WireError):
        page.decode(GOLDEN[:length])
    with pytest.raises(WireError):
        page.decode(GOLDEN + b"\0" * (length + 1))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(patched("magic", 0), "not a limits page", id="magic"),
        pytest.param(patched("version", 1), "version 1", id="an older version"),
        pytest.param(patched("version", 3), "version 3", id="a newer version"),
        pytest.param(patched("size", 4096), "damaged", id="size"),
        pytest.param(patched("end", 0), "damaged", id="end"),
        pytest.param(patched("sequence", 7), "half written", id="sequence"),
        pytest.param(patched("card_count", 65), "65 cards", id="more cards than there is room for"),
        pytest.param(patched("card_count", 2**32 - 1), "4294967295 cards", id="many more"),
        pytest.param(patched("card_count", 1), "must be empty", id="fewer cards than are there"),
        pytest.param(patched("card_count", 3), "a different name", id="a card without a name"),
        pytest.param(patched("reserved", 1), "must be empty", id="reserved"),
        pytest.param(patched("padding", 1), "must be empty", id="padding"),
        pytest.param(
            GOLDEN.replace(b"trainer-0", b"traine\0-0"), "cannot stand|nothing belongs", id="text after a NUL"
        ),
        pytest.param(GOLDEN.replace(b"trainer-0", b"traine\xfc-0"), "ASCII", id="no ASCII"),
        pytest.param(GOLDEN.replace(b"trainer-0", b"trai\nner0"), "cannot stand", id="a line break"),
        pytest.param(GOLDEN.replace(SECOND.encode(), FIRST.encode()), "a different name", id="a card twice"),
        pytest.param(b"fractile-limits=1\npod-uid=u\nend=1\n", "earlier release", id="the text of the first release"),
    ],
)
def test_what_does_not_agree_is_refused_with_a_sentence(data: bytes, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        page.decode(data)


def test_a_percentage_above_a_hundred_is_refused() -> None:
    data = bytearray(GOLDEN)
    LIMITS_CARD.put(data, LIMITS.fields["cards"].offset, "cores", 101)
    with pytest.raises(WireError, match="101"):
        page.decode(bytes(data))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"pod": "a b"}, id="a blank"),
        pytest.param({"pod": "a\0"}, id="a NUL"),
        pytest.param({"namespace": "ü"}, id="no ASCII"),
        pytest.param({"pod_uid": "x" * 64}, id="no room for the NUL"),
        pytest.param({"priority": -1}, id="a negative number"),
        pytest.param({"generation": 2**64}, id="a number too large"),
        pytest.param({"cards": (CardLimits(uuid=CardUUID(""), memory=1),)}, id="a card without a name"),
        pytest.param({"cards": (CardLimits(uuid=CardUUID("a"), memory=-1),)}, id="negative memory"),
        pytest.param({"cards": EXAMPLE.cards[:1] * 2}, id="a card twice"),
    ],
)
def test_what_could_not_be_read_back_is_not_written(fields: dict[str, Any]) -> None:
    with pytest.raises(WireError):
        page.encode(changed(**fields))


def test_more_cards_than_there_is_room_for_are_not_written() -> None:
    many = tuple(CardLimits(uuid=CardUUID(f"GPU-{n}"), memory=1) for n in range(65))
    assert page.decode(page.encode(changed(cards=many[:64]))).cards == many[:64]
    with pytest.raises(WireError, match="65"):
        page.encode(changed(cards=many))


def test_the_layout_is_what_the_schema_says(tmp_path: Path) -> None:
    generate("python", tmp_path / "layout.py")
    assert (tmp_path / "layout.py").read_text() == Path(layout.__file__).read_text(), (
        "run: python native/region/generate.py python src/fractile/region/layout.py"
    )
