"""A pod that uses a card outside the ledger: whether, when and why its node's agent evicts it, and what to do. Pure.

The agent's own page has the current time of eviction. Where it cannot be read, the agent's earlier events are used.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from fractile.agent.audit.audit import EVICTED, REASON
from fractile.policy.outside import announced, sentence, stays, what_evicted
from fractile.reports.why.read import Read
from fractile.reports.why.times import age, span
from fractile.wire.kubernetes.why_objects import Event
from fractile.wire.output.node_usage import Outside

_NEXT = 60.0  # seconds: an agent evicts at most one pod per minute


def concerned(read: Read) -> bool:
    """Whether the pod uses a card outside the ledger, so that Fractile acts on it although it asks for nothing."""
    return bool(_found(read)) or any(e.reason in (REASON, EVICTED) for e in read.events)


def announcement(read: Read, now: datetime) -> str:
    """The end of the verdict on a running pod; "" where no eviction is known."""
    node = read.pod.spec.node_name
    threatened = [o for o in _found(read) if o.evicted_in_seconds is not None]
    if threatened:
        first = min(threatened, key=lambda o: o.evicted_in_seconds or 0.0)
        seconds = first.evicted_in_seconds or 0.0
        when = f"in {seconds:.0f} s at the earliest" if seconds >= 0.5 else "now"
        return f"; the agent of {node} evicts it {when} (--outside-ledger): {_advice(first.pid, sentence(first, node))}"
    if read.usage is not None:
        return ""
    told = _last(read.events, REASON)
    said = announced(told.message) if told is not None else None
    if told is None or said is None:
        return ""
    what, grace = said
    ago = age(told.last, now)
    if ago > grace + _NEXT:  # it was evicted long ago, or has stopped its use
        return ""
    left = grace - ago
    when = f", in {left:.0f} s at the earliest" if left >= 0.5 else "; that may happen at any moment"
    said = f"; the agent of {node} announced {ago:.0f} s ago that it evicts it (--outside-ledger)"
    return f"{said}{when}: {_advice(1, what)}"


def evicted(read: Read) -> str:
    """The end of the verdict on a pod that is being deleted; "" unless the agent evicted it."""
    told = _last(read.events, EVICTED)
    if told is None:
        return ""
    return f"; the agent of {read.pod.spec.node_name} evicted it (--outside-ledger): {what_evicted(told.message)}"


def notes(read: Read, now: datetime) -> Iterator[str]:
    """Use outside the ledger for which the pod is not evicted."""
    told = _last(read.events, REASON) if read.usage is None and read.pod.spec.node_name else None
    said = stays(told.message) if told is not None else None
    if told is not None and said is not None:
        what, reason = said
        ago = span(age(told.last, now))
        yield f"outside the ledger, and the pod stays: {reason}, as the agent reported {ago} ago: {what}"
    for one in _found(read):
        if one.evicted_in_seconds is None:
            why = f": it {one.spared}" if one.spared else ""
            yield f"outside the ledger, and the pod stays{why}: {sentence(one, read.pod.spec.node_name)}"


def _advice(process: int, said: str) -> str:
    """What to do so that the pod is not evicted."""
    end = (
        "end that process (its pid inside the container is different)"
        if process
        else "end the processes that allocate around the library"
    )
    return f"{said}. To keep the pod, {end} before then"


def _found(read: Read) -> list[Outside]:
    uid = read.pod.metadata.uid
    return [o for o in (read.usage.outside if read.usage else ()) if o.pod_uid == uid]


def _last(events: Sequence[Event], reason: str) -> Event | None:
    return max((e for e in events if e.reason == reason), key=lambda e: e.last, default=None)
