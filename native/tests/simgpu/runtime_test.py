"""Tests that need the vendor's wheels: the lists of symbols, the structs of native/abi, and the symbol resolution of
the real runtime library.

    make wheels        downloads them into the user's cache, unless FRACTILE_CUDA_WHEELS names another directory

DIR/11.8, DIR/12.9 and DIR/13.5 contain the unpacked wheels. Without them all tests are skipped.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2]
LIBRARIES = Path(os.environ["OUT"]) / "simgpu"
WHEELS = Path(os.environ.get("FRACTILE_CUDA_WHEELS", "/nonexistent"))
GENERATIONS = ("11.8", "12.9", "13.5")

# Makes the runtime start; prints the runtime's own error code.
PROGRAM = """
#include <dlfcn.h>
#include <stdio.h>
#ifdef STATIC
int cudaFree(void *);
int main(void) { printf("%d\\n", cudaFree(0)); return 0; }
#else
int main(int argc, char **argv)
{
    void *l = dlopen(argv[argc - 1], RTLD_NOW);
    int (*f)(void *) = l ? (int (*)(void *))dlsym(l, "cudaFree") : 0;
    if (!f) return 1;
    printf("%d\\n", f(0));
    return 0;
}
#endif
"""


def find(generation: str, name: str) -> Path | None:
    return next(iter(sorted((WHEELS / generation).rglob(name))), None)


def lookups(command: list[str]) -> tuple[list[str], list[str]]:
    """Runs a program on the simulated driver; returns the names that its runtime found, and those that it did not."""
    environment = dict(os.environ, LD_LIBRARY_PATH=str(LIBRARIES), SIMGPU_TRACE="1")
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr[-500:]
    lines = [line.split()[2:] for line in result.stderr.splitlines() if line.startswith("simgpu: lookup")]
    return [" ".join(line) for line in lines if line[-1] == "found"], [
        " ".join(line) for line in lines if line[-1] != "found"
    ]


def build(work: Path, static: Path | None) -> str:
    source = work / "program.c"
    source.write_text(PROGRAM)
    target = str(work / ("static" if static else "shared"))
    extra = ["-DSTATIC", str(static), "-lstdc++", "-lrt"] if static else []
    subprocess.run(["gcc", str(source), "-o", target, *extra, "-ldl", "-lpthread"], check=True)
    return target


def test_lists_of_symbols_are_complete() -> None:
    roots = [str(WHEELS / g) for g in GENERATIONS]
    subprocess.run([sys.executable, str(NATIVE / "symbols/generate.py"), *roots, "--check"], check=True)


def test_structs_have_the_layout_of_the_headers() -> None:
    for generation in GENERATIONS:
        header = find(generation, "cuda.h")
        assert header
        command = [
            "gcc",
            "-fsyntax-only",
            f"-I{header.parent}",
            f"-I{NATIVE / 'abi'}",
            str(NATIVE / "tests/simgpu/abi_check.c"),
        ]
        subprocess.run(command, check=True)


def expect_all_found(command: list[str], at_least: int) -> None:
    found, missing = lookups(command)
    # 12.x and later look up an empty name, 13.x also names that no header declares; a driver need not have them.
    declared = {line.split()[0] for line in (NATIVE / "symbols/procaddress.txt").read_text().splitlines()}
    lost = [m for m in missing if m.split()[0] in declared]
    assert not lost, lost
    assert len(found) >= at_least, len(found)
    assert any(" 2 " in f"{line} " for line in found), "nothing was asked for per-thread streams"
    print(f"     {Path(command[-1]).name}: {len(found)} found, not found: {[m.split()[0] for m in missing]}")


def test_shared_runtime_finds_everything_it_asks_for() -> None:
    with tempfile.TemporaryDirectory() as work:
        program = build(Path(work), None)
        for generation, least in zip(GENERATIONS, (380, 415, 475), strict=True):
            library = find(generation, "libcudart.so.*")
            assert library
            expect_all_found([program, str(library)], least)


def test_static_runtime_finds_everything_it_asks_for() -> None:
    with tempfile.TemporaryDirectory() as work:
        for generation, least in (("12.9", 415), ("13.5", 475)):  # the wheel of 11.8 has no static library
            library = find(generation, "libcudart_static.a")
            assert library
            expect_all_found([build(Path(work), library)], least)


def main() -> int:
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]
    if not all((WHEELS / generation).is_dir() for generation in GENERATIONS):
        print(f"no headers and no runtime to compare with in {WHEELS} (make -C native wheels)")
        print(f"0 passed, 0 failed, {len(tests)} skipped")
        return 0
    failed = 0
    for name, test in tests:
        try:
            test()
            print(f"ok   {name}")
        except Exception as error:
            failed += 1
            print(f"FAIL {name}: {error!r}")
    print(f"{len(tests) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
