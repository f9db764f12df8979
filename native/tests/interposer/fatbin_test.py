"""Fat binaries: the results of the library's objects compared with those of third-party decoders and encoders, on the
vendor's own libraries of CUDA 11, 12 and 13 (`make -C native wheels`), and on programs packed here with lz4 and
zstandard."""

import json
import math
import os
import random
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from suite import Skip, run

OUT = Path(os.environ["OUT"])
READER = OUT / "tests" / "interposer" / "image_unit_test"
WHEELS = Path(os.environ.get("FRACTILE_CUDA_WHEELS", Path.home() / ".cache" / "fractile" / "cuda"))
WORK = Path(os.environ["SIMGPU_DIR"])
ARCH = 90

sys.path.insert(0, str(WHEELS / "encoders"))
try:
    import lz4.block
    import zstandard
except ImportError as missing:
    print(f"other authors' encoders are not there: {missing} (make -C native wheels)")
    print("0 passed, 0 failed, 1 skipped")
    sys.exit(0)

ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")


def ask(mode: str, data: bytes, argument: int | str) -> subprocess.CompletedProcess[bytes]:
    path = WORK / "input"
    path.write_bytes(data)
    return subprocess.run([READER, mode, path, str(argument)], stdout=subprocess.PIPE, check=False)


def texts() -> Iterator[bytes]:
    """Texts of all lengths, from random to monotonous."""
    source = random.Random(7)
    python = Path(sys.executable).resolve().read_bytes()
    for size in (1, 2, 17, 255, 256, 1000, 65_537, 400_000):
        yield source.randbytes(size)
        yield bytes(size)
        yield python[:size]
        yield bytes(source.choices(b"abc", [90, 9, 1], k=size))
    yield python[:3_000_000]


def test_what_lz4_packs_comes_out_as_it_was() -> None:
    for text in texts():
        for mode in ("default", "fast", "high_compression"):
            packed = lz4.block.compress(text, mode=mode, store_size=False)
            assert ask("lz4", packed, len(text)).stdout == text, (mode, len(text))


def test_what_zstandard_packs_comes_out_as_it_was() -> None:
    for text in texts():
        for level in (-5, 1, 3, 12, 19):
            packed = zstandard.ZstdCompressor(level=level, write_checksum=level > 0).compress(text)
            assert ask("zstd", packed, len(text)).stdout == text, (level, len(text))


def test_a_stream_that_is_damaged_is_refused_or_gives_other_bytes_but_never_more() -> None:
    source = random.Random(8)
    text = Path(sys.executable).resolve().read_bytes()[:60_000]
    for mode, packed in (("zstd", zstandard.compress(text, 9)), ("lz4", lz4.block.compress(text, store_size=False))):
        for _ in range(100):
            damaged = bytearray(packed)
            damaged[source.randrange(len(damaged))] ^= 1 << source.randrange(8)
            answer = ask(mode, bytes(damaged), len(text))
            assert answer.returncode in (0, 1) and len(answer.stdout) <= len(text)


# ---- programs packed here ----


def program(variables: int, code: int) -> bytes:
    """A program without kernels."""
    names = b"\0.nv.global\0.nv.shared.k\0.shstrtab\0"
    sections = struct.pack("<64x")
    sections += struct.pack("<IIQQQQIIQQ", 1, 8, 3, 0, 64, variables, 0, 0, 8, 0)
    sections += struct.pack("<IIQQQQIIQQ", 12, 8, 3, 0, 64, 1 << 30, 0, 0, 8, 0)
    sections += struct.pack("<IIQQQQIIQQ", 25, 3, 0, 0, 64, len(names), 0, 0, 1, 0)
    body = names + random.Random(code).randbytes(code - 64 - len(names) - len(sections))
    head = (
        b"\x7fELF\2\1\1"
        + bytes(9)
        + struct.pack("<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, 4, 3)
    )
    return head + body + sections


def fat(*entries: tuple[int, int, bytes, str]) -> bytes:
    """A fat binary; each entry is (kind, arch, program, compression)."""
    rest = b""
    for kind, arch, text, how in entries:
        payload = {
            "": lambda t: t,
            "lz4": lambda t: lz4.block.compress(t, store_size=False),
            "zstd": zstandard.compress,
        }[how](text)
        flags = 0x11 | {"": 0, "lz4": 0x2000, "zstd": 0x8000}[how]
        padded = payload + bytes(-len(payload) % 8)
        rest += (
            ENTRY.pack(
                kind,
                0x101,
                64,
                len(padded),
                len(payload) if how else 0,
                0,
                8,
                1,
                arch,
                0,
                0,
                flags,
                0,
                len(text) if how else 0,
            )
            + padded
        )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(rest)) + rest


