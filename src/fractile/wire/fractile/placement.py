"""``fractile.dev/placement``: the authoritative record of what a pod was allocated, version 1.

    {"version": 1, "node": "n1", "containers": {
        "main": {"role": "app", "slices": [{"card": "GPU-...", "memoryMiB": 8138, "cores": 0}]}}}

A slice that takes a slot of its card also has ``"slots": 1``; one of a non-GPU device has ``"shares": 1``. Containers
are in kubelet's order (init containers and sidecars as listed, then apps), which JSON objects preserve. Only Fractile's
service accounts may write it (deploy/manifests/30-admission.yaml); a reader must still survive any text.
"""

from typing import Annotated

import msgspec

from fractile.errors import WireError
from fractile.model.placement import ContainerPlacement, Placement, Slice
from fractile.model.request import Role
from fractile.model.units import CardUUID, ContainerName, MiB, NodeName, Percent

ANNOTATION = "fractile.dev/placement"
CHOICE_ANNOTATION = "fractile.dev/kubelet-choice"  # same format: the cards that kubelet actually chose
LEADER = "fractile.dev/leader"  # the term in which the placement was decided (kube/lease.py)
VERSION = 1
MAX_LENGTH = 256 * 1024  # Kubernetes' own limit for all annotations of an object
MAX_CONTAINERS = 256
MAX_SLICES = 128  # of one container

_MiB = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Cores = Annotated[int, msgspec.Meta(ge=0, le=100)]
_Slots = Annotated[int, msgspec.Meta(ge=0, le=1024)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class _Slice(msgspec.Struct, frozen=True):
    card: _Name
    memory: _MiB = msgspec.field(name="memoryMiB")
    cores: _Cores = 0
    slots: _Slots | msgspec.UnsetType = msgspec.UNSET  # left out if it takes none
    shares: _Slots | msgspec.UnsetType = msgspec.UNSET  # left out for GPUs


class _Container(msgspec.Struct, frozen=True):
    role: Role
    slices: Annotated[tuple[_Slice, ...], msgspec.Meta(min_length=1, max_length=MAX_SLICES)]


class _Placement(msgspec.Struct, frozen=True):
    version: int
    node: _Name
    containers: Annotated[dict[_Name, _Container], msgspec.Meta(min_length=1, max_length=MAX_CONTAINERS)]


class _Versioned(msgspec.Struct, frozen=True):
    version: int


_DAMAGED = (msgspec.DecodeError, RecursionError, UnicodeEncodeError)

_version = msgspec.json.Decoder(_Versioned)
_decoder = msgspec.json.Decoder(_Placement)
_encoder = msgspec.json.Encoder()


def encode(placement: Placement) -> str:
    """The annotation's text."""
    containers: dict[str, _Container] = {
        c.container: _Container(c.role, tuple(map(_written, c.slices))) for c in placement.containers
    }
    return _encoder.encode(_Placement(VERSION, placement.node, containers)).decode()


def decode(text: str) -> Placement:
    """The placement; WireError on anything that is not version 1 of the format."""
    if len(text) > MAX_LENGTH:
        raise WireError(f"annotation {ANNOTATION} is longer than {MAX_LENGTH} characters")
    try:
        raw = _decoder.decode(text)
    except _DAMAGED as e:
        _check_version(text)
        raise WireError(f"annotation {ANNOTATION} is malformed: {e}") from None
    if raw.version != VERSION:
        _check_version(text)
    return Placement(
        NodeName(raw.node),
        tuple(
            ContainerPlacement(
                ContainerName(name),
                c.role,
                tuple(map(_read, c.slices)),
            )
            for name, c in raw.containers.items()
        ),
    )


def recorded(text: str) -> Placement | None:
    """The placement; None for a text that is not one."""
    try:
        return decode(text)
    except WireError:
        return None


def _check_version(text: str) -> None:
    """Raise WireError for any other version, in which the other fields may have any type and meaning."""
    try:
        version = _version.decode(text).version
    except _DAMAGED as e:
        raise WireError(f"annotation {ANNOTATION} is malformed: {e}") from None
    if version != VERSION:
        raise WireError(f"annotation {ANNOTATION} has version {version}; this Fractile reads version {VERSION}")


def _written(s: Slice) -> _Slice:
    return _Slice(s.card, s.memory, s.cores, s.slots or msgspec.UNSET, s.shares or msgspec.UNSET)


def _read(s: _Slice) -> Slice:
    return Slice(CardUUID(s.card), MiB(s.memory), Percent(s.cores), s.slots or 0, s.shares or 0)
