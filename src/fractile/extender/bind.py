"""Step 4: choose the cards from the live ledger, assume them, and bind with one API call.

The Binding carries the annotations and the pod's UID, and the API server merges both into the pod in the write that
sets its node (evidence/api-server.md#binding). So a pod is never bound without its placement, and a refused Binding
leaves nothing behind. Calls are idempotent by UID: kube-scheduler may repeat one whose answer was lost.

    answer of the API server        what follows
    accepted                        bound; the watch will show it
    refused (4xx)                   read the pod: bound to this node after all -> success; else release the cards
    none, or 5xx                    read the pod: bound -> success; otherwise keep the cards, since the write may
                                    still arrive, until a repeated call or ``reconcile.assumed_pods`` settles it;
                                    until then the pod is bound to no other node
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from fractile.dialects.table import NAMES, names_ours, parse_pod, placement_annotations
from fractile.errors import ApiError, NotSent, Unreachable
from fractile.extender.nominated import kept
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Entry, EntryState, Ledger
from fractile.model.placement import Placement
from fractile.model.quota import owner_of
from fractile.model.refusal import Code, Refusal
from fractile.model.request import PodRequest
from fractile.model.units import MemoryUnit, PodUID
from fractile.model.words import quoted
from fractile.policy.cards.effort import CALL, Effort
from fractile.policy.cards.reasons import no_cards
from fractile.policy.cards.state import NodeState
from fractile.policy.quota import Allowance, plan_within
from fractile.reconcile.nominations import Claim, Nominations, rank
from fractile.watch.event_handlers import PodHandlers
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.fractile import placement
from fractile.wire.fractile.placement import LEADER
from fractile.wire.kubernetes.extender import BindingArgs
from fractile.wire.kubernetes.objects import Pod

log = logging.getLogger(__name__)

Narrowed = Callable[[PodRequest, str], PodRequest | None]  # restricts to the card that a policy chooses on that node
Reached = Callable[[str], None]  # called with the name of each step: "assumed", "bound"


class _Turn:
    """The calls for one pod: one runs, the others wait."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.users = 0


