"""Writes the lists of driver and NVML symbols from the vendor's headers; run by hand when a new CUDA version comes out.

    python3 native/symbols/generate.py HEADERS/11.8 HEADERS/12.9 HEADERS/13.5 [--check]

Each HEADERS/<generation> is a directory that contains, at any depth, cuda.h, cudaTypedefs.h and nvml.h of that
generation: the unpacked wheels nvidia-cuda-runtime(-cu11, -cu12) and nvidia-nvml-dev(-cu11, -cu12). The headers stay
outside the repository; the lists are committed:

    cuda.txt         symbol, generation in which it first appears, generation in which it was last seen
    nvml.txt         the same for NVML
    procaddress.txt  answers of cuGetProcAddress: name, first version, thread mode (0 any, 2 per-thread), symbol

procaddress.txt is derived from typedef names (PFN_<name>_v<version>[_ptsz|_ptds]): the lookup key is not the name
alone. With --check nothing is written; the exit status shows whether the committed lists match the headers.
"""

import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

# A header declares other names when per-thread streams are the default and when the driver itself is built.
CUDA_MODES = ([], ["-DCUDA_API_PER_THREAD_DEFAULT_STREAM"], ["-D__CUDA_API_VERSION_INTERNAL"])
NVML_MODES = ([], ["-DNVML_NO_UNVERSIONED_FUNC_DEFS"])
CUDA_HEADERS = ("cuda.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h", "cudaProfiler.h")

# Not in any header of these wheels, but requested by the runtime and declared in cudaProfiler.h.
PROFILER = ("cuProfilerInitialize", "cuProfilerStart", "cuProfilerStop")

# Names whose newer form is not "the same name with a number".
RENAMED = {("cuGraphInstantiate", 12000, 0): "cuGraphInstantiateWithFlags"}


def preprocess(header: Path, flags: list[str]) -> str:
    """The preprocessed header. Headers of other projects that it includes are not needed: only names matter."""
    text = header.read_text(errors="replace")
    foreign = re.compile(r'#\s*include\s*[<"](GL/|EGL/|vdpau/)[^\n]*')
    source = foreign.sub("", text)
    command = ["gcc", "-E", "-P", "-w", *flags, f"-I{header.parent}", "-x", "c", "-"]
    return subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout


def find(root: Path, name: str) -> Path | None:
    return next(iter(sorted(root.rglob(name))), None)


def cuda_symbols(root: Path) -> set[str]:
    names = set(PROFILER)
    for header in CUDA_HEADERS:
        path = find(root, header)
        for flags in CUDA_MODES if path else ():
            names |= set(re.findall(r"\bCUresult\s+(?:CUDAAPI\s+)?(cu[A-Z]\w*)\s*\(", preprocess(path, flags)))
    return names


def nvml_symbols(root: Path) -> set[str]:
    path = find(root, "nvml.h")
    if path is None:
        raise SystemExit(f"no nvml.h below {root}")
    names: set[str] = set()
    for flags in NVML_MODES:
        names |= set(re.findall(r"\b(nvml[A-Z]\w*)\s*\(", preprocess(path, flags)))
    return names


def typedefs(root: Path) -> set[tuple[str, int, int]]:
    """(name, version, thread mode) of every function pointer type."""
    keys = set()
    for path in sorted(root.rglob("cuda*Typedefs.h")):
        for name, version, thread in re.findall(
            r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", path.read_text(errors="replace")
        ):
            keys.add((name, int(version), 2 if thread else 0))
    return keys


def symbol_order(symbol: str) -> int:
    found = re.search(r"_v(\d+)(_pts[zd]|_ptds)?$", symbol)
    return int(found[1]) if found else 1


def family(symbols: set[str], name: str, thread: int) -> list[str]:
    """All forms of a name, oldest first."""
    tail = "_pt(?:sz|ds)" if thread else ""
    pattern = re.compile(rf"{re.escape(name)}(?:_v\d+)?{tail}$")
    return sorted((s for s in symbols if pattern.match(s)), key=symbol_order)


def answers(symbols: set[str], keys: set[tuple[str, int, int]]) -> list[tuple[str, int, int, str]]:
    rows = []
    for name, thread in sorted({(n, t) for n, _, t in keys}):
        versions = sorted(v for n, v, t in keys if (n, t) == (name, thread))
        kept = [v for v in versions if (name, v, thread) not in RENAMED]
        forms = family(symbols, name, thread)
        rows += [(name, v, thread, RENAMED[name, v, thread]) for v in versions if (name, v, thread) in RENAMED]
        if not forms and name.startswith("cuWGL"):
            continue  # Windows only
        if len(forms) < len(kept):
            raise SystemExit(f"{name}: {len(kept)} versions {kept} but only {forms}")
        rows += [(name, v, thread, s) for v, s in zip(kept, forms[len(forms) - len(kept) :], strict=True)]
        # Forms without a typedef count as the oldest version.
        for form in forms[: len(forms) - len(kept)]:
            if (name, 2000, thread) not in {(r[0], r[1], r[2]) for r in rows}:
                rows.append((name, 2000, thread, form))
    return sorted(rows)


def first_and_last(per_generation: dict[str, set[str]]) -> list[str]:
    generations = list(per_generation)
    lines = []
    for name in sorted(set().union(*per_generation.values())):
        seen = [g for g in generations if name in per_generation[g]]
        lines.append(f"{name} {seen[0]} {seen[-1]}")
    return lines


def main(arguments: list[str]) -> int:
    check = "--check" in arguments
    roots = {Path(a).name: Path(a) for a in arguments if a != "--check"}
    if not roots:
        raise SystemExit(__doc__)
    cuda = {g: cuda_symbols(r) for g, r in roots.items()}
    nvml = {g: nvml_symbols(r) for g, r in roots.items()}
    every = set().union(*cuda.values())
    keys = set().union(*(typedefs(r) for r in roots.values())) | set(RENAMED)
    lists = {
        "cuda.txt": first_and_last(cuda),
        "nvml.txt": first_and_last(nvml),
        "procaddress.txt": [" ".join(map(str, row)) for row in answers(every, keys)],
    }
    stale = []
    for name, lines in lists.items():
        text = "\n".join(lines) + "\n"
        path = HERE / name
        if check and (not path.exists() or path.read_text() != text):
            stale.append(name)
        elif not check:
            path.write_text(text)
            print(f"{name}: {len(lines)} lines")
    if stale:
        print(f"these lists are not what the headers declare: {', '.join(stale)}; run generate.py without --check")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
