"""The two files that gpu-manager's library reads in ``/etc/vcuda``: ``vcuda.config`` and ``pids.config``.

Names and order of the fields: evidence/gpu-manager.md#files-of-the-library, a packed struct that ends on a multiple of
8 bytes. Numbers are little endian, texts are padded with NUL, and pids are plain 32-bit integers. Unknown fields stay
0.
"""

import struct
from collections.abc import Sequence

import msgspec

from fractile.errors import WireError

CONFIG_NAME = "vcuda.config"
PIDS_NAME = "pids.config"

MAX_PIDS = 1024  # the library's own table (MAX_PIDS); more would be read past its end

_CONFIG = struct.Struct("<48si4044s4096s16sQiiiii4x")
CONFIG_SIZE = _CONFIG.size
_PID = struct.Struct("<i")


class VcudaConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What one container may use. ``memory`` in bytes; ``cores`` and ``limit`` in percent of a card.

    ``limit`` 0: a hard limit at ``cores``; otherwise the container may use up to ``limit`` while the card is otherwise
    idle. ``driver``: major and minor version. ``enabled``: whether the library limits anything at all.
    """

    pod_uid: str
    container: str
    memory: int
    cores: int
    limit: int = 0
    bus_id: str = ""
    driver: tuple[int, int] = (0, 0)
    enabled: bool = True


def encode_config(config: VcudaConfig) -> bytes:
    """Encode the whole file; WireError when a value does not fit."""
    try:
        return _CONFIG.pack(
            _text(config.pod_uid, 48),
            config.limit,
            b"",
            _text(config.container, 4096),
            _text(config.bus_id, 16),
            config.memory,
            config.cores,
            int(not config.limit),
            *config.driver,
            int(config.enabled),
        )
    except struct.error as e:
        raise WireError(f"{CONFIG_NAME} cannot describe container {config.container[:80]}: {e}") from None


def decode_config(data: bytes) -> VcudaConfig:
    """The inverse of ``encode_config``; WireError on anything that it does not write."""
    if len(data) != CONFIG_SIZE:
        raise WireError(f"{CONFIG_NAME} has {CONFIG_SIZE} bytes, not {len(data)}")
    uid, limit, _, container, bus_id, memory, cores, _, major, minor, enabled = _CONFIG.unpack(data)
    try:
        config = VcudaConfig(
            pod_uid=uid.rstrip(b"\0").decode("ascii"),
            container=container.rstrip(b"\0").decode("ascii"),
            memory=memory,
            cores=cores,
            limit=limit,
            bus_id=bus_id.rstrip(b"\0").decode("ascii"),
            driver=(major, minor),
            enabled=bool(enabled),
        )
    except UnicodeDecodeError:
        raise WireError(f"{CONFIG_NAME} has a text that is not ASCII") from None
    if encode_config(config) != data:
        raise WireError(f"{CONFIG_NAME} has data where it must be empty")
    return config


def encode_pids(pids: Sequence[int]) -> bytes:
    """Encode the lowest ``MAX_PIDS`` pids, in order; WireError when one is not a pid."""
    try:
        return b"".join(_PID.pack(pid) for pid in sorted(set(pids))[:MAX_PIDS])
    except struct.error as e:
        raise WireError(f"{PIDS_NAME} cannot hold these pids: {e}") from None


def decode_pids(data: bytes) -> tuple[int, ...]:
    """The inverse of ``encode_pids``; WireError when the file ends within a number."""
    if len(data) % _PID.size:
        raise WireError(f"{PIDS_NAME} ends within a number")
    return tuple(pid for (pid,) in _PID.iter_unpack(data))


def _text(text: str, size: int) -> bytes:
    """The text, terminated by a NUL."""
    if len(text) >= size or not text.isascii() or "\0" in text:
        raise WireError(f"{text[:80]!r} cannot stand in {CONFIG_NAME}")
    return text.encode("ascii")
