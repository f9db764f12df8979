"""Reads from a shared library what a loader would read, so that tests need no readelf."""

import struct
from pathlib import Path

DYNAMIC, GNU_STACK = 2, 0x6474E551
NEEDED, STRTAB, SYMTAB, SONAME, TEXTREL, FLAGS = 1, 5, 6, 14, 22, 30
INIT, INIT_ARRAY_SIZE, HASH, VERNEED, VERNEED_NUMBER = 12, 27, 4, 0x6FFFFFFE, 0x6FFFFFFF
EXECUTABLE, FLAG_TEXTREL = 1, 4


class Library:
    def __init__(self, path: Path):
        self.data = path.read_bytes()
        assert self.data[:6] == b"\x7fELF\x02\x01", f"{path} is no 64-bit little-endian ELF file"
        offset, size, count = self.at("<Q", 32)[0], *self.at("<HH", 54)
        self.machine = self.at("<H", 18)[0]
        self.headers = [self.at("<IIQQQQQQ", offset + i * size) for i in range(count)]
        self.dynamic = self._dynamic()

    def at(self, form: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(form, self.data, offset)

    def place(self, address: int) -> int:
        """File offset of an address."""
        return next(
            address - v + o for kind, _, o, v, _, size, *_ in self.headers if kind == 1 and v <= address < v + size
        )

    def text(self, offset: int) -> str:
        start = self.place(self.dynamic[STRTAB][0]) + offset
        return self.data[start : self.data.index(b"\0", start)].decode()

    def _dynamic(self) -> dict[int, list[int]]:
        offset, size = next((h[2], h[5]) for h in self.headers if h[0] == DYNAMIC)
        entries: dict[int, list[int]] = {}
        for i in range(0, size, 16):
            tag, value = self.at("<QQ", offset + i)
            if tag == 0:
                break
            entries.setdefault(tag, []).append(value)
        return entries

    def names(self, tag: int) -> list[str]:
        return [self.text(offset) for offset in self.dynamic.get(tag, [])]

    def exported(self) -> set[str]:
        table, end = self.place(self.dynamic[SYMTAB][0]), self.place(self.dynamic[STRTAB][0])
        found = set()
        for offset in range(table + 24, table + 24 * self._symbol_count(table, end), 24):
            name, info, _, section, _, _ = self.at("<IBBHQQ", offset)
            if section and info >> 4:  # defined, and not local
                found.add(self.text(name))
        return found

    def _symbol_count(self, table: int, end: int) -> int:
        if HASH in self.dynamic:
            return self.at("<II", self.place(self.dynamic[HASH][0]))[1]
        return (end - table) // 24  # ld puts the strings directly after the table

    def versions(self) -> set[str]:
        """Versions of the symbols that it needs, such as GLIBC_2.17."""
        found: set[str] = set()
        at = self.place(self.dynamic[VERNEED][0])
        for _ in range(self.dynamic[VERNEED_NUMBER][0]):
            _, count, _, first, following = self.at("<HHIII", at)
            entry = at + first
            for _ in range(count):
                _, _, _, name, step = self.at("<IHHII", entry)
                found.add(self.text(name))
                entry += step
            at += following
        return found

    def executable_stack(self) -> bool:
        flags = [h[1] for h in self.headers if h[0] == GNU_STACK]
        return not flags or bool(flags[0] & EXECUTABLE)

    def text_relocations(self) -> bool:
        return TEXTREL in self.dynamic or bool(self.dynamic.get(FLAGS, [0])[0] & FLAG_TEXTREL)

    def functions_at_load_time(self) -> int:
        return (INIT in self.dynamic) + self.dynamic.get(INIT_ARRAY_SIZE, [0])[0] // 8
