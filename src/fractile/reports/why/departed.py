"""What processes of deleted pods still hold on cards, for ``fractile why``. Pure.

For a waiting pod, this explains why a card that no pod holds has no room. For a deleted pod, it tells what processes
still hold, and what became of the pod according to its events.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from fractile.agent.audit.audit import EVICTED
from fractile.agent.audit.overdue import KILLED
from fractile.errors import WireError
from fractile.wire.fractile.departed import DepartedContainer, departed, taken
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.why_objects import Event

_TOLD = 10  # notes
_ENDS = frozenset(
    {
        EVICTED,
        KILLED,
        "DeadlineExceeded",  # by kubelet, like the next six
        "Evicted",
        "ExceededGracePeriod",
        "Failed",
        "NodeAffinity",
        "Preempting",
        "UnexpectedAdmissionError",
        "NodeControllerEviction",  # by kube-controller-manager, like the next one
        "TaintManagerEviction",
        "Preempted",  # by kube-scheduler
    }
)
_UNKNOWN = "it was deleted or has ended, and no event says why"


def notes(cards: Iterable[ExtendedResource]) -> Iterator[str]:
    """One note for each container that still holds part of a card, up to ``_TOLD``, then one for the rest."""
    told = (taken(card.spec.index, card.spec.node_name, held) for card, held in _left(cards))
    yield from islice(told, _TOLD)
    more = sum(1 for _ in told)
    if more:
        yield f"counted as taken: parts of cards held by {more} more containers of deleted pods (fractile inspect)"


def still_held(cards: Iterable[ExtendedResource], namespace: str, pod: str) -> str:
    """What deleted pods of that name still hold, as the end of the error that there is no such pod; "" for nothing."""
    parts: dict[tuple[str, int], int] = {}
    for card, held in _left(cards):
        if (held.namespace, held.pod) == (namespace, pod):
            key = card.spec.node_name, card.spec.index
            parts[key] = parts.get(key, 0) + held.memory
    if not parts:
        return ""
    told = ", ".join(f"{memory} MiB of card {index} of {node}" for (node, index), memory in sorted(parts.items()))
    nodes = ", ".join(sorted({node for node, _ in parts}))
    return (
        f", but processes of a deleted one still hold {told}; end them on {nodes}, or wait until they have ended. An "
        "event of the node says how to end them: kubectl get events -n default --field-selector "
        "reason=GPUHeldByDeletedPod"
    )


def last_said(events: Sequence[Event], namespace: str, pod: str) -> str:
    """What ended the last pod of that name, as the end of the same error; "" where no events of such a pod are left."""
    of_last = _of_the_last_pod(events)
    if not of_last:
        return ""
    ended = max((e for e in of_last if _ends(e)), key=lambda e: (e.reason == EVICTED, e.last), default=None)
    told = f"{ended.reason} at {ended.last}: {ended.message}" if ended else _UNKNOWN
    return (
        f" any more; {told}; for all of its events: kubectl get events -n {namespace} --field-selector "
        f"involvedObject.kind=Pod,involvedObject.name={pod}"
    )


def _of_the_last_pod(events: Sequence[Event]) -> list[Event]:
    """The events of the last pod that had the name. Pods with one name differ by UID; a force-deleted pod may get
    events after its successor exists, so the time of the first event decides."""
    began: dict[str, str] = {}
    for event in events:
        uid = event.involved_object.uid
        began[uid] = min(began.get(uid, event.first), event.first)
    return [e for e in events if e.involved_object.uid == max(began, key=lambda uid: (began[uid], uid))]


def _ends(event: Event) -> bool:
    """Whether the event says why a pod ended. Events about stopped containers do not: every deleted pod has them."""
    return event.reason in _ENDS or event.reason.startswith("OutOf")


def _left(cards: Iterable[ExtendedResource]) -> Iterator[tuple[ExtendedResource, DepartedContainer]]:
    for card in sorted(cards, key=lambda c: (c.spec.node_name, c.spec.index, c.spec.device_id)):
        try:
            yield from ((card, held) for held in departed(card))
        except WireError:
            continue  # ``fractile inspect`` reports those
