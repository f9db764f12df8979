"""A container's directory for tests, written field by field from the schema, so that a test can also write a wrong
one."""

import importlib.util
import os
import struct
from pathlib import Path
from types import ModuleType

NATIVE = Path(__file__).resolve().parents[2]
MIB = 2**20


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("region_generator", NATIVE / "region" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    os.sys.modules["region_generator"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


SCHEMA = _generator().read_schema()
C = SCHEMA.constants
CODES = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q"}


def size(name: str) -> int:
    return SCHEMA.structs[name].size


def field(struct_name: str, name: str):
    return next(f for f in SCHEMA.structs[struct_name].fields if f.name == name)


def put(data: bytearray, struct_name: str, at: int = 0, /, **values: int | str) -> None:
    for name, value in values.items():
        f = field(struct_name, name)
        if f.type == "char":
            struct.pack_into(f"<{f.count}s", data, at + f.offset, str(value).encode())
        else:
            struct.pack_into("<" + CODES[f.type], data, at + f.offset, value)


def get(data: bytes, struct_name: str, name: str, at: int = 0) -> int:
    f = field(struct_name, name)
    return struct.unpack_from("<" + CODES[f.type], data, at + f.offset)[0]


class Container:
    """`cards`: UUID -> bytes. `context`: the cost of a context on each card."""

    def __init__(self, directory: Path, cards: dict[str, int], *, context: int = 0, slots: int = 64, objects: int = 64):
        self._name(directory, list(cards), slots, objects)
        self.region.parent.mkdir(parents=True, exist_ok=True)
        self.limits.write_bytes(self._limits(cards, context))
        self.region.write_bytes(self._region())

    def _name(self, directory: Path, cards: list[str], slots: int, objects: int) -> None:
        self.directory, self.cards, self.slots, self.objects = directory, cards, slots, objects
        self.limits, self.region = directory / "limits", directory / "shared" / "region"

    @classmethod
    def there(cls, directory: Path, cards: list[str], *, slots: int = 64, objects: int = 64) -> "Container":
        """A container that was made before, possibly by another process."""
        container = cls.__new__(cls)
        container._name(directory, cards, slots, objects)
        return container

    def _limits(self, cards: dict[str, int], context: int) -> bytes:
        data = bytearray(size("limits"))
        put(data, "limits", magic=C["limits_magic"], version=SCHEMA.version, size=size("limits"), end=C["end_magic"])
        put(data, "limits", card_count=len(cards), region_generation=7, pod_name="test", container="main")
        for i, (uuid, memory) in enumerate(cards.items()):
            put(data, "limits_card", self.limits_card(i), uuid=uuid, memory=memory, context=context, weight=100)
        return bytes(data)

    def _region(self) -> bytes:
        data = bytearray(self.slot(self.slots) + self.objects * size("object"))
        put(data, "region", magic=C["region_magic"], version=SCHEMA.version, header_size=size("region"), size=len(data))
        put(data, "region", generation=7, card_count=len(self.cards), slot_count=self.slots, object_count=self.objects)
        put(data, "region", account_size=size("account"))
        return bytes(data)

    @staticmethod
    def limits_card(i: int) -> int:
        return field("limits", "cards").offset + i * size("limits_card")

    def card(self, i: int) -> int:
        return size("region") + i * size("region_card")

    def slot(self, i: int) -> int:
        per_slot = size("slot") + len(self.cards) * size("account")
        return self.card(len(self.cards)) + i * per_slot

    def account(self, slot: int, card: int) -> int:
        return self.slot(slot) + size("slot") + card * size("account")

    def write(self, path: Path, struct_name: str, at: int = 0, /, **values: int | str) -> None:
        """Changes fields in place, like the agent: the file is mapped."""
        data = bytearray(path.read_bytes())
        for name, value in values.items():
            put(data, struct_name, at, **{name: value})
            f = field(struct_name, name)
            with path.open("r+b") as file:
                file.seek(at + f.offset)
                file.write(data[at + f.offset : at + f.offset + f.size])

    def set_memory(self, card: int, memory: int) -> None:
        sequence = get(self.limits.read_bytes(), "limits", "sequence")
        self.write(self.limits, "limits", sequence=sequence + 1)
        self.write(self.limits, "limits_card", self.limits_card(card), memory=memory)
        self.write(self.limits, "limits", sequence=sequence + 2)
