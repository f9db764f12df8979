"""PyTorch from PyPI, unmodified, over the stand-in for libcudart, under libfractile.so on simulated cards; run by
`make -C native frameworks`. FRAMEWORKS names the directory that fetch/frameworks.py filled. Prints a table. Every
figure in it is the judge's (host.py), and a row passes only if the judge agrees. No row uses cuBLAS or cuDNN: their
runtime is static.
"""

import importlib.metadata
import sys
import time

import torch_alone  # noqa: F401  imported for its rows
import torch_processes  # noqa: F401  imported for its rows
from host import CONTEXT, OUT, Host
from torch_row import QUOTA, VENV, Row, mib, rows, within


def one(title: str, function: Row, allocator: str) -> tuple[str, str]:
    """Whether the row passes, and the judge's figures or the failure."""
    try:
        with Host(str(VENV / "bin/python"), QUOTA, libraries=f"{OUT / 'tests/runtime'}:") as h:
            figures = function(h, allocator)
            within(h)
            return "ok", f"{figures}; peak {mib(h.peak())}"
    except Exception as error:
        return "FAIL", f"{type(error).__name__}: {error}"


def versions() -> str:
    site = next((VENV / "lib").glob("python3*")) / "site-packages"
    found = importlib.metadata.distributions(path=[str(site)])
    wanted = {d.metadata["Name"]: d.version for d in found if d.metadata["Name"].startswith(("torch", "nvidia-"))}
    return ", ".join(f"{name} {version}" for name, version in sorted(wanted.items(), reverse=True))


def chosen(arguments: list[str]) -> list[tuple[str, Row, str]]:
    every = [(title, function, a) for title, (function, allocators) in rows.items() for a in allocators]
    return [(t, f, a) for t, f, a in every if not arguments or any(part in f"{t} [{a}]" for part in arguments)]


def main(arguments: list[str]) -> int:
    looking = arguments[:1] == ["--look"]  # only check that ROWS selects a row, before gigabytes are fetched
    todo = chosen(arguments[looking:])
    if not todo:
        titles = "; ".join(rows)
        print(
            f"frameworks: ROWS names no row; a row is kept if its title contains one of these words: {titles}",
            file=sys.stderr,
        )
        return 2
    if looking:
        return 0
    began, failed, total = time.monotonic(), 0, 0
    print(
        f"PyTorch under libfractile.so on simgpu, quota {mib(QUOTA)} of 4096, a context {mib(CONTEXT)}; MiB by simgpu."
    )
    print(f"{versions()}; libcudart: tests/runtime.\n")
    for title, function, allocator in todo:
        good, figures = one(title, function, allocator)
        total += 1
        failed += good != "ok"
        print(f"{good:4} {title} [{allocator}]\n         {figures}", flush=True)
    print("\nNot to be had here: CuPy, cuBLAS, cuDNN and cuda-bindings 13 carry a static runtime, which stops at the")
    print("handshake with the vendor's driver; the handshake is not emulated.")
    print(f"\n{total - failed} passed, {failed} failed in {time.monotonic() - began:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
