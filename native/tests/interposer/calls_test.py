"""calls.py prints files of the library that call each other in a circle, or against the order of the folders."""

import subprocess
import sys
import tempfile
from pathlib import Path

import suite

NATIVE = Path(__file__).resolve().parents[2]


def drawn(*lines: str) -> tuple[int, str, str]:
    """The result of calls.py for a listing by `nm -A`, and the graph that it draws."""
    with tempfile.TemporaryDirectory() as name:
        graph = Path(name) / "calls.dot"
        command = [sys.executable, str(NATIVE / "interposer/calls.py"), str(graph)]
        result = subprocess.run(
            command, input="".join(f"{x}\n" for x in lines), capture_output=True, text=True, check=False
        )
        return result.returncode, result.stderr, graph.read_text()


def defines(file: str, symbol: str) -> str:
    return f"build/interposer/{file}.o:0000000000000010 T {symbol}"


def calls(file: str, symbol: str) -> str:
    return f"build/interposer/{file}.o:                 U {symbol}"


def test_calls_downwards_are_drawn_and_pass() -> None:
    status, said, graph = drawn(defines("ledger/slot", "fr_slot_take"), calls("memory/pool", "fr_slot_take"))
    assert (status, said) == (0, "")
    assert '"memory/pool" -> "ledger/slot";' in graph


def test_a_circle_is_named_step_by_step() -> None:
    status, said, _ = drawn(
        defines("memory/a", "fr_a"), calls("memory/a", "fr_b"),
        defines("memory/b", "fr_b"), calls("memory/b", "fr_c"), calls("memory/b", "fr_d"),
        defines("memory/c", "fr_c"), calls("memory/c", "fr_a"),
        defines("memory/d", "fr_d"),
    )  # fmt: skip
    assert status == 1
    assert said.splitlines() == [
        "3 files call each other in a circle:",
        "    memory/a calls memory/b: fr_b",
        "    memory/b calls memory/c: fr_c",
        "    memory/c calls memory/a: fr_a",
    ]


def test_a_call_into_a_higher_folder_is_named() -> None:
    status, said, _ = drawn(calls("ledger/slot", "fr_pool_use"), defines("memory/pool", "fr_pool_use"))
    assert status == 1
    assert said == "ledger/slot calls memory/pool (fr_pool_use), but order.txt lists memory after ledger\n"


def test_hooks_belong_to_no_file() -> None:
    thunk = "build/interposer/resolve/thunks.o:0000000000000010 W cuMemAlloc_v2"
    assert drawn(thunk, defines("memory/linear_calls", "cuMemAlloc_v2"))[0] == 0


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
