"""The vendor's runtime library, unmodified, under the library: the functions that it gets for all its lookups.

plugin_spy.so is between the two and records each answer of cuGetProcAddress: name, version, flags, symbol and file. For
every name that the table hooks, the answer must be the library's function, in the requested form; for every other, the
driver's own. See simgpu/runtime_test.py for the source of the wheels.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import suite

NATIVE = Path(__file__).resolve().parents[2]
OUT, DRIVER, LIBRARY = (Path(os.environ[name]) for name in ("OUT", "DRIVER", "LIBFRACTILE"))
WHEELS = Path(os.environ.get("FRACTILE_CUDA_WHEELS", "/nonexistent"))
SPY = OUT / "tests/interposer/plugin_spy.so"

# Calls the runtime, and prints its error code. Compiled with per-thread streams as default or not, shared or static.
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

Answer = tuple[str, int, int, str, str]  # name, version, flags, symbol, file


def rows(path: Path) -> list[list[str]]:
    return [words for line in path.read_text().splitlines() if (words := line.split("#")[0].split())]


HOOKED = {name for name, group in rows(NATIVE / "interposer/table.txt") if group != "pass"}
FORMS: dict[tuple[str, int], list[tuple[int, str]]] = {}
for _name, _version, _thread, _symbol in rows(NATIVE / "symbols/procaddress.txt"):
    FORMS.setdefault((_name, int(_thread)), []).append((int(_version), _symbol))


def expected(name: str, version: int, flags: int) -> str | None:
    """The symbol that should be the answer."""
    for thread in (2, 0) if flags & 2 else (0,):
        known = [form for form in FORMS.get((name, thread), []) if form[0] <= version]
        if known:
            return max(known)[1]
    return None


def need(generation: str, pattern: str) -> Path:
    found = next(iter(sorted((WHEELS / generation).rglob(pattern))), None)
    if found is None:
        raise suite.Skip(f"no {pattern} of CUDA {generation} in {WHEELS} (make -C native wheels)")
    return found


def build(work: str, static: Path | None) -> str:
    source = Path(work) / "program.c"
    source.write_text(PROGRAM)
    target = str(Path(work) / "program")
    extra = ["-DSTATIC", str(static), "-lstdc++", "-lrt"] if static else []
    subprocess.run(["gcc", str(source), "-o", target, *extra, "-ldl", "-lpthread"], check=True)
    return target


def answers(command: list[str]) -> list[Answer]:
    environment = dict(os.environ, LD_LIBRARY_PATH=str(DRIVER), LD_PRELOAD=f"{SPY} {LIBRARY}")
    with tempfile.TemporaryFile() as notes:
        os.dup2(notes.fileno(), 9)
        result = subprocess.run(
            command, env=environment, pass_fds=(9,), capture_output=True, text=True, timeout=30, check=False
        )
        os.close(9)
        notes.seek(0)
        lines = [line.split() for line in notes.read().decode().splitlines()]
    assert result.returncode == 0, result.stderr[-500:]
    return [(n, int(v), int(f), symbol, file) for n, v, f, _, symbol, file in lines]


def wrong(answer: Answer) -> str | None:
    name, version, flags, symbol, file = answer
    want = expected(name, version, flags)
    if want is None or (symbol == "-" and want not in HOOKED):
        return None  # no header declares it, or this driver does not have it
    ours = file.endswith("/libfractile.so")
    if want in HOOKED:
        return (
            None if ours and symbol == want else f"{name} {version} {flags}: wanted our {want}, got {symbol} of {file}"
        )
    return f"{name} {version} {flags}: {want} is passed, but came as {symbol} of {file}" if ours else None


def expect_hooks(command: list[str], least: int) -> None:
    seen = answers(command)
    mistakes = [text for answer in seen if (text := wrong(answer))]
    assert not mistakes, mistakes[:5]
    hooked = [a for a in seen if expected(*a[:3]) in HOOKED]
    assert len(seen) >= least, f"only {len(seen)} questions were seen"
    assert len(hooked) > 60, f"only {len(hooked)} of them were hooked"
    per_thread = sum(a[2] == 2 for a in hooked)
    assert 5 < per_thread < len(hooked), "both kinds of stream have to be asked for"
    print(f"     {len(seen)} questions, {len(hooked)} hooked, {per_thread} of these for per-thread streams")


def shared(generation: str, least: int) -> None:
    library = need(generation, "libcudart.so.*")
    with tempfile.TemporaryDirectory() as work:
        expect_hooks([build(work, None), str(library)], least)


def static(generation: str, least: int) -> None:
    library = need(generation, "libcudart_static.a")
    with tempfile.TemporaryDirectory() as work:
        expect_hooks([build(work, library)], least)


def test_the_shared_runtime_of_11_8_gets_our_functions() -> None:
    shared("11.8", 380)


def test_the_shared_runtime_of_12_9_gets_our_functions() -> None:
    shared("12.9", 415)


def test_the_shared_runtime_of_13_5_gets_our_functions() -> None:
    shared("13.5", 475)


def test_the_static_runtime_of_12_9_gets_our_functions() -> None:
    static("12.9", 415)


def test_the_static_runtime_of_13_5_gets_our_functions() -> None:
    static("13.5", 475)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
