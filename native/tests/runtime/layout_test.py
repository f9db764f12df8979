"""The stand-in's layouts against the vendor's headers; needs `make -C native wheels`."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import suite

HERE = Path(__file__).resolve().parent

WHEELS = Path(os.environ.get("FRACTILE_CUDA_WHEELS") or Path.home() / ".cache/fractile/cuda")
# What the compiler's own header, which is in another wheel, has for a compiler that is not NVIDIA's.
DECORATIONS = [
    "__host__",
    "__device__",
    "__global__",
    "__device_builtin__",
    "__cudart_builtin__",
    "__device_builtin_texture_type__",
    "__device_builtin_surface_type__",
    "CUDARTAPI",
    "CUDARTAPI_CDECL",
    "CUDART_CB",
]


def same(runtime: int, generation: str) -> None:
    header = next((WHEELS / generation).rglob("cuda_runtime_api.h"), None)
    if not header:
        raise suite.Skip(f"no headers of CUDA {generation}; run make -C native wheels")
    with tempfile.TemporaryDirectory() as work:
        crt = Path(work) / "crt"
        crt.mkdir()
        defines = [f"#define {name}" for name in DECORATIONS]
        defines += [f"#define {name}(n) __attribute__((aligned(n)))" for name in ("__align__", "__builtin_align__")]
        (crt / "host_defines.h").write_text("\n".join(["#pragma once", *defines, ""]))
        command = [
            "cc",
            "-fsyntax-only",
            f"-DRUNTIME={runtime}",
            f"-I{work}",
            f"-I{header.parent}",
            f"-I{HERE.parents[1] / 'abi'}",
        ]
        compiled = subprocess.run([*command, f"-I{HERE}", str(HERE / "layout_check.c")], capture_output=True, text=True)
        assert compiled.returncode == 0, compiled.stderr[:1500]


def test_layouts_of_12_are_the_vendors() -> None:
    same(12, "12.9")


def test_layouts_of_13_are_the_vendors() -> None:
    same(13, "13.5")


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
