"""Writes the C header and the Python module with the layout of the two shared files: `generate.py c OUT` and
`generate.py python OUT`.

A struct is laid out as written: no padding is ever added, and a field that would need some is an error."""

import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

SCHEMA = Path(__file__).with_name("schema.toml")
SCALARS = {"u8": (1, "B"), "u16": (2, "H"), "u32": (4, "I"), "u64": (8, "Q")}


class SchemaError(Exception):
    """The schema is inconsistent; the text says where."""


@dataclass(frozen=True)
class Field:
    name: str
    type: str  # of one element: a scalar, "char" or the name of a struct
    count: int | None  # None: not an array
    atomic: bool
    offset: int
    size: int


@dataclass(frozen=True)
class Struct:
    name: str
    fields: tuple[Field, ...]
    size: int
    alignment: int


@dataclass(frozen=True)
class Schema:
    version: int
    constants: dict[str, int]
    structs: dict[str, Struct]


def element(name: str, known: dict[str, Struct]) -> tuple[int, int]:
    """Size and alignment of one element."""
    if name == "char":
        return 1, 1
    if name in SCALARS:
        return SCALARS[name][0], SCALARS[name][0]
    if name in known:
        return known[name].size, known[name].alignment
    raise SchemaError(f"type {name} is not known (a struct must stand above its use)")


def lay_out(name: str, spec: dict[str, object], known: dict[str, Struct]) -> Struct:
    fields: list[Field] = []
    offset, alignment = 0, 1
    for field, value in spec.items():
        text, atomic = (value["type"], bool(value.get("atomic"))) if isinstance(value, dict) else (value, False)
        match = re.fullmatch(r"(\w+)(?:\[(\d+)\])?", str(text))
        if not match:
            raise SchemaError(f"{name}.{field}: {text!r} is not a type")
        kind, count = match[1], int(match[2]) if match[2] else None
        size, step = element(kind, known)
        if offset % step:
            raise SchemaError(f"{name}.{field} stands at {offset}, which is no multiple of {step}")
        fields.append(Field(field, kind, count, atomic, offset, size * (count or 1)))
        offset += fields[-1].size
        alignment = max(alignment, step)
    if offset % alignment:
        raise SchemaError(f"{name} has {offset} bytes, which is no multiple of {alignment}")
    return Struct(name, tuple(fields), offset, alignment)


def read_schema(path: Path = SCHEMA) -> Schema:
    tables = tomllib.loads(path.read_text())
    version, constants = tables.pop("version"), tables.pop("constants")
    structs: dict[str, Struct] = {}
    for name, spec in tables.items():
        structs[name] = lay_out(name, spec, structs)
    return Schema(version, constants, structs)


def number(value: int) -> str:
    return str(value) if value < 1 << 16 else f"{value:#x}"


# ---- C ----


def c_type(field: Field) -> str:
    if field.type == "char":
        return "char"
    if field.type in SCALARS:
        return f"_Atomic uint{field.type[1:]}_t" if field.atomic else f"uint{field.type[1:]}_t"
    return f"struct fr_{field.type}"


def c_struct(struct: Struct) -> list[str]:
    lines = [f"struct fr_{struct.name} {{"]
    for field in struct.fields:
        array = "" if field.count is None else f"[{field.count}]"
        lines.append(f"    {c_type(field)} {field.name}{array};")
    lines.append("};")
    lines.append(f'_Static_assert(sizeof(struct fr_{struct.name}) == {struct.size}, "size of {struct.name}");')
    for field in struct.fields:
        where = f"offsetof(struct fr_{struct.name}, {field.name}) == {field.offset}"
        lines.append(f'_Static_assert({where}, "{struct.name}.{field.name}");')
    return [*lines, ""]


def c_header(schema: Schema) -> str:
    lines = [
        "/* Written by native/region/generate.py from schema.toml, which says what the fields mean. */",
        "#ifndef FRACTILE_REGION_H",
        "#define FRACTILE_REGION_H",
        "",
        "#include <stdatomic.h>",
        "#include <stddef.h>",
        "#include <stdint.h>",
        "",
        f"#define FR_LAYOUT_VERSION {schema.version}u",
    ]
    for name, value in schema.constants.items():
        suffix = "ull" if value > 0xFFFFFFFF else "u"
        lines.append(f"#define FR_{name.upper()} {number(value)}{suffix}")
    lines.append("")
    for struct in schema.structs.values():
        lines += c_struct(struct)
    return "\n".join([*lines, "#endif", ""])


# ---- Python ----

PYTHON_TOP = '''"""The position of every field in the files shared with a container.

Written by native/region/generate.py from schema.toml, which says what the fields mean."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Field:
    """`code` is the struct module's code of one element; "" if the elements are structs, "s" for text."""

    offset: int
    size: int  # of the whole field
    code: str
    count: int  # of elements


@dataclass(frozen=True, slots=True)
class StructLayout:
    """A struct of `size` bytes. `at` is its offset in the buffer; a buffer that is too short raises struct.error."""

    size: int
    fields: Mapping[str, Field]

    def get(self, data: bytes | bytearray | memoryview, at: int, name: str, index: int = 0) -> int:
        field = self.fields[name]
        return struct.unpack_from("<" + field.code, data, at + field.offset + index * (field.size // field.count))[0]

    def put(self, data: bytearray | memoryview, at: int, name: str, value: int, index: int = 0) -> None:
        field = self.fields[name]
        struct.pack_into("<" + field.code, data, at + field.offset + index * (field.size // field.count), value)

    def get_bytes(self, data: bytes | bytearray | memoryview, at: int, name: str) -> bytes:
        field = self.fields[name]
        return struct.unpack_from(f"<{field.size}s", data, at + field.offset)[0]

    def put_bytes(self, data: bytearray | memoryview, at: int, name: str, value: bytes) -> None:
        """Pads with NUL; raises ValueError if the value is too long."""
        field = self.fields[name]
        if len(value) > field.size:
            raise ValueError(f"{name} takes {field.size} bytes, not {len(value)}")
        struct.pack_into(f"<{field.size}s", data, at + field.offset, value)

'''


def python_code(field: Field) -> str:
    if field.type == "char":
        return "s"
    return SCALARS[field.type][1] if field.type in SCALARS else ""


def python_struct(struct: Struct) -> list[str]:
    lines = [f"{struct.name.upper()}: Final = StructLayout(", f"    {struct.size},", "    {"]
    for field in struct.fields:
        numbers = f'{field.offset}, {field.size}, "{python_code(field)}", {field.count or 1}'
        lines.append(f'        "{field.name}": Field({numbers}),')
    return [*lines, "    },", ")"]


def python_module(schema: Schema) -> str:
    lines = [*PYTHON_TOP.splitlines(), "", f"VERSION: Final = {schema.version}"]
    for name, value in schema.constants.items():
        text = number(value)
        lines.append(f"{name.upper()}: Final = {text[:2] + text[2:].upper() if text.startswith('0x') else text}")
    for struct in schema.structs.values():
        lines += python_struct(struct)
    return "\n".join([*lines, ""])


def main(arguments: list[str]) -> int:
    writers = {"c": c_header, "python": python_module}
    if len(arguments) != 2 or arguments[0] not in writers:
        print("usage: generate.py c|python OUT", file=sys.stderr)
        return 2
    try:
        text = writers[arguments[0]](read_schema())
    except SchemaError as error:
        print(f"{SCHEMA.name}: {error}", file=sys.stderr)
        return 1
    Path(arguments[1]).write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
