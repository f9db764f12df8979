"""``devices.yaml``, version 1: non-GPU devices of a node, for pods that ask for them by class.

    version: 1
    devices:
      - id: mlx5_0
        type: infiniband
        model: ConnectX-7
        shares: 4
        properties: {rate: 400Gb/s, numaNode: 1}
        deviceNodes: [/dev/infiniband/uverbs0, {host: /dev/infiniband/rdma_cm, permissions: rwm}]
        mounts: [{host: /etc/libibverbs.d, container: /etc/libibverbs.d}]
        environment: {NCCL_IB_HCA: mlx5_0}
        healthy: true

YAML or JSON; JSON saves the agent the memory of a YAML reader. It is written by an administrator, or by a program that
replaces it when something changes. Every error names the file, the field and the problem. docs/use/classes.md describes
it.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec

from fractile.errors import WireError
from fractile.model.card import GPU, Card
from fractile.model.health import HealthVerdict
from fractile.model.offer import DeviceNode, Mount, Offer
from fractile.model.properties import shared
from fractile.model.units import CardUUID, MiB, NodeName
from fractile.model.words import printable
from fractile.wire.fractile.extended_resource import object_name

VERSION = 1
MOST = 256  # devices of a node
_MOST_CHARACTERS = 2**20
_MOST_PROPERTIES = 56  # the API accepts 64, and the agent adds its own
_SAID = ("type", "model", "index", "nodeName")  # properties that have their own fields
_REASON = "DeviceUnhealthy"

_Path = Annotated[str, msgspec.Meta(pattern=r"^/[^\x00-\x1f:]*\Z", max_length=4095)]
_Type = Annotated[str, msgspec.Meta(pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")]
_Key = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z")]
_Value = Annotated[str, msgspec.Meta(max_length=253)] | int | bool | float
_Variable = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,254}\Z")]
_ID = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_]{0,61}[A-Za-z0-9])?\Z")]
_AT = re.compile(r" - at `\$\.?(.*)`\Z")


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """Base of the parts of the file: a misspelt field is refused, not ignored."""


class _Node(_Part, frozen=True, kw_only=True):
    host: _Path
    container: _Path | None = None
    permissions: Annotated[str, msgspec.Meta(pattern=r"^(rwm?|rm?|wm?|m)\Z")] = "rw"


class _Mount(_Part, frozen=True, kw_only=True):
    host: _Path
    container: _Path | None = None
    read_only: bool = True


class _Device(_Part, frozen=True, kw_only=True):
    id: _ID
    type: _Type
    model: Annotated[str, msgspec.Meta(max_length=253)] = ""
    shares: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 1
    properties: Annotated[dict[_Key, _Value], msgspec.Meta(max_length=_MOST_PROPERTIES)] = {}
    device_nodes: Annotated[tuple[_Path | _Node, ...], msgspec.Meta(max_length=64)] = ()
    mounts: Annotated[tuple[_Mount, ...], msgspec.Meta(max_length=64)] = ()
    environment: Annotated[
        dict[_Variable, Annotated[str, msgspec.Meta(max_length=4096)]], msgspec.Meta(max_length=64)
    ] = {}
    healthy: bool = True
    reason: Annotated[str, msgspec.Meta(pattern=r"^([A-Za-z][A-Za-z0-9]{0,63})?\Z")] = ""
    message: Annotated[str, msgspec.Meta(max_length=1024)] = ""


class _File(_Part, frozen=True, kw_only=True):
    version: int
    devices: Annotated[tuple[_Device, ...], msgspec.Meta(max_length=MOST)] = ()


class DeviceFileContent(msgspec.Struct, frozen=True):
    """The content of the file: the devices in its order, and why unhealthy ones are unhealthy."""

    offers: tuple[Offer, ...] = ()
    sick: tuple[tuple[CardUUID, HealthVerdict], ...] = ()


def decode(text: str, source: str, *, node: NodeName) -> DeviceFileContent:
    """Decode the devices that the file offers on the node; WireError, with the field, when it is invalid."""
    if len(text) > _MOST_CHARACTERS:
        raise WireError(f"{source}: it is larger than 1 MiB; a node has at most {MOST} devices")
    try:
        file = _read(text)
        if file.version != VERSION:
            raise WireError(f"version is {file.version}; this Fractile reads version {VERSION}")
        _check(file.devices, node)
    except msgspec.ValidationError as e:
        raise WireError(f"{source}: {_where(str(e))}") from None
    except (msgspec.DecodeError, UnicodeError) as e:
        raise WireError(f"{source}: it is neither YAML nor JSON: {' '.join(str(e).split())[:200]}") from None
    except RecursionError:
        raise WireError(f"{source}: it is nested too deep") from None
    except WireError as e:
        raise WireError(f"{source}: {e}") from None
    sick = ((_uuid(d, node), _verdict(d)) for d in file.devices if not d.healthy)
    return DeviceFileContent(tuple(_offer(d, index, node) for index, d in enumerate(file.devices)), tuple(sick))


def _read(text: str) -> _File:
    if text.lstrip().startswith("{"):
        return msgspec.json.decode(text, type=_File)
    return msgspec.yaml.decode(text, type=_File)  # imports PyYAML only now


def _check(devices: Sequence[_Device], node: NodeName) -> None:
    seen: set[str] = set()
    for n, d in enumerate(devices):
        at = f"devices[{n}]"
        name = object_name(_uuid(d, node))
        if name in seen:
            raise WireError(
                f"{at}.id is {d.id!r} and appears twice; upper and lower case, and '-' and '_', are not distinguished"
            )
        seen.add(name)
        if len(name) > 253:
            raise WireError(f"{at}.id is too long beside the name of the node")
        if d.type == GPU:
            raise WireError(f"{at}.type is {GPU}; cards are found by their driver and cannot be given here")
        said = [key for key in _SAID if key in d.properties]
        if said:
            raise WireError(f"{at}.properties has {said[0]}, which the field of that name or the agent sets")
        _check_paths(at, (*(p.host for p in _nodes(d)), *(p.container for p in _nodes(d))))
        _check_paths(at, (*(m.host for m in d.mounts), *(m.container or m.host for m in d.mounts)))


def _check_paths(at: str, paths: Iterable[str]) -> None:
    for path in paths:
        if ".." in path.split("/") or path.rstrip("/") == "":
            raise WireError(f"{at} names the path {path[:80]!r}; write it without '..', and not the root")


def _offer(device: _Device, index: int, node: NodeName) -> Offer:
    return Offer(
        device=Card(
            uuid=_uuid(device, node),
            index=index,
            model=printable(device.model),
            memory=MiB(0),
            healthy=device.healthy,
            type=device.type,
            shares=device.shares,
            properties=shared({key: _text(value) for key, value in device.properties.items()}),
        ),
        nodes=tuple(_nodes(device)),
        mounts=tuple(Mount(m.host, m.container or m.host, m.read_only) for m in device.mounts),
        environment=tuple(sorted(device.environment.items())),
    )


def _nodes(device: _Device) -> list[DeviceNode]:
    return [
        DeviceNode(n, n) if isinstance(n, str) else DeviceNode(n.host, n.container or n.host, n.permissions)
        for n in device.device_nodes
    ]


def _verdict(device: _Device) -> HealthVerdict:
    told = device.message or f"the node's file of devices says that {device.id} is not healthy"
    return HealthVerdict(healthy=False, reason=device.reason or _REASON, message=told)


def _uuid(device: _Device, node: NodeName) -> CardUUID:
    return CardUUID(f"{device.id}.{node}")


def _text(value: str | float) -> str:
    """The value as YAML and JSON write it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _where(problem: str) -> str:
    """msgspec's message, with the field in front."""
    found = _AT.search(problem)
    return f"{found[1]}: {problem[: found.start()]}" if found else problem
