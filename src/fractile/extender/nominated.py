"""Filter, second pass: drop nodes on which room is kept for pods that kube-scheduler nominated before this one.

Only nodes with nominated pods are checked again; most of the time there are none.
"""

import msgspec

from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.policy.cards.choice import fits
from fractile.policy.cards.effort import Effort
from fractile.reconcile.nominations import Nominations, rank
from fractile.wire.kubernetes.extender import FilterResult
from fractile.wire.kubernetes.objects import Pod


def kept(count: int) -> Refusal:
    """Why a pod does not get what is free."""
    pods = "a pod" if count == 1 else f"{count} pods"
    return Refusal(Code.NO_ROOM, f"the room is kept for {pods} for which others are being evicted")


def keep_room(
    result: FilterResult, pod: Pod, request: PodRequest, ledger: Ledger, nominations: Nominations
) -> FilterResult:
    """The result without the nodes where the pod would take the room of nominated pods that precede it."""
    named = frozenset(nominations.nodes())
    if not named or result.node_names is None or named.isdisjoint(result.node_names):
        return result
    if ledger.entry(request.uid) is not None:
        return result  # it holds its cards already
    asking = rank(pod.spec.priority or 0, pod.metadata.creation_timestamp or "", request.uid)
    effort, claiming = Effort(dead_ends=ledger.dead_ends), Effort(dead_ends=ledger.dead_ends)
    refused: dict[str, str] = {}
    for node in named.intersection(result.node_names):
        claims = nominations.claims(node, asking, claiming)
        state = ledger.imagine(node, taken=claims) if claims else None
        if state is not None and not fits(request, state, effort):
            refused[node] = kept(len(claims)).message
    left = [node for node in result.node_names if node not in refused]
    return msgspec.structs.replace(result, node_names=left, failed={**result.failed, **refused})
