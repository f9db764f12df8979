"""Comments cite only pages of this repository, and sections of docs/develop/evidence that exist."""

import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EVIDENCE = ROOT / "docs" / "develop" / "evidence"
FOLDERS = ("src", "native", "tests", "hack", "charts", "deploy", "examples")
PAGES = sorted(p for p in EVIDENCE.glob("*.md") if p.name != "README.md")
LABELS = ("Seen", "Used by", "Test")

_NAMED = re.compile(r"(?<![\w./:-])([\w./:-]+\.md)\b(#[\w-]*)?")
_C = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
_HASH = re.compile(r"(?:^|\s)#[^\n]*", re.MULTILINE)
_C_LIKE = {".c", ".h", ".proto"}
_HASH_LIKE = {".sh", ".yaml", ".yml", ".toml", ".mk", ".tpl", ".conf", ""}
_BEFORE_DOCSTRING = {
    tokenize.ENCODING,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.COMMENT,
    tokenize.INDENT,
    tokenize.DEDENT,
}


def in_comments(path: Path, text: str) -> str:
    """What a file says in comments and docstrings."""
    if path.suffix == ".py":
        return "\n".join(_in_python(text))
    if path.suffix in _C_LIKE:
        return "\n".join(_C.findall(text))
    return "\n".join((*_C.findall(text), *_HASH.findall(text))) if path.suffix in _HASH_LIKE else ""


def _in_python(text: str) -> Iterator[str]:
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and before in _BEFORE_DOCSTRING):
            yield token.string
        before = token.type


@cache
def anchors(page: Path) -> frozenset[str]:
    """The headings of a page, as GitHub spells them in links."""
    headings: list[str] = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return frozenset(re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in headings)


def leads_nowhere(said: str) -> list[str]:
    """The pages in comments that are not there. Pages of the evidence are named by their folder and with a section."""
    return [name + anchor for name, anchor in _NAMED.findall(said) if "://" not in name and not _exists(name, anchor)]


def _exists(name: str, anchor: str) -> bool:
    page = ROOT / name
    if name.startswith("evidence/"):
        page = EVIDENCE / name.removeprefix("evidence/")
        return page in PAGES and anchor[1:] in anchors(page)
    return page.is_file() and (not anchor or anchor[1:] in anchors(page))


@cache
def commented() -> dict[str, str]:
    """By file: all comments of the tree, but for what is built."""
    found: dict[str, str] = {}
    for folder in FOLDERS:
        for path in (p for p in (ROOT / folder).rglob("*") if p.suffix in {".py", *_C_LIKE, *_HASH_LIKE}):
            if path.is_file() and not {"build", "__pycache__"} & {*path.parts}:
                text = path.read_text(errors="replace")
                found[str(path.relative_to(ROOT))] = in_comments(path, text) if ".md" in text else ""
    return found


def test_every_page_that_a_comment_cites_is_there() -> None:
    assert len(commented()) > 1000
    assert {file: wrong for file, said in commented().items() if (wrong := leads_nowhere(said))} == {}


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("a.py", "# for good (node.md 3.4)", ["node.md"]),
        ("a.py", '"""Names: reference systems.md S1."""', ["systems.md"]),
        ("a.py", 'def f():\n    """See DESIGN.md."""', ["DESIGN.md"]),
        ("a.c", "int a; /* isolation.md\n   9.1 */", ["isolation.md"]),
        ("a.sh", "true # docs/none.md", ["docs/none.md"]),
        ("a.py", "# evidence/none.md#restart", ["evidence/none.md#restart"]),
        ("a.py", "# evidence/kubelet.md#none", ["evidence/kubelet.md#none"]),
        ("a.py", "# evidence/kubelet.md", ["evidence/kubelet.md"]),
        ("a.py", "# docs/concepts/isolation.md#none", ["docs/concepts/isolation.md#none"]),
        (
            "a.py",
            "# (evidence/kubelet.md#restart); docs/concepts/isolation.md, docs/concepts/isolation.md#two-files.",
            [],
        ),
        ("a.py", 'open("node.md")', []),
        ("a.py", "# https://example.com/node.md", []),
    ],
)
def test_a_citation_that_leads_nowhere_is_found(file: str, text: str, wrong: list[str]) -> None:
    assert leads_nowhere(in_comments(Path(file), text)) == wrong


def test_every_section_is_cited() -> None:
    cited = {name + anchor for said in commented().values() for name, anchor in _NAMED.findall(said)}
    sections = {f"evidence/{page.name}#{anchor}" for page in PAGES for anchor in anchors(page) - _title(page)}

    assert len(sections) > 20
    assert sorted(sections - cited) == []


def _title(page: Path) -> frozenset[str]:
    return frozenset([page.read_text().splitlines()[0].removeprefix("# ").lower().replace(" ", "-")])


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_section_says_how_it_was_seen_what_rests_on_it_and_which_test_holds_it(page: Path) -> None:
    for section in re.split(r"^## ", page.read_text(), flags=re.MULTILINE)[1:]:
        assert re.findall(r"^\*\*([\w ]+):\*\*", section, re.MULTILINE) == [*LABELS], section.splitlines()[0]


def test_every_test_that_a_page_names_is_there() -> None:
    tests = "\n".join(p.read_text() for folder in ("contract", "e2e") for p in (ROOT / "tests" / folder).glob("*.py"))
    named = {
        name
        for page in PAGES
        for held in re.findall(r"^\*\*Test:\*\*.*(?:\n.+)*", page.read_text(), re.MULTILINE)
        for name in re.findall(r"`(\w+_\w+_\w+)`", held)
    }

    assert len(named) > 10
    assert sorted(name for name in named if f"def {name}(" not in tests) == []


def test_every_page_is_in_the_table_and_every_link_leads_to_a_section() -> None:
    index = (EVIDENCE / "README.md").read_text()
    assert [page.name for page in PAGES if f"[{page.name}]({page.name})" not in index] == []
    for page in (*PAGES, EVIDENCE / "README.md"):
        for name, anchor in re.findall(r"\]\(([\w.-]*)#([\w-]+)\)", page.read_text()):
            assert anchor in anchors(EVIDENCE / name if name else page), f"{page.name}: {name}#{anchor}"
