"""How a surviving mutant is named, and found again when lines have moved."""

import re
from pathlib import Path

import pytest

from tests.mutants.modules import MODULES, Modules
from tests.mutants.run import LOG_CALL, ROOT, Found
from tests.mutants.survivors import Change, change, entry, read, where

_DIFF = """# fractile.extender.bind.xǁBinderǁbind__mutmut_7: survived
--- src/fractile/extender/bind.py
+++ src/fractile/extender/bind.py
@@ -1,3 +1,3 @@
     async def bind(self) -> None:
-        if left > 0:
+        if left >= 0:
             return
"""
_CHANGE = Change("fractile.extender.bind.Binder.bind", "if left > 0:", "if left >= 0:")


@pytest.mark.parametrize(
    ("name", "place"),
    [
        pytest.param("fractile.ledger.scan.x_fit__mutmut_12", "fractile.ledger.scan.fit", id="function"),
        pytest.param("fractile.ledger.scan.x__fit__mutmut_1", "fractile.ledger.scan._fit", id="private"),
        pytest.param("fractile.a.xǁTableǁfind__mutmut_3", "fractile.a.Table.find", id="method"),
        pytest.param("fractile.a.xǁTableǁ__init____mutmut_3", "fractile.a.Table.__init__", id="dunder"),
    ],
)
def test_a_mutant_is_named_by_its_function(name: str, place: str) -> None:
    assert where(name) == place


def test_a_mutant_is_known_by_its_lines_and_not_by_its_number() -> None:
    assert change("fractile.extender.bind.xǁBinderǁbind__mutmut_7", _DIFF) == _CHANGE


def test_an_entry_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "survivors.toml"
    path.write_text(entry(_CHANGE).replace('why = ""', 'why = "equal"'))
    assert read(path) == {_CHANGE: "equal"}


def test_every_listed_survivor_has_a_reason() -> None:
    assert all(why.strip() for why in read().values())


def test_listed_survivors_do_not_count_against_the_tests() -> None:
    found = Found(name="x", counts={"killed": 8, "survived": 2}, left=(_CHANGE, Change("a", "b", "c")))
    assert found.killed() == 80.0
    assert found.killed(known=1) == pytest.approx(100 * 8 / 9)


@pytest.mark.parametrize(
    ("line", "left_alone"),
    [
        pytest.param('        log.warning("bind outcome unknown pod=%s", pod)', True, id="a call of log"),
        pytest.param("    log.info(", True, id="on several lines"),
        pytest.param("        return log.isEnabledFor(10)", False, id="a question to log"),
        pytest.param("    backlog.info(pod)", False, id="another object"),
    ],
)
def test_only_calls_that_write_a_log_line_are_left_as_they_are(line: str, left_alone: bool) -> None:
    assert bool(re.search(LOG_CALL, line)) is left_alone


@pytest.mark.parametrize("group", MODULES, ids=lambda group: group.name)
def test_modules_and_tests_of_a_group_exist(group: Modules) -> None:
    assert all(list(ROOT.glob(pattern)) for pattern in group.sources)
    assert all((ROOT / path).exists() for path in group.tests)
