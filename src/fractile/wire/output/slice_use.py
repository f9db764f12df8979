"""The output of ``fractile limits -o json``: the limits of one container and what its processes use. Version 1.

Memory is in bytes, ``gpuNs`` in nanoseconds of GPU time. Without a readable region the ``used*`` fields are null and
``problem`` says why. Programs must accept fields that they do not know.
"""

import msgspec

VERSION = 1


class _Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the parts."""


class CardUse(_Part, frozen=True, kw_only=True):
    uuid: str
    memory_bytes: int
    context_bytes: int
    unaccounted_bytes: int
    cores: int
    cores_limit: int
    weight: int
    used_bytes: int | None
    peak_bytes: int | None
    refusals: int | None
    shared_bytes: int | None  # part of ``used`` that outlives the allocating process, because others hold it


class HeldOnCard(_Part, frozen=True, kw_only=True):
    uuid: str
    bytes: int
    contexts: int
    gpu_ns: int


class ProcessUse(_Part, frozen=True, kw_only=True):
    pid: int  # as the process sees itself
    command: str
    cards: tuple[HeldOnCard, ...]


class SliceUse(_Part, frozen=True, kw_only=True):
    pod_uid: str
    namespace: str
    pod: str
    container: str
    enforced: bool
    cards: tuple[CardUse, ...]
    processes: tuple[ProcessUse, ...]
    problem: str = ""
    version: int = VERSION


def encode(use: SliceUse) -> str:
    return msgspec.json.format(msgspec.json.encode(use)).decode()


def decode(text: str | bytes) -> SliceUse:
    """The inverse of ``encode``, for programs and tests. Raises msgspec's errors."""
    return msgspec.json.decode(text, type=SliceUse)
