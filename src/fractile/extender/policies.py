"""Which policy chooses the node of a pod: the pod's own, else its namespace's, else the cluster's.

``binpack`` and ``spread`` compare how full nodes are, using only the ledger's digest (``extender.score``); ``none``
leaves the choice to kube-scheduler. Every other name is one of ``policy.nodes.policies.table``, or a sum of them.
Unknown policy names are ignored: a pod is not refused because of an annotation.
"""

import asyncio
import zlib
from collections.abc import Callable, Mapping

import msgspec

from fractile.extender.engine import Coming, Engine, NodeScores, known
from fractile.extender.score import BINPACK, POLICIES, SPREAD
from fractile.ledger.ledger import Ledger
from fractile.ledger.wishes import wish_of
from fractile.model.pod_demand import PodDemand
from fractile.model.request import ContainerRequest, PodRequest
from fractile.model.units import CardUUID, PodUID
from fractile.wire.kubernetes.objects import Pod
from fractile.wire.kubernetes.pod_totals import of_pod

ANNOTATION = "fractile.dev/node-policy"  # of a pod or a namespace
_NOTHING = PodDemand(0, 0)
_REMEMBERED = 4096  # pods between score and bind

Seen = Callable[[PodUID, PodDemand], None]


def valid(text: str) -> bool:
    """Whether the policy exists."""
    return text in POLICIES or known(text) is not None


class PodToPlace(msgspec.Struct, frozen=True):
    """A pod to be placed: the policy that chooses its node, and its demand."""

    uid: PodUID
    policy: str
    wish: PodDemand

    @property
    def plain(self) -> str:
        """The policy that compares nodes where the pod's own has no opinion."""
        if self.policy in POLICIES:
            return self.policy
        return SPREAD if self.policy.startswith("least-allocated") else BINPACK


def settled(request: PodRequest, asking: PodToPlace) -> PodRequest:
    """The request with the node policies of its annotations replaced by the one that applies."""
    if all(c.request.node_policy in ("", asking.plain) for c in request.containers):
        return request
    return msgspec.structs.replace(request, containers=tuple(_by(asking.plain, c) for c in request.containers))


def _by(policy: str, asked: ContainerRequest) -> ContainerRequest:
    return msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, node_policy=policy))


class NodePolicies:
    """``namespaces``: the policies of those that name one. ``seen`` is called with every pod that is to be placed."""

    def __init__(
        self,
        ledger: Ledger,
        engine: Engine,
        *,
        cluster: str = BINPACK,
        namespaces: Mapping[str, str] | None = None,
        seen: Seen = lambda uid, wish: None,
    ) -> None:
        self._ledger = ledger
        self._engine = engine
        self._cluster = cluster
        self._namespaces: Mapping[str, str] = {} if namespaces is None else namespaces
        self._seen = seen
        self._asking: dict[PodUID, PodToPlace] = {}
        self._due = False

    def asking(self, pod: Pod, request: PodRequest) -> PodToPlace:
        """The pod's policy and demand. ``request`` is resolved."""
        policy = self.named(pod, request)
        if policy in POLICIES and not any(c.request.device_class for c in request.containers):
            return PodToPlace(request.uid, policy, _NOTHING)  # the demand is not used
        wish = wish_of(request, of_pod(pod), self._ledger.arrays)
        self._seen(request.uid, wish)
        return PodToPlace(request.uid, policy, wish)

    def named(self, pod: Pod, request: PodRequest) -> str:
        """The policy that applies to the pod."""
        meta = pod.metadata
        said = (
            (meta.annotations or {}).get(ANNOTATION, ""),
            next((c.request.node_policy for c in request.containers if c.request.node_policy), ""),
            self._namespaces.get(meta.namespace, ""),
        )
        return next((name for name in said if name and valid(name)), self._cluster)

    def standing(self, asking: PodToPlace, coming: list[Coming] | None = None) -> NodeScores | None:
        """The policy's scores of the nodes; None when nodes are compared by fullness."""
        if asking.policy in POLICIES:
            return None
        return self._engine.standing(asking.policy, asking.wish, draw=_lot(asking.uid), coming=coming or ())

    def soon(self) -> None:
        """Catch up after the current step of the loop: once for all pods that end in one message of a watch."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self.catch_up)

    def catch_up(self) -> None:
        """Prepare for the next pod, after one was bound or has gone."""
        self._due = False
        self._engine.catch_up()

    def remember(self, asking: PodToPlace) -> None:
        """Remember the policy until the pod is bound: it chooses the card as well as the node."""
        self._asking.pop(asking.uid, None)
        if len(self._asking) >= _REMEMBERED:
            del self._asking[next(iter(self._asking))]
        self._asking[asking.uid] = asking

    def forget(self, uid: PodUID) -> None:
        """Forget a pod that is bound."""
        self._asking.pop(uid, None)

    def narrowed(self, request: PodRequest, node: str) -> PodRequest | None:
        """The request restricted to the card that the policy chooses on that node; None where the policy leaves the
        choice open: the pod itself says how cards are chosen, or it asks for whole cards, which are all alike to the
        policy."""
        asking = self._asking.get(request.uid)
        containers = request.gpus
        if asking is None or asking.wish.shared != 1 or asking.wish.whole or any(c.request.policy for c in containers):
            return None
        standing = self.standing(asking)
        column = self._ledger.arrays.find(node)
        if standing is None or column < 0 or standing.device[column] < 0:
            return None
        card = self._ledger.arrays.card_at(int(standing.device[column]), column)
        return None if card is None else _only(request, card)


def _only(request: PodRequest, card: CardUUID) -> PodRequest | None:
    if any(c.request.selector.cards and card not in c.request.selector.cards for c in request.gpus):
        return None
    return msgspec.structs.replace(request, containers=tuple(_on(card, c) for c in request.containers))


def _on(card: CardUUID, asked: ContainerRequest) -> ContainerRequest:
    if asked.request.shares:
        return asked
    selector = msgspec.structs.replace(asked.request.selector, cards=(card,))
    return msgspec.structs.replace(asked, request=msgspec.structs.replace(asked.request, selector=selector))


def _lot(uid: PodUID) -> int:
    """The pod's lot: the same in filter, score and bind."""
    return zlib.crc32(uid.encode())
