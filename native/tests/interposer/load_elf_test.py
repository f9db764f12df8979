"""Properties of the library's file that matter to a loader: the built one, and the portable ones of both
architectures."""

import os
import sys
from pathlib import Path

import elf
import suite

NATIVE = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ["LIBFRACTILE"])
MACHINES = {"x86_64": 62, "aarch64": 183}


def portable() -> dict[str, elf.Library]:
    paths = {machine: Path(os.environ["OUT"]) / "portable" / machine / "libfractile.so" for machine in MACHINES}
    if not all(path.exists() for path in paths.values()):
        raise suite.Skip("make portable has built nothing: is the wheel ziglang installed?")
    return {machine: elf.Library(path) for machine, path in paths.items()}


def declared() -> set[str]:
    lists = [(NATIVE / "symbols" / name).read_text().splitlines() for name in ("cuda.txt", "nvml.txt")]
    return {line.split()[0] for lines in lists for line in lines}


def expect_clean(library: elf.Library) -> None:
    assert library.names(elf.SONAME) == ["libcuda.so.1"], library.names(elf.SONAME)
    wanted = declared() | {"dlsym", "dlvsym", "dlopen", "dlmopen"}
    assert library.exported() == wanted, sorted(library.exported() ^ wanted)
    assert not library.executable_stack(), "the stack would be executable"
    assert not library.text_relocations(), "code would be changed when it is loaded"
    assert library.functions_at_load_time() == 1, "only what opens the driver for a program linked with it"


def test_the_library_exports_the_drivers_names_and_four_of_the_linkers() -> None:
    expect_clean(elf.Library(BUILT))


def test_the_portable_libraries_do_too() -> None:
    for machine, library in portable().items():
        assert library.machine == MACHINES[machine]
        expect_clean(library)


def test_the_portable_libraries_load_on_glibc_2_17() -> None:
    for machine, library in portable().items():
        versions = [tuple(map(int, v.removeprefix("GLIBC_").split("."))) for v in library.versions()]
        assert versions, "no versions found at all"
        assert max(versions) <= (2, 17), f"{machine} needs {sorted(library.versions())}"
        others = set(library.names(elf.NEEDED)) - {
            "libc.so.6",
            "libdl.so.2",
            "libpthread.so.0",
            "ld-linux-x86-64.so.2",
            "ld-linux-aarch64.so.1",
        }
        assert not others, f"{machine} needs {others}"


def test_the_portable_library_is_the_one_that_runs_here() -> None:
    """Its own dlsym works in a program with this machine's C library."""
    portable()
    library = Path(os.environ["OUT"]) / "portable" / os.uname().machine / "libfractile.so"
    script = (
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); assert cuda.cuInit(0) == 0; n = ctypes.c_int()\n"
        "assert cuda.cuDeviceGetCount(ctypes.byref(n)) == 0\n"
        "assert any('/portable/' in line for line in open('/proc/self/maps')), 'not loaded'\n"
    )
    environment = f"LD_LIBRARY_PATH={os.environ['DRIVER']} LD_PRELOAD={library}"
    assert os.system(f'{environment} {sys.executable} -c "{script}"') == 0


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
