"""The build checks the table of symbols: everything that is missing is named."""

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import suite

NATIVE = Path(__file__).resolve().parents[2]


def generated(change: Callable[[str], str], *, functions: str | None = None) -> tuple[int, str]:
    """The result of generate.py for a changed table; with `functions`, for these existing functions."""
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        shutil.copytree(NATIVE / "symbols", work / "symbols")
        (work / "interposer").mkdir()
        shutil.copy(NATIVE / "interposer/generate.py", work / "interposer")
        (work / "interposer/table.txt").write_text(change((NATIVE / "interposer/table.txt").read_text()))
        arguments = [str(work / "out")]
        if functions is not None:
            (work / "functions").write_text(functions)
            arguments = ["--check", str(work / "out"), str(work / "functions")]
        command = [sys.executable, str(work / "interposer/generate.py"), *arguments]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        return result.returncode, result.stderr


def written() -> str:
    """A listing like that of `nm`, with a function for every symbol that needs one."""
    lines = (NATIVE / "interposer/table.txt").read_text().splitlines()
    return "".join(f"T {line.split()[0]}\n" for line in lines if line and not line.startswith("#"))


def test_the_table_as_it_is_builds() -> None:
    assert generated(lambda table: table) == (0, "")
    assert generated(lambda table: table, functions=written()) == (0, "")


def test_a_symbol_without_a_class_is_named() -> None:
    status, said = generated(lambda table: table.replace("cuMemAlloc_v2 account\n", ""))
    assert status != 0
    assert said.split() == ["table.txt:", "not", "classified:", "cuMemAlloc_v2"], said


def test_a_symbol_of_no_list_is_named() -> None:
    status, said = generated(lambda table: table + "cuMemAllocTypo account\n")
    assert status != 0
    assert "cuMemAllocTypo" in said, said


def test_a_class_that_does_not_exist_is_named() -> None:
    status, said = generated(lambda table: table.replace("cuMemAlloc_v2 account", "cuMemAlloc_v2 count"))
    assert status != 0
    assert "cuMemAlloc_v2 count" in said, said


def test_a_symbol_that_stands_twice_is_named() -> None:
    status, said = generated(lambda table: table + "cuMemAlloc_v2 pass\n")
    assert status != 0
    assert "cuMemAlloc_v2" in said, said


def test_a_classified_symbol_without_a_function_is_named() -> None:
    functions = written().replace("T cuMemAlloc_v2\n", "W cuMemAlloc_v2\n")
    status, said = generated(lambda table: table, functions=functions)
    assert status != 0
    assert said.split()[-1] == "cuMemAlloc_v2", said


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