class Binder:
    """Binds pods: one call at a time per UID, any number of UIDs in parallel. ``term`` names the term of leadership
    under which it binds, so that the API server refuses late writes of a former leader; "" where no other replica can
    lead."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: WaitingPods,
        handlers: PodHandlers,
        client: KubeClient,
        unit: MemoryUnit,
        wall_ns: Callable[[], int],
        dialects: frozenset[str] = NAMES,
        classes: ClassIndex | None = None,
        narrowed: Narrowed = lambda request, node: None,
        reached: Reached = lambda step: None,
        term: Callable[[], str] = lambda: "",
        nominations: Nominations | None = None,
    ) -> None:
        self._nominations = nominations
        self._term = term
        self._ledger = ledger
        self._classes = ClassIndex(ledger) if classes is None else classes
        self._waiting = waiting
        self._handlers = handlers
        self._client = client
        self._unit = unit
        self._dialects = dialects
        self._wall_ns = wall_ns
        self._narrowed = narrowed
        self._reached = reached
        self._turns: dict[PodUID, _Turn] = {}

    async def bind(self, args: BindingArgs) -> Refusal | None:
        """Bind the pod to the node, or say why not. Raises ApiError or Unreachable when the outcome is unknown."""
        uid = PodUID(args.pod_uid)
        async with self._alone(uid):
            # 1. What does the pod ask for?
            request = await self._request(args, uid)
            if isinstance(request, Refusal):
                return request
            # 2. Is this a repeated call?
            earlier = await self._earlier(args, uid)
            if isinstance(earlier, Refusal):
                return earlier
            if earlier is not None and earlier.state is EntryState.BOUND:
                return None
            # 3. Choose the cards and assume them, unless an earlier call did.
            chosen = earlier.placement if earlier else self._assume(request, args.node, uid)
            if isinstance(chosen, Refusal):
                return chosen
            self._reached("assumed")
            # 4. The one write.
            return await self._write(args, uid, request, chosen)

    def reserve(self, uid: PodUID, request: PodRequest, node: str) -> Placement | Refusal | None:
        """Choose the cards and assume them before kube-scheduler calls bind (``globalplacement.reservations``)."""
        return self._assume(request, node, uid)

    @asynccontextmanager
    async def _alone(self, uid: PodUID) -> AsyncGenerator[None, None]:
        turn = self._turns.setdefault(uid, _Turn())
        turn.users += 1
        try:
            async with turn.lock:  # held at most until the API calls time out
                yield
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[uid]

    async def _request(self, args: BindingArgs, uid: PodUID) -> PodRequest | Refusal | None:
        waiting = self._waiting.find(uid)
        if waiting is not None:
            return waiting.request
        # Our watch may be behind kube-scheduler's: read an unknown pod before refusing it.
        pod = await self._get(args)
        if pod is None or pod.metadata.uid != uid:
            return _gone(args, pod)
        if not names_ours(pod):  # kube-scheduler sends us only pods that do; no other pods are bound here
            return Refusal(Code.NOT_OURS, "the pod asks for nothing that Fractile gives out; kube-scheduler binds it")
        self._handlers.looked(pod)  # from now on ``reconcile.assumed_pods`` can read it by name
        return parse_pod(pod, self._unit, self._dialects)

    async def _earlier(self, args: BindingArgs, uid: PodUID) -> Entry | Refusal | None:
        """What an earlier call for this pod left in the ledger."""
        entry = self._ledger.entry(uid)
        if entry is None or entry.placement.node == args.node:
            return entry
        if entry.state is EntryState.BOUND:
            return Refusal(Code.ELSEWHERE, f"the pod is already bound to {entry.placement.node}")
        # kube-scheduler chose another node after a Binding of unknown outcome: did that Binding succeed?
        pod = await self._get(args)
        if pod is not None and pod.metadata.uid == uid and pod.spec.node_name:
            self._handlers.looked(pod)
            return Refusal(Code.ELSEWHERE, f"the pod is already bound to {pod.spec.node_name}")
        if entry.sent:
            return Refusal(
                Code.ELSEWHERE, f"a Binding to {entry.placement.node} got no answer and may still take effect"
            )
        self._handlers.give_back(uid)
        return None

    def _assume(self, request: PodRequest | None, node: str, uid: PodUID) -> Placement | Refusal | None:
        if request is None:
            return None  # an amount of 0, or a family that is off: kube-scheduler still leaves the Binding to us
        known = resolve(request, self._classes)
        if isinstance(known, Refusal):
            return known
        claims = self._claims(node, request.uid)
        state = self._ledger.imagine(node, taken=claims)
        if state is None:
            return no_cards()
        usage = self._ledger.usage
        left = usage.allowance(known)
        chosen = left if isinstance(left, Refusal) else self._plan(known, state, left)
        if isinstance(chosen, Refusal):
            return kept(len(claims)) if claims and chosen.resolvable else chosen
        return self._ledger.assume(uid, chosen, owner_of(request)) or chosen

    def _claims(self, node: str, uid: PodUID) -> list[Claim]:
        """The claims of pods that were nominated to the node and precede this one."""
        if self._nominations is None or node not in self._nominations.nodes():
            return []
        pod = self._waiting.find(uid)
        return [] if pod is None else self._nominations.claims(node, rank(pod.priority, pod.created, uid))

    def _plan(self, request: PodRequest, state: NodeState, left: Allowance | None) -> Placement | Refusal:
        """The card that the pod's policy chooses, or any other when that one is not available."""
        place = self._ledger.usage.place(state.node)
        only = self._narrowed(request, state.node)
        effort = Effort(search=CALL, dead_ends=self._ledger.dead_ends)
        chosen = plan_within(only, state, place, left, effort) if only else None
        return chosen if isinstance(chosen, Placement) else plan_within(request, state, place, left, effort)

    async def _write(
        self, args: BindingArgs, uid: PodUID, request: PodRequest | None, chosen: Placement | None
    ) -> Refusal | None:
        before = self._ledger.sent(uid)

        def still_due() -> bool:
            """Whether the cards are still held: waits for the pace or a login may outlast a hold. The time in which the
            write may arrive begins now."""
            entry = self._ledger.entry(uid)
            due = chosen is None or (entry is not None and entry.placement == chosen)
            if due:
                self._ledger.sent(uid)
            return due

        try:
            await self._client.bind(
                namespace=args.pod_namespace,
                name=args.pod_name,
                uid=uid,
                node=args.node,
                annotations=self._annotations(request, chosen),
                still_due=still_due,
            )
        except NotSent:
            entry = self._ledger.entry(uid)
            if not before and entry is not None and entry.placement == chosen:  # not what a reservation has held since
                self._handlers.give_back(uid)
            raise
        except asyncio.CancelledError:
            self._ledger.renew(uid)
            raise
        except (ApiError, Unreachable) as e:
            return await self._failed(args, uid, e, before=before)
        self._reached("bound")
        if request is not None and chosen is not None:
            self._handlers.written(uid, chosen, owner_of(request))
        return None

    def _annotations(self, request: PodRequest | None, chosen: Placement | None) -> dict[str, str]:
        term = {LEADER: said} if (said := self._term()) else {}
        if request is None or chosen is None:
            return term
        cards = self._ledger.cards(chosen.node)
        dialect = placement_annotations(request, chosen, cards=cards, unit=self._unit, now_ns=self._wall_ns())
        return {**dialect, **term, placement.ANNOTATION: placement.encode(chosen)}

    async def _failed(
        self, args: BindingArgs, uid: PodUID, error: ApiError | Unreachable, *, before: bool
    ) -> Refusal | None:
        """``before``: an earlier write for this pod had no answer, and may still arrive although this one was
        refused."""
        if isinstance(error, Unreachable) or error.code >= 500:
            self._ledger.renew(uid)  # the API server may have received the write only just now
        if await self._is_bound(args, uid):
            return None
        if isinstance(error, Unreachable) or error.code >= 500:
            log.warning("bind outcome unknown pod=%s/%s reason=%s", args.pod_namespace, args.pod_name, error)
            raise error
        if not before:
            self._handlers.give_back(uid)
        return Refusal(Code.GONE if error.code == 404 else Code.ELSEWHERE, error.message)

    async def _is_bound(self, args: BindingArgs, uid: PodUID) -> bool:
        """Whether the API server has this pod on this node; the ledger is updated either way."""
        pod = await self._get(args)
        if pod is None or pod.metadata.uid != uid or not pod.spec.node_name:
            return False
        self._handlers.looked(pod)
        return pod.spec.node_name == args.node

    async def _get(self, args: BindingArgs) -> Pod | None:
        try:
            return await self._client.get(paths.pod(args.pod_namespace, args.pod_name), Pod)
        except ApiError as e:
            if e.code == 404:
                return None
            raise


def _gone(args: BindingArgs, found: Pod | None) -> Refusal:
    """``found``: the pod that has the name now. The caller may have made up name or UID, so the message claims no more
    than is known."""
    named = f"there is no pod {quoted(args.pod_namespace)}/{quoted(args.pod_name)}"
    if found is None:
        return Refusal(Code.GONE, f"{named}: it was deleted, or it never existed")
    has = f"the pod of that name has UID {found.metadata.uid}"
    return Refusal(Code.GONE, f"{named} with UID {quoted(args.pod_uid)}: {has}")
