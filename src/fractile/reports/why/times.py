"""Times in the report of one pod. Pure."""

from datetime import UTC, datetime

from fractile.wire.kubernetes.why_objects import ObservedMeta

_SECONDS = ((86_400, "d"), (3_600, "h"), (60, "m"), (1, "s"))


def moment(text: str) -> datetime | None:
    """A time from the API server; None if it cannot be parsed."""
    try:
        then = datetime.fromisoformat(text)
    except ValueError:
        return None
    return then if then.tzinfo else then.replace(tzinfo=UTC)


def age(since: str, now: datetime) -> float:
    """Seconds since then; 0 for a time that cannot be parsed, or that another machine's clock puts into the future."""
    then = moment(since)
    return max(0.0, round((now - then).total_seconds(), 1)) if then is not None else 0.0


def since_deletion(meta: ObservedMeta, now: datetime) -> float | None:
    """Seconds since the pod's deletion was requested, or None if unknown. The API server sets deletionTimestamp to the
    time of the request plus the grace period, and shortens both when a later request does."""
    asked = moment(meta.deletion_timestamp or "")
    if asked is None or meta.deletion_grace_period_seconds is None:
        return None
    return max(0.0, (now - asked).total_seconds() + meta.deletion_grace_period_seconds)


def span(seconds: float) -> str:
    """The duration in its two largest units, such as 4m10s."""
    rest, parts = int(seconds), list[str]()
    for size, name in _SECONDS:
        if rest >= size and len(parts) < 2:
            parts.append(f"{rest // size}{name}")
            rest %= size
        elif parts:
            break
    return "".join(parts) or "0s"
