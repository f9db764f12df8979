"""What a client of the virtual manager claims to be, compared with what the node knows. Pure.

The socket identifies the container: the folder of a socket is mounted into one container only. The kernel's view of the
process can only contradict that: another token directory in its view, another pod's cgroup.
"""

import re

import msgspec

from fractile.agent.kubelet.api import vcuda_pb2 as vcuda
from fractile.agent.node.procfs import Process
from fractile.region.page import ContainerLimits

_ID = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BUS = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])", re.ASCII)


class Registered(msgspec.Struct, frozen=True):
    """``name``: the container's id or name, under which the client will search its files. ``container_id``: from the
    kernel, "" when not known."""

    name: str
    container_id: str


class ClaimRefused(msgspec.Struct, frozen=True):
    """Why the claim is refused; ``kind`` is one of a few words, for the counter."""

    kind: str
    reason: str


def judge(
    claim: vcuda.VDeviceRequest, peer: Process | None, limits: ContainerLimits, *, token: str, bus_ids: tuple[str, ...]
) -> Registered | ClaimRefused:
    """``peer``: None when the kernel does not show the process. ``bus_ids``: those of the container's cards."""
    if peer is not None and not _inside(peer, limits, token):
        return ClaimRefused("peer", f"process {peer.pid} ({peer.command}) does not run in this container")
    if claim.pod_uid != limits.pod_uid:
        return ClaimRefused("pod", f"claims to belong to pod {claim.pod_uid[:80]!r}")
    if claim.bus_id and bus_address(claim.bus_id) not in {bus_address(b) for b in bus_ids}:
        return ClaimRefused("card", f"claims card {claim.bus_id[:80]!r}")
    if claim.container_name and claim.container_name != limits.container:
        return ClaimRefused("container", f"claims to be container {claim.container_name[:80]!r}")
    known = _container_id(peer, limits)
    if claim.container_id and (claim.container_id != known if known else not _ID.fullmatch(claim.container_id)):
        return ClaimRefused("container", f"claims to be container {claim.container_id[:80]!r}")
    name = claim.container_name or claim.container_id
    return Registered(name, known) if name else ClaimRefused("container", "names no container")


def bus_address(bus_id: str) -> tuple[int, str] | None:
    """Equal for equal addresses, however the domain is written; None if it is not an address."""
    found = _BUS.fullmatch(bus_id.lower())
    return (int(found[1] or "0", 16), found[2]) if found else None


def _inside(peer: Process, limits: ContainerLimits, token: str) -> bool:
    if peer.token:
        return peer.token == token
    return any(place.pod_uid == limits.pod_uid for place in peer.places)  # in its own mount namespace


def _container_id(peer: Process | None, limits: ContainerLimits) -> str:
    places = peer.places if peer is not None else ()
    mine = [p for p in places if p.pod_uid == limits.pod_uid] or [p for p in places if not p.pod_uid]
    return mine[0].container_id if mine else ""
