"""The limits file."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.errors import WireError
from fractile.model.placement import Slice
from fractile.model.units import WHOLE, CardUUID, ContainerName, MiB, Percent, PodUID
from fractile.wire import limits
from fractile.wire.limits import Limits

GOLDEN = (Path(__file__).parent / "golden" / "limits-v1.txt").read_text()
EXAMPLE = Limits(
    pod_uid=PodUID("8c0f3d52-5a3e-4a7a-9d1b-0a4a2f6a1b11"),
    namespace="default",
    pod="trainer-0",
    container=ContainerName("main"),
    slices=(
        Slice(CardUUID("GPU-11111111-2222-3333-4444-555555555555"), MiB(8138)),
        Slice(CardUUID("GPU-11111111-2222-3333-4444-666666666666"), MiB(16276), WHOLE),
    ),
)
NAME = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=253)
SLICE = st.builds(Slice, NAME.map(CardUUID), st.integers(0, 2**40).map(MiB), st.integers(0, 100).map(Percent))


def test_the_golden_file_is_what_is_written_and_read() -> None:
    assert limits.encode(EXAMPLE) == GOLDEN
    assert limits.decode(GOLDEN) == EXAMPLE


@given(st.builds(Limits, NAME.map(PodUID), NAME, NAME, NAME.map(ContainerName), st.lists(SLICE, max_size=8).map(tuple)))
def test_decoding_is_the_inverse_and_lines_are_short(given: Limits) -> None:
    text = limits.encode(given)
    assert limits.decode(text) == given
    assert text.isascii()
    assert max(map(len, text.split("\n"))) < limits.MAX_LINE


@pytest.mark.parametrize("cut", range(0, len(GOLDEN), 7))
def test_a_file_cut_short_is_never_read(cut: int) -> None:
    with pytest.raises(WireError):
        limits.decode(GOLDEN[:cut])


@given(st.text(max_size=300))
def test_any_text_is_read_or_refused(text: str) -> None:
    for candidate in (text, f"fractile-limits=1\n{text}\nend=1\n"):
        try:
            limits.decode(candidate)
        except WireError:
            continue


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        pytest.param("limits=1", "limits=2", "version 2", id="version"),
        pytest.param("cards=2", "cards=1", "as many cards", id="count"),
        pytest.param("memory=8533311488", "memory=8533311489", "not a card", id="not whole MiB"),
        pytest.param("pod-name=", "name=", "pod-name", id="order"),
    ],
)
def test_what_does_not_agree_is_refused_with_a_sentence(old: str, new: str, reason: str) -> None:
    with pytest.raises(WireError, match=reason):
        limits.decode(GOLDEN.replace(old, new))


@pytest.mark.parametrize("name", ["", "a b", "a\nend=1", "ü", "x" * 254])
def test_names_that_could_break_a_line_are_not_written(name: str) -> None:
    with pytest.raises(WireError):
        limits.encode(Limits(PodUID("u"), "n", name, ContainerName("c"), ()))


def test_more_cards_than_the_reader_takes_are_not_written() -> None:
    many = tuple(Slice(CardUUID(f"GPU-{n}"), MiB(1)) for n in range(limits.MAX_CARDS + 1))
    with pytest.raises(WireError, match="129"):
        limits.encode(Limits(PodUID("u"), "n", "p", ContainerName("c"), many))
