"""Writes an OCI image as one file, which `ctr images import`, `podman load` and skopeo's oci-archive accept.

Layout: image-layout 1.0.0 and image-spec 1.1 (opencontainers.org). Equal content gives an equal file: entries are
sorted, belong to root and have one fixed time, and the compressor writes no time.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

_CONFIG = "application/vnd.oci.image.config.v1+json"
_INDEX = "application/vnd.oci.image.index.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_LEVEL = 6


class ImageLayer(msgspec.Struct, frozen=True):
    """A compressed layer. ``digest``: of the compressed file. ``content``: digest of the uncompressed tar."""

    file: Path
    digest: str
    content: str
    unpacked: int  # bytes


class Config(msgspec.Struct, frozen=True):
    """The defaults for the runtime, which a pod may override."""

    architecture: str
    entrypoint: tuple[str, ...]
    user: str
    env: dict[str, str]
    labels: dict[str, str]


def write_layer(root: Path, file: Path, *, time: int) -> ImageLayer:
    """Write everything below ``root`` as a layer. ``time``: of every entry, in seconds since 1970."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(root.rglob("*")):
            entry = tar.gettarinfo(path, str(path.relative_to(root)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = time
            if entry.islnk():  # a hard link: written as a second file, so that order does not matter
                entry.type, entry.linkname, entry.size = tarfile.REGTYPE, "", path.stat().st_size
            if entry.isreg():
                with path.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                tar.addfile(entry)
    plain = buffer.getvalue()
    packed = gzip.compress(plain, _LEVEL, mtime=0)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(packed)
    return ImageLayer(file, _digest(packed), _digest(plain), len(plain))


def write_archive(file: Path, layers: Sequence[ImageLayer], config: Config, *, name: str) -> int:
    """Write the image ``name`` (repository:tag) as one file; return its size in bytes."""
    inner = _json(
        {
            "architecture": config.architecture,
            "os": "linux",
            "config": {
                "User": config.user,
                "Entrypoint": list(config.entrypoint),
                "Env": [f"{k}={v}" for k, v in config.env.items()],
                "Labels": config.labels,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": [one.content for one in layers]},
        }
    )
    described = [_descriptor(_LAYER, one.digest, one.file.stat().st_size) for one in layers]
    manifest = _json(
        {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": _descriptor(_CONFIG, _digest(inner), len(inner)),
            "layers": described,
        }
    )
    listed = _descriptor(_MANIFEST, _digest(manifest), len(manifest)) | {
        "platform": {"architecture": config.architecture, "os": "linux"},
        "annotations": {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name.rpartition(":")[2]},
    }
    index = _json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [listed]})
    blobs = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": index}
    blobs |= {_blob(_digest(data)): data for data in (inner, manifest)}
    blobs |= {_blob(one.digest): one.file.read_bytes() for one in layers}
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name}")
    with tarfile.open(temporary, "w", format=tarfile.PAX_FORMAT) as tar:
        for path, data in blobs.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o644
            tar.addfile(entry, io.BytesIO(data))
    temporary.replace(file)
    return file.stat().st_size


def _descriptor(kind: str, digest: str, size: int) -> dict[str, object]:
    return {"mediaType": kind, "digest": digest, "size": size}


def _blob(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _json(document: Mapping[str, object]) -> bytes:
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