def read(image: bytes, arches: int | str = ARCH) -> list[int]:
    return [int(n) for n in ask("read", image, arches).stdout.split()][1:]


def test_variables_of_packed_programs_are_counted() -> None:
    for how in ("", "lz4", "zstd"):
        assert read(fat((2, 90, program(1 << 30, 9000), how))) == [9000, 1 << 30, 1, 9000, 0], how


def test_the_largest_that_the_card_can_run_counts() -> None:
    text = (
        b".version 8.0\n.target sm_80\n.visible .global .align 4 .b8 table[5000000];\n.visible .entry k() { ret; }\n\0"
    )
    entries = [
        (2, 80, program(1 << 30, 90_000), "lz4"),
        (2, 90, program(1000, 70_000), "zstd"),
        (1, 80, text, "zstd"),
        (2, 100, program(1 << 31, 99_000), ""),
    ]
    assert read(fat(*entries)) == [70_000, 5_000_000, 1, 70_000, 0]
    assert read(fat(*entries[:1], entries[3])) == [99_000, 1 << 31, 1, 99_000, 0], "none is for the card"


def test_machine_code_that_names_no_generation_counts_for_every_card() -> None:
    assert read(fat((2, 90, program(1000, 9000), ""), (2, 0, program(1 << 30, 7000), "")))[1] == 1 << 30


def test_where_one_of_several_cards_can_run_no_entry_all_count() -> None:
    image = fat((2, 80, program(1000, 9000), ""), (2, 100, program(1 << 30, 7000), ""))
    assert read(image, "80,86")[:2] == [9000, 1000]
    assert read(image, "80,70")[:2] == [9000, 1 << 30]


def test_an_unknown_packing_is_unreadable() -> None:
    image = bytearray(fat((2, 90, program(1000, 9000), "zstd")))
    image[16 + 64] ^= 0xFF
    assert read(bytes(image))[2] == 0


def lz4_literals(data: bytes) -> bytes:
    """An LZ4 block that only copies."""
    extra, last = divmod(len(data) - 15, 255)
    return b"\xf0" + b"\xff" * extra + bytes([last]) + data


def ptx(variables: int) -> bytes:
    table = b".global .b8 table[%d];" % variables if variables else b""
    return b".version 8.0 .target sm_80 .address_size 64 %s .visible .entry k() { ret; }" % table


def entry_with(payload: bytes, unpacked: int, flags: int) -> bytes:
    """An entry with this payload, whatever its contents."""
    entry = ENTRY.pack(1, 0x101, 64, len(payload), 0, 0, 0, 8, 80, 0, 0, flags, 0, unpacked) + payload
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry)) + entry


