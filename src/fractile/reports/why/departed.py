"""What processes of deleted pods still hold of cards, for ``fractile why``. Pure.

Of a pod that waits it says why a card that no pod holds has no room; of a name that no pod has any more, what is left,
and what its events say became of it.
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
        "DeadlineExceeded",  # kubelet, as the next six
        "Evicted",
        "ExceededGracePeriod",
        "Failed",
        "NodeAffinity",
        "Preempting",
        "UnexpectedAdmissionError",
        "NodeControllerEviction",  # kube-controller-manager, as the next one
        "TaintManagerEviction",
        "Preempted",  # kube-scheduler
    }
)
_UNKNOWN = "it was deleted or has ended, and no event says why"


def notes(cards: Iterable[ExtendedResource]) -> Iterator[str]:
    """One for each container that is left behind, up to a number."""
    told = (taken(card.spec.index, card.spec.node_name, held) for card, held in _left(cards))
    yield from islice(told, _TOLD)
    more = sum(1 for _ in told)
    if more:
        yield f"counted as taken: parts of cards by {more} more containers of deleted pods (fractile inspect)"


def still_held(cards: Iterable[ExtendedResource], namespace: str, pod: str) -> str:
    """The end of the sentence that there is no such pod; "" where none of that name left anything behind."""
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
        f", but processes of a deleted one still hold {told}; end them on {nodes}, or wait until they have ended. The "
        "event of the node says how to end them: kubectl get events -n default --field-selector "
        "reason=GPUHeldByDeletedPod"
    )


def last_said(events: Sequence[Event], namespace: str, pod: str) -> str:
    """The end of the same sentence, where events of a pod of that name are still there: what ended the last of these
    pods, if an event says so."""
    of_last = _of_the_last_pod(events)
    if not of_last:
        return ""
    ended = max((e for e in of_last if _ends(e)), key=lambda e: (e.reason == EVICTED, e.last), default=None)
    told = f"{ended.reason} at {ended.last}: {ended.message}" if ended else _UNKNOWN
    return (
        f" any more; {told}; all that was said of it: "
        f"kubectl get events -n {namespace} --field-selector involvedObject.kind=Pod,involvedObject.name={pod}"
    )


def _of_the_last_pod(events: Sequence[Event]) -> list[Event]:
    """Pods that had the name one after the other have each a UID; of one that was deleted by force something may still
    be said when the next one exists, so what was said first decides."""
    began: dict[str, str] = {}
    for event in events:
        uid = event.involved_object.uid
        began[uid] = min(began.get(uid, event.first), event.first)
    return [e for e in events if e.involved_object.uid == max(began, key=lambda uid: (began[uid], uid))]


def _ends(event: Event) -> bool:
    """Whether it says why a pod ended. That a container is stopped is said of every pod that is deleted."""
    return event.reason in _ENDS or event.reason.startswith("OutOf")


def _left(cards: Iterable[ExtendedResource]) -> Iterator[tuple[ExtendedResource, DepartedContainer]]:
    for card in sorted(cards, key=lambda c: (c.spec.node_name, c.spec.index, c.spec.device_id)):
        try:
            yield from ((card, held) for held in departed(card))
        except WireError:
            continue  # ``fractile inspect`` names those
