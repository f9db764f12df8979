"""Turns of phrase that a native reader has to read twice, and what to write instead."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
INSTEAD = {
    r"\banew\b": "again",
    r"\bthat (is|are) none\b(?! of)": "say what it is not: 'not a number', 'invalid', 'unknown'",
    r"\b(is|are) no GPUs?\b(?! (time|process|memory|pod))": "non-GPU device",
    r"\basks nobody\b": "makes no request",
}
NOT_READ = {"tests/packaging/test_sentences.py", "docs/develop/moved.md"}
FOLDERS = ("src", "docs", "native", "hack", "charts", "deploy", "examples", "tests")


def _texts() -> list[Path]:
    files = [file for folder in FOLDERS for file in (ROOT / folder).rglob("*")] + [
        *ROOT.glob("*.md"),
        ROOT / "Makefile",
    ]
    built = {"build", "__pycache__"}
    return [
        file
        for file in files
        if file.is_file()
        and not file.is_symlink()
        and built.isdisjoint(file.relative_to(ROOT).parts)
        and str(file.relative_to(ROOT)) not in NOT_READ
    ]


@pytest.mark.parametrize("turn", INSTEAD)
def test_no_sentence_has_a_turn_that_has_to_be_read_twice(turn: str) -> None:
    found: list[str] = []
    texts = _texts()
    assert len(texts) > 1000
    for file in texts:
        try:
            text = file.read_text()
        except UnicodeDecodeError:
            continue
        lines = enumerate(text.splitlines(), 1)
        found += [f"{file.relative_to(ROOT)}:{n}: {line.strip()}" for n, line in lines if re.search(turn, line)]
    assert found == [], f"write instead: {INSTEAD[turn]}"
