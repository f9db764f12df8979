"""The pages name only files, commands and targets that exist."""

import re
import subprocess
from pathlib import Path

import pytest

from fractile.main.cli import COMMANDS

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
_LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
_PATH = re.compile(r"`((?:src|docs|examples|tests|deploy|hack)/[\w./-]*\w/?)`")
_COMMAND = re.compile(r"`(?:kubectl )?fractile ([a-z][a-z-]*)")
_TARGET = re.compile(r"\bmake ([a-z][a-z-]*)\b[^\n]*[`#]")


@pytest.fixture(params=PAGES, ids=[str(p.relative_to(ROOT)) for p in PAGES])
def page(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def test_every_link_leads_to_a_file(page: Path) -> None:
    assert [to for to in _LINK.findall(page.read_text()) if not (page.parent / to).exists()] == []


def test_every_file_that_is_named_exists(page: Path) -> None:
    placeholders = {name for name in _PATH.findall(page.read_text()) if "NAME" in name}

    assert [n for n in _PATH.findall(page.read_text()) if n not in placeholders and not (ROOT / n).exists()] == []


def test_every_command_that_is_named_exists(page: Path) -> None:
    assert {name for name in _COMMAND.findall(page.read_text()) if name not in COMMANDS} == set()


def test_every_make_target_that_is_named_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))

    assert {name for name in _TARGET.findall(page.read_text()) if name not in targets} == set()


def test_every_command_is_documented() -> None:
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()

    assert [name for name in COMMANDS if f"`fractile {name}" not in text] == []


def test_the_changelog_sorts_its_short_lines_as_keep_a_changelog_does() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    for version in text.split("\n## ")[1:]:
        headings = re.findall(r"^### (.*)$", version, re.MULTILINE)
        assert headings == [h for h in ("Changed", "Security", "Added", "Fixed", "Removed") if h in headings]
    lines = [re.sub(r"\]\([^)]*\)", "]", line) for line in text.splitlines() if line.startswith("- ")]
    assert [line for line in lines if len(line) > 320] == []
    assert sorted(lines) == sorted(set(lines))


def test_the_c_tree_lists_its_targets() -> None:
    listed = subprocess.run(
        ["make", "--no-print-directory", "-C", str(ROOT / "native"), "help"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert listed.returncode == 0, listed.stderr
    wanted = ("check", "programs", "frameworks", "stress", "stress-matrix", "kills", "bench", "shares", "fuzz")
    assert [t for t in wanted if f"make {t}" not in listed.stdout] == []


def test_every_message_of_the_library_is_explained() -> None:
    page = (ROOT / "docs" / "reference" / "messages.md").read_text()
    macros = (ROOT / "native/interposer/base/message.h").read_text()
    texts = dict(re.findall(r'#define (FR_\w+) (".*")', macros))
    said: list[str] = []
    for file in (ROOT / "native/interposer").glob("*/*.c"):
        for call in re.findall(r"fr_say\(FR_SAY_\w+, (.*)\);", file.read_text()):
            whole = re.sub("|".join(texts), lambda m: texts[m[0]], call)
            said += [max(re.split(r"%\w", part), key=len) for part in re.findall(r'"([^"]{12,})"', whole)]
    assert len(said) > 15
    assert [piece for piece in said if _without_advice(piece) not in page] == []


def _without_advice(text: str) -> str:
    return re.sub(r"(^warning: )|( \((the node's agent writes|a larger one).*)", "", text).strip()
