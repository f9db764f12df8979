"""Compares the figures of ptx_texts.h, and so the results of the library and the simulated driver, with NVIDIA's own
ptxas (fetched by `make -C native programs`)."""

import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import suite

OUT = Path(os.environ["OUT"])
WORK = Path(os.environ["SIMGPU_DIR"])
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fractile"
PROGRAMS = Path(os.environ.get("FRACTILE_PROGRAMS") or CACHE / "programs")


def ptxas() -> str:
    found = next(PROGRAMS.glob("venv/lib/python3*/site-packages/nvidia/**/bin/ptxas"), None) or which("ptxas")
    if not found:
        raise suite.Skip("no ptxas here (make -C native programs)")
    return str(found)


def texts() -> Iterator[tuple[str, bytes, int, int]]:
    """Name, text, bytes in the table, bytes in the library's result."""
    out = subprocess.run([OUT / "tests/interposer/ptx_unit_test", "texts"], stdout=subprocess.PIPE, check=True).stdout
    fields = out.split(b"\0")[:-1]
    for i in range(0, len(fields), 4):
        yield fields[i].decode(), fields[i + 1], int(fields[i + 2]), int(fields[i + 3])


def variables(elf: bytes) -> int:
    """Bytes of all sections .nv.global* one after the other, those with values first."""
    offset = struct.unpack_from("<Q", elf, 40)[0]
    each, count, names_at = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * each) for i in range(count)]
    names = elf[sections[names_at][4] :][: sections[names_at][5]]
    found = [(names[s[0] :].split(b"\0")[0], s[5], s[8]) for s in sections]
    total = 0
    for _, size, align in sorted((s for s in found if s[0].startswith(b".nv.global")), reverse=True):
        total = -(-total // align) * align + size
    return total


def compiled(compiler: str, text: bytes) -> int | str:
    source, target = WORK / "text.ptx", WORK / "text.cubin"
    source.write_bytes(text)
    command = [compiler, "-arch=sm_80", source, "-o", target]
    answer = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return answer.stdout.decode() if answer.returncode else variables(target.read_bytes())


def test_the_table_says_what_ptxas_says_and_the_library_never_less() -> None:
    compiler, wrong = ptxas(), list[str]()
    for name, text, expected, read in texts():
        found = compiled(compiler, text)
        if isinstance(found, str) or found != expected or read < found:
            wrong.append(f"{name}: ptxas {found}, ptx_texts.h {expected}, the library {read}")
    assert not wrong, "; ".join(wrong)


if __name__ == "__main__":
    sys.exit(suite.run(globals()))