def test_what_the_flags_call_zstandard_is_not_read_as_lz4() -> None:
    """With a skippable frame in front of the real one, the same bytes are also a block of LZ4 with another text."""
    skipped = 0x12020  # in LZ4: five literals, and the last one four times more
    for spaces in range(70_000, 100_000):
        frame = zstandard.compress(ptx(1 << 30) + b" " * spaces)
        behind = skipped + len(frame)  # the frame's head
        extra = next(n for n in range(1, behind) if (behind - 1 - n - 15) // 255 + 1 == n)
        if 9 + behind - 1 - extra == len(ptx(1 << 30)) + spaces:
            break
    content = lz4_literals(bytes(behind - 1 - extra))[: 1 + extra] + ptx(0)
    payload = struct.pack("<II", 0x184D2A50, skipped) + content.ljust(skipped, b"\0") + frame
    unpacked = len(ptx(1 << 30)) + spaces
    assert len(lz4.block.decompress(payload, uncompressed_size=unpacked)) == unpacked
    assert read(entry_with(payload, unpacked, 0x8000))[1:3] == [1 << 30, 1]


def test_what_the_flags_call_packed_is_not_taken_for_machine_code() -> None:
    block = b"\x7fELF    " + struct.pack("<H", 1) + b"\0" + b"\0\1\0" * 20 + lz4_literals(ptx(1 << 30) + b" " * 100)
    text = lz4.block.decompress(block, uncompressed_size=7 + 19 + 20 * 4 + len(ptx(1 << 30)) + 100)
    assert text.lstrip(b"ELF ").startswith(b".version")
    image = entry_with(block, len(text), 0x2000)
    assert read(image)[1:3] == [1 << 30, 1]


def with_kernels(sizes: dict[str, int], banks: dict[str, int]) -> bytes:
    """Functions and banks of parameters; a function without a bank is called by others."""
    names, body, sections = b"\0.shstrtab\0", b"", [bytes(64)]
    for prefix, parts in ((".text.", sizes), (".nv.constant0.", banks)):
        for name, size in parts.items():
            sections.append(struct.pack("<IIQQQQIIQQ", len(names), 1, 2, 0, 64 + len(body), size, 0, 0, 1, 0))
            names += f"{prefix}{name}".encode() + b"\0"
            body += bytes(size)
    sections.append(struct.pack("<IIQQQQIIQQ", 1, 3, 0, 0, 64 + len(body), len(names), 0, 0, 1, 0))
    body += names
    head = struct.pack(
        "<HHIQQQIHHHHHH", 2, 190, 1, 0, 0, 64 + len(body), 0, 64, 56, 0, 64, len(sections), len(sections) - 1
    )
    return b"\x7fELF\2\1\1" + bytes(9) + head + body + b"".join(sections)


def test_a_function_counts_with_its_bank_and_the_first_one_with_all_that_is_no_kernels() -> None:
    image = with_kernels({"a": 5000, "b": 900, "called": 7000, "ab": 60}, {"a": 300, "ab": 400, "b": 500, "gone": 10})
    assert read(fat((2, 90, image, "zstd"))) == [
        len(image), 0, 1, len(image) - (900 + 500) - (60 + 400), 5300
    ]  # fmt: skip
    assert read(fat((2, 90, with_kernels({"a": 5000}, {}), "lz4")))[3:] == [len(with_kernels({"a": 5000}, {})), 0]


def test_of_several_programs_the_largest_function_counts() -> None:
    one, other = with_kernels({"a": 100, "b": 9000}, {"a": 4, "b": 4}), program(0, 70_000)
    first = max(len(one) - 104, len(other))
    assert read(fat((2, 90, one, "lz4"), (2, 90, other, "zstd"))) == [max(len(one), len(other)), 0, 1, first, 9004]


IN_A_CONTAINER = """
import ctypes, pathlib, sys
driver = ctypes.CDLL("libcuda.so.1")
context, module, free, total = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert driver.cuInit(0) == 0 and driver.cuCtxCreate_v2(ctypes.byref(context), 0, 0) == 0
result = driver.cuModuleLoadData(ctypes.byref(module), pathlib.Path(sys.argv[1]).read_bytes())
driver.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
print(result, (total.value - free.value) >> 20)
"""


def load(image: bytes, name: str) -> tuple[list[int], int]:
    """The results of a program in a container, and its peak on the simulated card, in MiB."""
    path = WORK / "image"
    path.write_bytes(image)
    environment = dict(
        os.environ, SIMGPU_CONTAINER=name, LD_LIBRARY_PATH=os.environ["DRIVER"], LD_PRELOAD=os.environ["LIBFRACTILE"]
    )
    answer = subprocess.run(
        [sys.executable, "-c", IN_A_CONTAINER, path], stdout=subprocess.PIPE, env=environment, check=True
    ).stdout
    host = json.loads(
        subprocess.run([Path(os.environ["DRIVER"]) / "simgpu-ctl", "json"], stdout=subprocess.PIPE, check=True).stdout
    )
    held = next(c for c in host["containers"] if c["name"] == name)
    return [int(n) for n in answer.split()], held["cards"][os.environ["CARD_A"]]["peak"] >> 20


def test_the_simulated_card_holds_what_is_charged_for_packed_programs() -> None:
    for how in ("", "lz4", "zstd"):
        for variables, expected in ((30 << 20, ([0, 286], 286)), (1 << 30, ([2, 256], 256))):
            found = load(fat((2, 80, program(variables, 9000), how)), f"{how}-{variables}")
            assert found == expected, (how, variables, found)


# ---- the vendor's ----


def expected(data: bytes, at: int) -> tuple[int, ...]:
    size = struct.unpack_from("<Q", data, at + 8)[0]
    entry, end, code, variables, first, each = at + 16, at + 16 + size, 0, 0, 0, 0
    while entry < end:
        kind, _, head, rest, packed, _, _, _, arch, _, _, flags, _, unpacked = ENTRY.unpack_from(data, entry)
        payload = data[entry + head : entry + head + rest][: packed or rest]
        entry += head + rest
        if not (kind == 2 and arch // 10 == ARCH // 10 and arch <= ARCH) and not (kind == 1 and arch <= ARCH):
            continue
        if flags & 0x8000:
            payload = zstandard.ZstdDecompressor().decompress(payload, max_output_size=unpacked)
        elif flags & 0x2000:
            payload = lz4.block.decompress(payload, uncompressed_size=unpacked)
        text = payload.split(b"\0")[0]
        length = len(text) + constants_of(text.decode()) if kind == 1 else len(payload)
        kernels = kernels_of(payload) if kind == 2 else []
        code = max(code, length)
        variables = max(variables, globals_of(payload) if kind == 2 else 0)
        first = max(first, length - sum(kernels) + max(kernels, default=0))
        each = max(each, max(kernels, default=0))
    return at, code, variables, 1, first, each


CONSTANT = re.compile(
    r"^[ \t]*(?:\.(?:visible|weak|extern)\s+)*\.const\s+\.align\s+(\d+)\s+\.[a-z](\d+)\s+[\w$]+((?:\[\d+\])*)",
    re.MULTILINE,
)


def constants_of(text: str) -> int:
    """Bytes of the constants that compilers declare, one per line and each aligned, in the order of the text."""
    total = 0
    for align, bits, lengths in CONSTANT.findall(text):
        total = -(-total // int(align)) * int(align)
        total += int(bits) // 8 * math.prod(int(n) for n in re.findall(r"\d+", lengths))
    return total


def kernels_of(elf: bytes) -> list[int]:
    parts = {name: size for name, size, _ in sections_of(elf)}
    text = {name[6:]: size for name, size in parts.items() if name.startswith(".text.")}
    banks = {name[14:]: size for name, size in parts.items() if name.startswith(".nv.constant0.")}
    return [size + banks[name] for name, size in text.items() if name in banks]


def sections_of(elf: bytes) -> list[tuple[str, int, int]]:
    """Name, size and alignment of each section."""
    offset = struct.unpack_from("<Q", elf, 40)[0]
    each, count, names_at = struct.unpack_from("<HHH", elf, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, offset + i * each) for i in range(count)]
    names = elf[sections[names_at][4] :][: sections[names_at][5]]
    return [(names[s[0] :].split(b"\0")[0].decode(), s[5], s[8]) for s in sections]


def globals_of(elf: bytes) -> int:
    total = 0
    for name, size, align in sections_of(elf):
        if name.startswith(".nv.global"):
            total = -(-total // max(align, 1)) * max(align, 1) + size
    return total


def test_the_vendors_libraries_of_three_generations_read_as_others_read_them() -> None:
    libraries = sorted((WHEELS / "fatbins").glob("nvidia/**/*.so*"))
    if not libraries:
        raise Skip("the vendor's libraries are not there (make -C native wheels)")
    for library in libraries:
        data = library.read_bytes()
        answer = subprocess.run(
            [READER, "scan", library, str(ARCH)], stdout=subprocess.PIPE, check=True
        ).stdout.decode()
        found = [tuple(int(n) for n in line.split()) for line in answer.splitlines()]
        assert found and found == [expected(data, at[0]) for at in found], library.name


if __name__ == "__main__":
    sys.exit(run(dict(globals())))
