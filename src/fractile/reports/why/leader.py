"""Whether a control plane is placing pods, as far as the API server's objects show. Pure.

The Lease names the leader. A control plane that runs without one (``--lease ""``) leaves the Lease of an earlier run
alone, so an expired Lease does not prove that there is no leader. Later activity proves that there is one: a placed
pod, since only a control plane places pods, or a sentence of the extender in kube-scheduler's events.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from fractile.reports.why.read import LEASE, Read
from fractile.reports.why.times import moment, span
from fractile.wire.fractile.placement import ANNOTATION
from fractile.wire.output.why import RefusingNodes

_SKEW = timedelta(seconds=10)  # how far the clocks of machines may differ


def leaderless(read: Read, groups: Sequence[RefusingNodes], now: datetime) -> str:
    """Why it seems that no control plane leads; "" where one does, or nothing is known."""
    ended = _ended(read, now)
    if ended is None or _worked_since(read, groups, ended):
        return ""
    return (
        f"no control plane of Fractile seems to lead, and without one this pod is not placed: {_lease(read)} "
        f"{_how_it_ended(read, ended, now)}, and no pod was placed since; check whether the control plane runs"
    )


def left_lease(read: Read, groups: Sequence[RefusingNodes], now: datetime) -> str:
    """A note about a Lease left from an earlier run, which the running control plane does not use; "" for none."""
    ended = _ended(read, now)
    found = _worked_since(read, groups, ended) if ended is not None else ""
    if ended is None or not found:
        return ""
    return (
        f"{_lease(read)} {_how_it_ended(read, ended, now)} and is left from an earlier run: {found} since, so a "
        'control plane runs without it (--lease "", or another name)'
    )


def _ended(read: Read, now: datetime) -> datetime | None:
    """Since when there is no leader according to the Lease. None if it is held, missing, or was never held: the
    manifests create it empty."""
    spec = read.lease.spec if read.lease is not None else None
    renewed = moment(spec.renew_time or "") if spec is not None else None
    if spec is None or renewed is None:
        return None
    if not spec.holder_identity:
        return renewed
    ended = renewed + timedelta(seconds=spec.lease_duration_seconds or 0)
    return ended if now > ended + _SKEW else None


def _lease(read: Read) -> str:
    holder = read.lease.spec.holder_identity if read.lease is not None else ""
    return f"the Lease {LEASE}" + (f" of {holder}" if holder else "")


def _how_it_ended(read: Read, ended: datetime, now: datetime) -> str:
    held = read.lease is not None and read.lease.spec.holder_identity
    since = span(max(0.0, (now - ended).total_seconds()))
    return f"{'expired' if held else 'was released'} {since} ago ({ended:%Y-%m-%dT%H:%M:%SZ})"


def _worked_since(read: Read, groups: Sequence[RefusingNodes], ended: datetime) -> str:
    """What a control plane has done since then; "" if nothing is known."""
    since = ended + _SKEW
    placed = next(_placed_after(read, since), "")
    if placed:
        return f"pod {placed} was placed"
    sentences = [reason for group in groups for reason in group.reasons]
    said = any(
        event.reason == "FailedScheduling"
        and (at := moment(event.last)) is not None
        and at > since
        and any(sentence in event.message for sentence in sentences)
        for event in read.events
    )
    return "the extender told kube-scheduler why this pod does not fit" if said else ""


def _placed_after(read: Read, since: datetime) -> Iterator[str]:
    for each in read.objects.pods:
        meta = each.pod.metadata
        bound = moment(each.pod.status.bound_at) if ANNOTATION in (meta.annotations or {}) else None
        if bound is not None and each.pod.spec.node_name and bound > since:
            yield f"{meta.namespace}/{meta.name}"
