"""The position of every field in the files shared with a container.

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


VERSION: Final = 2
LIMITS_MAGIC: Final = 0x32534D494C524600
REGION_MAGIC: Final = 0x324E4F4745524600
END_MAGIC: Final = 0x21444E4521444E45
MAX_CARDS: Final = 64
MAX_SLOTS: Final = 1024
MAX_OBJECTS: Final = 1024
UNIT_BYTES: Final = 512
FLAG_ISOLATION_OFF: Final = 1
FLAG_DIRECTORY_LOST: Final = 2
LIMITS_CARD: Final = StructLayout(
    168,
    {
        "uuid": Field(0, 96, "s", 96),
        "memory": Field(96, 8, "Q", 1),
        "context": Field(104, 8, "Q", 1),
        "unaccounted": Field(112, 8, "Q", 1),
        "cores": Field(120, 4, "I", 1),
        "cores_limit": Field(124, 4, "I", 1),
        "weight": Field(128, 4, "I", 1),
        "flags": Field(132, 4, "I", 1),
        "reserved": Field(136, 32, "Q", 4),
    },
)
LIMITS: Final = StructLayout(
    12800,
    {
        "magic": Field(0, 8, "Q", 1),
        "version": Field(8, 4, "I", 1),
        "size": Field(12, 4, "I", 1),
        "sequence": Field(16, 4, "I", 1),
        "card_count": Field(20, 4, "I", 1),
        "flags": Field(24, 4, "I", 1),
        "priority": Field(28, 4, "I", 1),
        "region_generation": Field(32, 8, "Q", 1),
        "arbiter": Field(40, 4, "I", 1),
        "reserved": Field(44, 4, "I", 1),
        "reserved2": Field(48, 16, "Q", 2),
        "pod_uid": Field(64, 64, "s", 64),
        "pod_namespace": Field(128, 256, "s", 256),
        "pod_name": Field(384, 256, "s", 256),
        "container": Field(640, 256, "s", 256),
        "cards": Field(896, 10752, "", 64),
        "padding": Field(11648, 1144, "Q", 143),
        "end": Field(12792, 8, "Q", 1),
    },
)
ACCOUNT: Final = StructLayout(
    128,
    {
        "charged": Field(0, 8, "Q", 1),
        "intent": Field(8, 8, "Q", 1),
        "applied": Field(16, 8, "Q", 1),
        "slack": Field(24, 8, "Q", 1),
        "frees": Field(32, 4, "I", 1),
        "contexts": Field(36, 4, "I", 1),
        "reserved": Field(40, 24, "Q", 3),
        "gpu_ns": Field(64, 8, "Q", 1),
        "launches": Field(72, 8, "Q", 1),
        "waited_ns": Field(80, 8, "Q", 1),
        "throttled_ns": Field(88, 8, "Q", 1),
        "reserved2": Field(96, 32, "Q", 4),
    },
)
REGION_CARD: Final = StructLayout(
    64,
    {
        "used": Field(0, 8, "Q", 1),
        "peak": Field(8, 8, "Q", 1),
        "refusals": Field(16, 8, "Q", 1),
        "held_ns": Field(24, 8, "Q", 1),
        "held_until": Field(32, 8, "Q", 1),
        "reserved": Field(40, 24, "Q", 3),
    },
)
SLOT: Final = StructLayout(
    64,
    {
        "state": Field(0, 4, "I", 1),
        "generation": Field(4, 4, "I", 1),
        "pid": Field(8, 4, "I", 1),
        "reaping": Field(12, 4, "I", 1),
        "start_time": Field(16, 8, "Q", 1),
        "pid_namespace": Field(24, 8, "Q", 1),
        "command": Field(32, 32, "s", 32),
    },
)
OBJECT: Final = StructLayout(
    320,
    {
        "state": Field(0, 4, "I", 1),
        "card": Field(4, 4, "I", 1),
        "origin": Field(8, 4, "I", 1),
        "origin_generation": Field(12, 4, "I", 1),
        "key": Field(16, 16, "Q", 2),
        "units": Field(32, 8, "Q", 1),
        "reserved": Field(40, 24, "Q", 3),
        "holders": Field(64, 128, "Q", 16),
        "own": Field(192, 128, "", 1),
    },
)
REGION: Final = StructLayout(
    128,
    {
        "magic": Field(0, 8, "Q", 1),
        "version": Field(8, 4, "I", 1),
        "header_size": Field(12, 4, "I", 1),
        "size": Field(16, 8, "Q", 1),
        "generation": Field(24, 8, "Q", 1),
        "card_count": Field(32, 4, "I", 1),
        "slot_count": Field(36, 4, "I", 1),
        "object_count": Field(40, 4, "I", 1),
        "account_size": Field(44, 4, "I", 1),
        "sequence": Field(48, 4, "I", 1),
        "reaped_ms": Field(52, 4, "I", 1),
        "escapes": Field(56, 8, "Q", 1),
        "object_lock": Field(64, 4, "I", 1),
        "slot_high": Field(68, 4, "I", 1),
        "object_high": Field(72, 4, "I", 1),
        "reserved": Field(76, 4, "I", 1),
        "reserved2": Field(80, 48, "Q", 6),
    },
)
