"""Kubelet's own record of the holders of device ids: ``kubelet_internal_checkpoint``, next to the plugins' sockets.

It is the only place that names ordinary init containers and pod UIDs (evidence/kubelet.md#checkpoint). Kubelet does not
guarantee its format, so readers must be able to do without it: WireError is normal.
"""

import hashlib
from collections.abc import Collection, Iterable, Set

import msgspec

from fractile.errors import WireError
from fractile.model.units import ContainerName, PodUID
from fractile.wire.fractile.device_ids import compact

FILE_NAME = "kubelet_internal_checkpoint"

_SMALL = 4096  # bytes; a larger entry is recognised by its digest
_NO_NUMA = "-1"  # kubelet's key for devices without a NUMA node


class Recorded(msgspec.Struct, frozen=True):
    """One container's ids of one resource, and the plugin's answer to Allocate as kubelet keeps it (protobuf)."""

    uid: PodUID
    container: ContainerName
    resource: str
    ids: Set[str]
    answer: bytes = b""


class _Entry(msgspec.Struct, rename="pascal"):
    pod_uid: str = msgspec.field(name="PodUID")
    container_name: str
    resource_name: str
    device_ids: dict[str, list[str]] = msgspec.field(name="DeviceIDs")
    alloc_resp: bytes | None = None  # base64 in JSON, on both sides


class _Data(msgspec.Struct, rename="pascal"):
    pod_device_entries: list[msgspec.Raw] | None = None


class _Checkpoint(msgspec.Struct, rename="pascal"):
    data: _Data


class _FullData(_Data, rename="pascal"):
    registered_devices: dict[str, msgspec.Raw] | None = None  # lists of ids, read one by one: each may be 60,000


class _FullCheckpoint(msgspec.Struct, rename="pascal"):
    data: _FullData
    checksum: int = 0


_decoder = msgspec.json.Decoder(_Checkpoint)
_entry_decoder = msgspec.json.Decoder(_Entry)
_full_decoder = msgspec.json.Decoder(_FullCheckpoint)
_ids_decoder = msgspec.json.Decoder(list[str] | None)
_encoder = msgspec.json.Encoder()


def decode(text: bytes) -> tuple[Recorded, ...]:
    """Decode the entries. The tens of thousands of registered ids in the same file are skipped."""
    try:
        return _kept.decode(_decoder.decode(text).data.pod_device_entries or ())
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(
            f"kubelet's checkpoint does not have the form of any supported Kubernetes version: {e}"
        ) from None


def registered(text: bytes, of: Collection[str] | None = None) -> dict[str, list[str]]:
    """The registered healthy ids of each resource, or of those in ``of``, from a real or simulated kubelet."""
    try:
        raw = _full_decoder.decode(text).data.registered_devices or {}
        return {name: _ids_decoder.decode(ids) or [] for name, ids in raw.items() if of is None or name in of}
    except (msgspec.DecodeError, UnicodeError, RecursionError) as e:
        raise WireError(
            f"kubelet's checkpoint does not have the form of any supported Kubernetes version: {e}"
        ) from None


def encode(entries: list[Recorded], registered: dict[str, list[str]]) -> bytes:
    """The file as a simulated kubelet writes it. The checksum is 0: only kubelet itself reads it."""
    raw = [
        msgspec.Raw(_encoder.encode(_Entry(e.uid, e.container, e.resource, {_NO_NUMA: sorted(e.ids)}, e.answer)))
        for e in entries
    ]
    lists = {resource: msgspec.Raw(_encoder.encode(ids)) for resource, ids in registered.items()}
    return _encoder.encode(_FullCheckpoint(_FullData(raw, lists), 0))


def _recorded(raw: bytes) -> Recorded:
    entry = _entry_decoder.decode(raw)
    ids = compact([i for ids in entry.device_ids.values() for i in ids])
    return Recorded(
        PodUID(entry.pod_uid), ContainerName(entry.container_name), entry.resource_name, ids, entry.alloc_resp or b""
    )


def key_of(encoded: bytes) -> bytes:
    """The key by which an encoded entry is recognised: a container with 16,000 ids has a megabyte of them."""
    return encoded if len(encoded) <= _SMALL else hashlib.blake2b(encoded, digest_size=16).digest()


class _Kept:
    """Cache of the entries read last: the file names all containers of the node, and most are unchanged at the next
    reading. Entries of deleted containers are dropped, so the agent does not grow with the pods it has seen.
    Thread-safe: the cache is replaced as a whole."""

    def __init__(self) -> None:
        self._entries: dict[bytes, Recorded] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def decode(self, entries: Iterable[msgspec.Raw]) -> tuple[Recorded, ...]:
        before, now, found = self._entries, dict[bytes, Recorded](), list[Recorded]()
        for raw in map(bytes, entries):
            key = key_of(raw)
            one = now[key] = before.get(key) or _recorded(raw)
            found.append(one)
        self._entries = now
        return tuple(found)


_kept = _Kept()
