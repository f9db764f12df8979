"""The vendor's own user-space driver, unmodified, under the library: its private tables and its symbols.

It can be loaded on a machine without a card, and its tables can be read there. The library has to pass them on
unchanged, at their own addresses: the runtime library verifies by a hash over these addresses that the driver is the
vendor's. See fetch/vendor.py for the source of the driver.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import suite

NATIVE = Path(__file__).resolve().parents[2]
LIBRARY = Path(os.environ["LIBFRACTILE"])
CACHE = Path(os.environ.get("FRACTILE_CUDA_WHEELS", "/nonexistent"))
DRIVER = CACHE / "driver"

# The tables that the runtime library requests, in its order, and three that others request. The first word of most is
# their size in bytes; 0: that word is not a size; None: a driver of 535 does not have the table.
TABLES = {
    "f8cff95121468b4eb9e2fb469e7c0dd9": None,  # may be absent
    "6bd5fb6c5bf4e74a8987d93912fd9df9": 88,  # the runtime's interface: makes primary contexts, loads modules
    "a094798c2e742e7493f20800200c0a66": 56,  # hooks of callbacks
    "42d85a8123f6cb478298f6e78a3aecdc": 24,  # tools' thread-local storage
    "c693336e1121df11a8c368f355d89593": 0,  # storage of contexts
    "263e88607cd2614392f6bbd5006dfa7e": None,  # checks of contexts: runtimes of 12 and 13 ask for it
    "d4082055bde6704b8d34ba123c66e1f2": 24,  # the handshake
    "0ca50b8c1004929a89a7d0df10e77286": 16,  # makes contexts
    "195bcbf4d67d024aacc51d29cea631ae": None,  # reaches a heap
    "b10541e1f7c7c74a9f64f223be99f1e2": 216,
}

# Functions that it exports and no header declares, for its debugger and its own libraries.
UNDECLARED = {"cuEGLApiInit", "cuMemGetAttribute", "cuMemGetAttribute_v2"}

# For each table: the result, its first word, the file whose memory contains it; then the file of the function called.
PROGRAM = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
static const char *file_of(const void *p)
{
    Dl_info d;
    return p && dladdr(p, &d) ? d.dli_fname : "-";
}
int main(int count, char **ids)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    typedef int (*getter)(const void **, const void *);
    getter get = library ? (getter)dlsym(library, "cuGetExportTable") : 0;
    if (!get) return fprintf(stderr, "%s\\n", dlerror()), 1;
    for (int i = 1; i < count; i++) {
        unsigned char id[16];
        const void *table = 0;
        for (int k = 0; k < 16; k++) {
            char two[3] = {ids[i][2 * k], ids[i][2 * k + 1], 0};
            id[k] = (unsigned char)strtoul(two, 0, 16);
        }
        int answer = get(&table, id);
        size_t words = table ? *(const size_t *)table : 0;
        printf("%s %d %zu %s %s\\n", ids[i], answer, words, file_of(table), file_of(*(void **)&get));
    }
    return 0;
}
"""


def need_driver() -> str:
    if not (DRIVER / "libcuda.so.1").exists():
        raise suite.Skip(f"no driver of the vendor's in {CACHE} (make -C native vendor)")
    return (DRIVER / "version").read_text().strip()


def ask(preload: str) -> dict[str, tuple[int, int, str, str]]:
    need_driver()
    with tempfile.TemporaryDirectory() as work:
        source, target = Path(work) / "program.c", Path(work) / "program"
        source.write_text(PROGRAM)
        subprocess.run(["gcc", str(source), "-o", str(target), "-ldl"], check=True)
        environment = dict(os.environ, LD_LIBRARY_PATH=str(DRIVER), LD_PRELOAD=preload)
        result = subprocess.run([str(target), *TABLES], env=environment, capture_output=True, text=True, timeout=30)
    assert result.returncode == 0, result.stderr[-500:]
    lines = [line.split() for line in result.stdout.splitlines()]
    return {words[0]: (int(words[1]), int(words[2]), words[3], words[4]) for words in lines}


def test_the_tables_of_a_driver_of_535_are_those_that_we_know() -> None:
    version = need_driver()
    if not version.startswith("535."):
        raise suite.Skip(f"the driver here is {version}; what is known is of 535")
    for table, (answer, first, _, _) in ask("").items():
        size = TABLES[table]
        assert (answer == 0) == (size is not None), (table, answer)
        assert not size or first == size, (table, first)


def test_every_table_comes_through_the_library_as_the_driver_has_it() -> None:
    plain, ours = ask(""), ask(str(LIBRARY))
    handed_out = 0
    for table, (answer, first, place, function) in ours.items():
        assert Path(function).name == "libfractile.so", function
        assert answer == plain[table][0], table
        if answer:
            continue
        handed_out += 1
        assert Path(place) == DRIVER / "libcuda.so.1", f"{table} is in {place}"
        assert not TABLES[table] or first == plain[table][1], table
    assert handed_out >= 5, handed_out
    print(f"     {handed_out} tables of driver {need_driver()}")


def test_every_symbol_of_the_driver_is_classified() -> None:
    need_driver()
    listing = subprocess.run(
        ["nm", "-D", "--defined-only", str(DRIVER / "libcuda.so.1")], capture_output=True, text=True, check=True
    ).stdout
    exported = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    table = (NATIVE / "interposer/table.txt").read_text().splitlines()
    known = {line.split()[0] for line in table if line and not line.startswith("#")}
    strange = {name for name in exported - known if not name.startswith("cudbg")} - UNDECLARED
    assert len(exported) > 500, len(exported)
    assert not strange, sorted(strange)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
