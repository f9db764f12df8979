"""Text of others in sentences of ours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fractile.model.refusal import Code, Refusal
from fractile.model.words import LONGEST_SENTENCE, listed, printable, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        pytest.param("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", id="a model"),
        pytest.param("K\u00fchlung \u6e29\u5ea6", "K\u00fchlung \u6e29\u5ea6", id="letters of any language"),
        pytest.param("\x1b]0;pwn\x07", "?]0;pwn?", id="an escape sequence"),
        pytest.param("a\nb\r\tc", "a?b??c", id="line breaks"),
        pytest.param("\u202egnp.exe\x9b31m", "?gnp.exe?31m", id="direction of writing, C1"),
    ],
)
def test_what_is_no_visible_character_becomes_a_question_mark(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_long_text_is_cut_and_says_so() -> None:
    assert quoted("x" * 100) == "x" * 100
    assert quoted("x" * 101) == "x" * 97 + "..."
    assert listed(("a" * 101, "b", "c", "d"), " or ", 2) == "a" * 97 + "... or b and 2 more"


@given(st.text(max_size=3000))
def test_a_refusal_is_one_short_printable_line_and_short_ones_are_as_they_were_written(text: str) -> None:
    message = Refusal(Code.MALFORMED, text).message
    assert message.isprintable()
    assert len(message) <= LONGEST_SENTENCE
    assert message == text.replace("%", "％") or not text.isprintable() or len(text) > LONGEST_SENTENCE
