"""The ways in which the library gets into a process, and its effects on a process that does not need it."""

import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import suite

OUT, DRIVER, LIBRARY = (Path(os.environ[name]) for name in ("OUT", "DRIVER", "LIBFRACTILE"))
FINDER = OUT / "tests/interposer/plugin_finder.so"

# Prints the file that contains the driver function that the program found, and the number of devices that it sees.
PROBE = """
import ctypes, sys
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("rest", ctypes.c_void_p * 3)]
libc = ctypes.CDLL(None)
library = ctypes.CDLL(sys.argv[1])
info = Info()
libc.dladdr(ctypes.cast(library[sys.argv[2]], ctypes.c_void_p), ctypes.byref(info))
print(info.file.decode())
print(library.cuInit(0) if sys.argv[2].startswith("cu") else library.nvmlInit_v2())
"""


def environment(**changes: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
    return kept | changes


def probe(file: str, symbol: str, **changes: str) -> tuple[str, int]:
    command = [sys.executable, "-c", PROBE, file, symbol]
    result = subprocess.run(
        command, env=environment(**changes), capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr[-400:]
    found, status = result.stdout.split()
    return found, int(status)


def ours(file: str) -> bool:
    return Path(file).samefile(LIBRARY) or Path(file).read_bytes() == LIBRARY.read_bytes()


def linked_program(work: Path) -> Path:
    source, program = work / "linked.c", work / "linked"
    source.write_text(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\nint cuInit(unsigned);\nint main(void)\n"
        '{ Dl_info i; dladdr((void *)cuInit, &i); printf("%s %d\\n", i.dli_fname, cuInit(0)); return 0; }\n'
    )
    subprocess.run(["gcc", str(source), "-o", str(program), f"-L{DRIVER}", "-lcuda"], check=True)
    return program


def test_preloaded_it_stands_for_both_libraries() -> None:
    for file, symbol in (("libcuda.so.1", "cuMemAlloc_v2"), ("libnvidia-ml.so.1", "nvmlInit_v2")):
        found, status = probe(file, symbol, LD_PRELOAD=str(LIBRARY), LD_LIBRARY_PATH=str(DRIVER))
        assert ours(found), found
        assert status == 0


def test_under_the_drivers_name_it_finds_the_real_one_elsewhere() -> None:
    with tempfile.TemporaryDirectory() as work:
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            shutil.copy(LIBRARY, Path(work) / name)
        for file, symbol in (("libcuda.so.1", "cuMemAlloc_v2"), ("libnvidia-ml.so.1", "nvmlInit_v2")):
            found, status = probe(file, symbol, LD_LIBRARY_PATH=f"{work}:{DRIVER}")
            assert ours(found), found
            assert status == 0, "it did not find the driver behind itself"


def test_a_link_under_the_drivers_name_works_too() -> None:
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "libcuda.so.1").symlink_to(LIBRARY)
        found, status = probe("libcuda.so.1", "cuMemAlloc_v2", LD_LIBRARY_PATH=f"{work}:{DRIVER}")
        assert ours(found), found
        assert status == 0


def test_a_linked_program_is_bound_to_it_either_way() -> None:
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        program = linked_program(work)
        (work / "own").mkdir()
        shutil.copy(LIBRARY, work / "own/libcuda.so.1")
        ways = [
            {"LD_PRELOAD": str(LIBRARY), "LD_LIBRARY_PATH": str(DRIVER)},
            {"LD_LIBRARY_PATH": f"{work}/own:{DRIVER}"},
        ]
        for way in ways:
            result = subprocess.run([program], env=environment(**way), capture_output=True, text=True, check=True)
            found, status = result.stdout.split()
            assert ours(found), found
            assert status == "0"


# Prints before its first call whether the driver is loaded already, and whether dlerror reports an error; then calls.
# With an argument, the driver is at that path from then on.
SHOW = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef LINKED
int cuInit(unsigned);
#else
static int cuInit(unsigned flags)
{
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuInit");
    return init ? init(flags) : -1;
}
#endif
#ifdef BESIDE
void *linked_alloc(void);
#endif
static int is_driver(struct dl_phdr_info *i, size_t size, void *directory)
{
    (void)size;
    return strstr(i->dlpi_name, directory) && strstr(i->dlpi_name, "/libcuda.so.1");
}
int main(int count, char **arguments)
{
    int loaded = dl_iterate_phdr(is_driver, getenv("DRIVER"));
    const char *error = dlerror();
#ifdef BESIDE
    if (!linked_alloc()) return 1;
#endif
    if (count > 1) setenv("LD_LIBRARY_PATH", arguments[1], 1);
    printf("%d %s %d\n", loaded, error ? "error" : "none", cuInit(0));
    return 0;
}
"""
LINKED, BESIDE = ["-DLINKED", f"-L{DRIVER}", "-lcuda"], ["-DBESIDE", str(OUT / "tests/interposer/plugin_linked.so")]


def shown(work: Path, how: list[str], *arguments: str, path: str) -> str:
    program = work / "show"
    (work / "show.c").write_text(SHOW)
    build = ["gcc", str(work / "show.c"), "-o", str(program), *how, "-ldl", "-Wl,--allow-shlib-undefined"]
    subprocess.run(build, check=True)
    env = environment(LD_PRELOAD=str(LIBRARY), LD_LIBRARY_PATH=path)
    result = subprocess.run([program, *arguments], env=env, capture_output=True, text=True, timeout=30, check=False)
    assert result.returncode == 0, result.stderr[-400:]
    return result.stdout.strip()


def test_a_program_linked_with_the_driver_has_it_before_main() -> None:
    with tempfile.TemporaryDirectory() as work:
        assert shown(Path(work), LINKED, path=str(DRIVER)) == "1 none 0"


def test_a_program_that_is_not_linked_with_it_itself_has_it_from_its_first_call() -> None:
    for how in ([], BESIDE):
        with tempfile.TemporaryDirectory() as work:
            assert shown(Path(work), how, path=str(DRIVER)) == "0 none 0", how


def test_a_linked_program_that_starts_without_a_driver_looks_again_at_its_first_call() -> None:
    with tempfile.TemporaryDirectory() as name:
        broken = Path(name) / "broken"
        broken.mkdir()
        (broken / "libcuda.so.1").write_text("not a library\n")
        assert shown(Path(name), LINKED, str(DRIVER), path=str(broken)) == "0 none 0"
        assert shown(Path(name), LINKED, path=str(broken)) == "0 none 100"


def test_ld_so_preload_reaches_programs_without_an_environment() -> None:
    if os.geteuid():
        raise suite.Skip("needs root: /etc/ld.so.preload of a mount namespace of its own")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        program = linked_program(work)
        (work / "preload").write_text(f"{LIBRARY}\n")
        bare = f"env -i LD_LIBRARY_PATH={DRIVER} SIMGPU_DIR={os.environ['SIMGPU_DIR']} {program}"
        layers = f"lowerdir=/etc,upperdir={work}/t/u,workdir={work}/t/w"
        script = (
            f"mount -t tmpfs none {work}/t && mkdir {work}/t/u {work}/t/w && "
            f"mount -t overlay none -o {layers} /etc && cp {work}/preload /etc/ld.so.preload && exec {bare}"
        )
        (work / "t").mkdir()
        result = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, text=True, check=False)
        if "mount" in result.stderr or "unshare" in result.stderr:
            raise suite.Skip(f"no mount namespace here: {result.stderr.strip()[:80]}")
        assert result.returncode == 0, result.stderr
        found, status = result.stdout.split()
        assert ours(found), found
        assert status == "0"


def test_without_a_driver_programs_are_told_so() -> None:
    code = (
        "import ctypes\ntry: ctypes.CDLL('libcuda.so.1')\nexcept OSError as e: print('none:', e)\n"
        "cuda = ctypes.CDLL(None)\nprint(cuda.cuInit(0), cuda.nvmlInit_v2(), cuda.cuMemAlloc_v2(None, 1))"
    )
    command = [sys.executable, "-c", code]
    result = subprocess.run(
        command, env=environment(LD_PRELOAD=str(LIBRARY)), capture_output=True, text=True, timeout=30, check=False
    )
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first.startswith("none:"), first
    assert "libcuda" in first, first
    assert second.split()[:2] == ["100", "12"], second
    assert len([line for line in result.stderr.splitlines() if "of the NVIDIA driver was not found" in line]) == 1, (
        result.stderr
    )


def test_a_program_without_cuda_opens_nothing_more() -> None:
    with tempfile.TemporaryDirectory() as work:
        source = Path(work) / "show.c"
        source.write_text(
            "#include <stdio.h>\n#include <stdlib.h>\n"
            'int main(void) { return system("exec cat /proc/$PPID/maps; ls /proc/$PPID/fd"); }\n'
        )
        program = Path(work) / "show"
        subprocess.run(["gcc", str(source), "-o", str(program)], check=True)
        result = subprocess.run(
            ["sh", "-c", f"{program}; true"],
            env=environment(LD_PRELOAD=str(LIBRARY), LD_LIBRARY_PATH=str(DRIVER)),
            capture_output=True,
            text=True,
            check=True,
        )
        assert "libfractile.so" in result.stdout
        assert str(DRIVER) not in result.stdout, "the driver was loaded"
        assert "/region" not in result.stdout, "the region was opened"
        assert not result.stderr, result.stderr


def test_programs_with_sanitizers_start_under_it() -> None:
    """Their initialisation calls dlsym when strcmp does not work yet."""
    source = (
        '#include <dlfcn.h>\n#include <stdio.h>\nint main(void)\n{ void *h = dlopen("libcuda.so.1", 2);\n'
        'int (*init)(unsigned) = (int (*)(unsigned))dlsym(h, "cuInit"); printf("%d\\n", init(0)); return 0; }\n'
    )
    started = 0
    with tempfile.TemporaryDirectory() as work:
        (Path(work) / "program.c").write_text(source)
        for flags in (["address", "-static-libasan"], ["thread"], ["undefined"]):
            build = ["gcc", f"-fsanitize={flags[0]}", *flags[1:], "program.c", "-o", "program", "-ldl"]
            if subprocess.run(build, cwd=work, capture_output=True, check=False).returncode:
                continue  # this compiler has no such runtime
            env = environment(LD_PRELOAD=str(LIBRARY), LD_LIBRARY_PATH=str(DRIVER), ASAN_OPTIONS="detect_leaks=0")
            result = subprocess.run(
                [f"{work}/program"], env=env, capture_output=True, text=True, timeout=60, check=False
            )
            assert result.stdout == "0\n", f"{flags[0]}: status {result.returncode}: {result.stderr[-300:]}"
            started += 1
    if not started:
        raise suite.Skip("the compiler has no sanitizers")


def milliseconds(command: list[str], rounds: int, **changes: str) -> float:
    env = environment(**changes)
    times: list[float] = []
    for _ in range(rounds):
        began = time.monotonic()
        os.waitpid(os.posix_spawn(command[0], command, env), 0)
        times.append((time.monotonic() - began) * 1000)
    return statistics.median(times)


def test_a_program_without_cuda_starts_as_fast_as_before() -> None:
    without, with_it = [], []
    for _ in range(5):  # alternating, so that a busy machine is busy for both
        without.append(milliseconds(["/bin/true"], 40))
        with_it.append(milliseconds(["/bin/true"], 40, LD_PRELOAD=str(LIBRARY)))
    base, now = min(without), min(with_it)
    print(f"     /bin/true: {base:.3f} ms, with the library {now:.3f} ms")
    assert now - base < 1.0, f"{base:.3f} ms became {now:.3f} ms"


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
