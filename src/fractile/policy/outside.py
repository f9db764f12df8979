"""Messages to the owner of a pod that uses a card outside the ledger: what was seen, what to do, what happens next.

The agent puts them into the pod's event, and ``fractile why`` prints them. Both use the same finding.
"""

import re
from typing import Literal

from fractile.wire.output.node_usage import Kind, Outside

Policy = Literal["warn", "evict", "evict-all"]
EVICTED_KINDS: dict[Policy, frozenset[Kind]] = {
    "warn": frozenset(),
    "evict": frozenset({"no-slice", "no-library"}),
    "evict-all": frozenset({"no-slice", "no-library", "not-in-ledger", "over-ledger", "over-quota"}),
}

DAMAGED = "ran while its library was damaged on the node (event GPULibraryDamaged)"

_MIB = 2**20
_EVICTED = "evicted, by --outside-ledger of the node's agent: "
_NOW = "; the pod will be evicted within about a minute"
_ANNOUNCED = re.compile(rf"(?:; the pod is evicted(?: if that lasts for (\d+) s)?|{_NOW})$")
_STAYS = "; the pod stays: "


def sentence(outside: Outside, node: str, *, past: bool = False) -> str:
    """What was seen on ``node``, and what to do. ``past``: for a pod that was already evicted for it."""
    uses, hold, account = ("used", "held", "accounted") if past else ("uses", "hold", "account")
    held = f"{-(-(outside.bytes or 0) // _MIB)} MiB" if outside.bytes is not None else "an unknown amount"
    process = _process(outside, node)
    if DAMAGED in outside.spared and outside.kind != "no-slice":
        return (
            f"{process} {uses} {held} of card {outside.card} around Fractile's library, which was damaged on the node: "
            "the node is at fault, not the pod; delete the pod, so that it starts with an intact library"
        )
    match outside.kind:
        case "no-slice":
            return (
                f"{process} {uses} {held} of card {outside.card}, which this pod was not given; request a GPU resource "
                "or, if it needs no GPU, set NVIDIA_VISIBLE_DEVICES to none in the pod (images may set it to all)"
            )
        case "no-library" if not outside.unseen:
            return (
                f"{process} {uses} {held} of card {outside.card} without Fractile's library, which the container was "
                "given and the process has not loaded; start programs with the image's own loader and without "
                "LD_AUDIT, and leave that loader and /etc/ld.so.preload alone"
            )
        case "no-library":
            return (
                f"{process} {uses} {held} of card {outside.card} around Fractile's library: the container does not see "
                f"the library that it was given, since at {outside.unseen} the process finds another "
                "file or none; do not cover that path: neither by a mount, nor through a link, nor by chroot"
            )
        case "not-in-ledger":
            return (
                f"{process} {uses} {held} of card {outside.card} around Fractile's library; make sure that neither the "
                "image nor its programs change /etc/ld.so.preload, and that programs are not linked statically"
            )
        case "over-ledger":
            return (
                f"{process} {hold} {held} of card {outside.card} and {account} for {_mib(outside.accounted_bytes)}; "
                f"something {'allocated' if past else 'allocates'} around Fractile's library"
            )
        case "over-quota":
            return f"{process} {hold} {held} of card {outside.card}; the quota is {_mib(outside.accounted_bytes)}"
        case "not-a-pod":
            return f"{process} of the host {uses} {held} of card {outside.card}"


def announcement(grace: float) -> str:
    """The end of the event's message when the pod will be evicted. ``grace``: seconds left of its grace time."""
    return f"; the pod is evicted if that lasts for {grace:.0f} s" if grace > 0 else _NOW


def announced(message: str) -> tuple[str, float] | None:
    """Parse an event's message: what was seen, and the grace time in seconds; None when it announces no eviction."""
    found = _ANNOUNCED.search(message)
    return (message[: found.start()], float(found[1] or 0)) if found else None


def staying(why: str) -> str:
    """The end of the event's message when the pod will not be evicted."""
    return _STAYS + why


def left_by(policy: Policy, kind: Kind, why: str | None, grace: float) -> str:
    """Say that the policy is why a pod stays, and what the mildest policy that evicts for ``kind`` would do. ``why``:
    why the pod would stay under that policy too, "" if it would not; None: not known."""
    now = f"--outside-ledger is {policy}"
    other: Policy | None = next((p for p in ("evict", "evict-all") if kind in EVICTED_KINDS[p]), None)
    if other is None or why is None:
        return now
    if why:
        return f"{now} ({other} would leave it too: it {why})"
    if other == "evict":
        return f"{now} (evict would evict it{f' after {grace:.0f} s' if grace else ''})"
    return f"{now} (only {other} would evict it)"


def stays(message: str) -> tuple[str, str] | None:
    """Parse an event's message: what was seen, and why the pod stays; None when it does not say that the pod stays."""
    what, said, why = message.rpartition(_STAYS)
    return (what, why) if said else None


def evicted(outside: Outside, node: str) -> str:
    """The event's message after the eviction."""
    return _EVICTED + sentence(outside, node, past=True)


def what_evicted(message: str) -> str:
    """What was seen, from the event's message after the eviction."""
    return message.removeprefix(_EVICTED)


def _process(outside: Outside, node: str) -> str:
    """Describe the process, its command first, since its pid is different inside the container."""
    if not outside.pid:
        return "its processes"
    command = f" {outside.command}" if outside.command else ""
    where = f" in container {outside.container}" if outside.container else ""
    return f"process{command}{where} (pid {outside.pid} on node {node})"


def _mib(size: int | None) -> str:
    return f"{(size or 0) // _MIB} MiB"
