"""Makes kube-scheduler retry a waiting pod as soon as room appears.

kube-scheduler retries on the deletion of a pod, but it may see the deletion before our watch does: the retry is
refused, and nothing retries for up to 5 minutes (evidence/kube-scheduler.md#retry). So when the ledger has really freed
something, the oldest waiting pods that now fit are touched: a change of a pod makes kube-scheduler retry it. When a
class changes, all pods that wait for it are touched; when a namespace may hold more than before, as many of its pods as
its quota then allows. Pods that a filter could not fully judge are touched too, so that the next call continues.

Whether a pod fits may be costly to determine (``policy.cards.effort``). So each pod and each round has a budget, and
other tasks run between two pods. A round that ends before the youngest pod is continued by the next.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from fractile.errors import FractileError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.ledger.classes import ClassIndex, resolve
from fractile.ledger.ledger import Ledger
from fractile.model.refusal import Refusal
from fractile.model.request import ContainerRequest, PodRequest
from fractile.model.units import NodeName, PodUID
from fractile.policy.cards.choice import fits
from fractile.policy.cards.effort import Effort
from fractile.policy.cards.state import NodeState
from fractile.policy.quota import Model, costs_of, fits_within
from fractile.reconcile.faults import Faults
from fractile.watch.waiting_pods import WaitingPod, WaitingPods

log = logging.getLogger(__name__)

ANNOTATION = "fractile.dev/retry"

_GATHER = 0.05  # seconds; releases come in bursts
_AT_ONCE = 10  # pods touched per burst: kube-scheduler's own events or the next release cause a retry of the rest
_AGAIN = 1.0  # seconds after which a pod that is still waiting is touched once more
_TRIES = 3
_OF_NAMESPACE = 50  # pods touched at a time of one namespace that may hold more, or of classes that changed
_IN_ALL = 100  # ... and of all of them, approximately
_LOOKS = 10_000  # at all nodes, for one pod: 15 ms
_OF_SEARCH = 2_500  # ... and at one of them
_OF_ROUND = 100_000  # for all pods: with a round each second, a sixth of the processor
_COMPARED = 1000  # containers, after which other tasks run
_UNDECIDED = 2  # pods touched at a time that no filter has fully judged
_MOST_UNDECIDED = 1000  # the most such pods that are remembered


_Age = tuple[str, PodUID]  # sorts as ``oldest_first`` does


class Requeue:
    """``freed``, ``class_changed`` and ``eased`` are called by the feeds; ``run`` touches the pods."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        waiting: WaitingPods,
        client: KubeClient,
        wall_ns: Callable[[], int],
        classes: ClassIndex | None = None,
        faults: Faults | None = None,
    ) -> None:
        self._faults = faults or Faults()
        self._ledger = ledger
        self._classes = ClassIndex(ledger) if classes is None else classes
        self._waiting = waiting
        self._client = client
        self._wall_ns = wall_ns
        self._nodes: dict[NodeName, int] = {}  # nodes with new room -> tries left
        self._changed: set[str] = set()  # classes; thousands at the same time when they are listed
        self._named: dict[PodUID, None] = {}  # pods that wait for them, the oldest first
        self._eased: dict[str, dict[PodUID, int]] = {}  # namespaces that may hold more -> touches of each pod
        self._undecided: dict[PodUID, None] = {}
        self._stopped: _Age | None = None  # of the last pod of a round that ended before the youngest
        self._work = asyncio.Event()

    def freed(self, node: NodeName) -> None:
        if len(self._waiting):
            self._nodes[node] = _TRIES
            self._work.set()

    def class_changed(self, name: str) -> None:
        """A class was added, or its definition changed."""
        if len(self._waiting):
            self._changed.add(name)
            self._work.set()

    def undecided(self, uid: PodUID) -> None:
        """A filter found no node for this pod and could not check all nodes."""
        if len(self._undecided) < _MOST_UNDECIDED:
            self._undecided[uid] = None
            self._work.set()

    def eased(self, namespace: str) -> None:
        """The namespace holds less than before."""
        if len(self._waiting) and not self._ledger.usage.quota.limits_nobody:
            self._eased[namespace] = {}
            self._work.set()

    def eased_everywhere(self) -> None:
        """The quotas changed, or the labels of nodes to which they refer."""
        for pod in self._waiting.oldest_first():
            self._eased[pod.namespace] = {}
        if self._eased:
            self._work.set()

    async def run(self) -> None:
        while True:
            await self._wait()
            for pod in self.of_changed_classes():
                await self._touch(pod)
            for pod in await self.within_quota():
                await self._touch(pod)
            for pod in self._to_be_judged():
                await self._touch(pod)
            nodes = list(self._nodes)
            # kube-scheduler may have been working on a touched pod at that moment and refuse it once more, so each
            # release is acted on several times.
            self._nodes = {node: tries - 1 for node, tries in self._nodes.items() if tries > 1}
            for pod in await self.candidates(nodes):
                await self._touch(pod)
            if self._stopped is not None:
                self._nodes = dict.fromkeys(nodes, 1) | self._nodes

    async def _wait(self) -> None:
        """Wait until something was freed, or until it is time to check earlier releases again."""
        try:
            waits = self._nodes or self._named or self._eased or self._undecided
            async with asyncio.timeout(_AGAIN if waits else None):
                await self._work.wait()
        except TimeoutError:
            return
        await asyncio.sleep(_GATHER)
        self._work.clear()

    def of_changed_classes(self) -> list[WaitingPod]:
        """Some of the pods that wait for changed classes; the next calls return the others."""
        changed, self._changed = self._changed, set()
        for pod in self._waiting.oldest_first() if changed else ():
            if not pod.gated and not changed.isdisjoint(_classes(pod)):
                self._named[pod.uid] = None
        some = list(islice(self._named, _OF_NAMESPACE))
        for uid in some:
            del self._named[uid]
        return [pod for pod in map(self._waiting.find, some) if pod is not None]

    def _to_be_judged(self) -> list[WaitingPod]:
        some = list(islice(self._undecided, _UNDECIDED))
        for uid in some:
            del self._undecided[uid]
        return [pod for pod in map(self._waiting.find, some) if pod is not None]

    async def candidates(self, nodes: list[NodeName]) -> list[WaitingPod]:
        """The oldest waiting pods that now fit on one of the nodes, as far as the round's budget goes."""
        states = [state for state in map(self._ledger.node, nodes) if state is not None]
        # Thousands may wait, but few differ in their request.
        known: dict[tuple[str, tuple[ContainerRequest, ...]], bool] = {}
        found: list[WaitingPod] = []
        left, compared = _OF_ROUND, 0
        stopped, self._stopped = self._stopped, None
        for pod in self._waiting.oldest_first() if states else ():
            if stopped is not None and _age(pod) <= stopped:
                continue
            if len(found) == _AT_ONCE:
                break
            if pod.gated or isinstance(pod.request, Refusal) or self._ledger.entry(pod.uid) is not None:
                continue
            shape = pod.namespace, pod.request.containers
            compared += len(pod.request.containers)
            if shape not in known or compared > _COMPARED:
                compared = 0
                await asyncio.sleep(0)
            if shape not in known:
                effort = Effort(_LOOKS, search=_OF_SEARCH, easy=0, dead_ends=self._ledger.dead_ends)
                known[shape] = False
                with self._faults.apart("wake-up", pod.namespace, pod.name):
                    request = resolve(pod.request, self._classes)
                    known[shape] = not isinstance(request, Refusal) and self._fits(request, states, effort)
                left -= effort.spent
            if known[shape] and self._waiting.find(pod.uid) is not None:
                found.append(pod)
            if left <= 0:
                self._stopped = _age(pod)
                break
        return found

    def _fits(self, request: PodRequest, states: Sequence[NodeState], effort: Effort) -> bool:
        usage = self._ledger.usage
        left = usage.allowance(request)
        if left is None or isinstance(left, Refusal):
            return left is None and any(fits(request, state, effort) for state in states)
        return any(fits_within(request, state, usage.place(state.node), left, effort) for state in states)

    async def within_quota(self) -> list[WaitingPod]:
        """Some of the pods of namespaces that may hold more than before: as many as their quotas allow together, those
        touched least often first, then the oldest. A namespace without a fitting pod is forgotten."""
        chosen: list[WaitingPod] = []
        oldest: dict[str, list[WaitingPod]] = {namespace: [] for namespace in self._eased}
        for pod in self._waiting.oldest_first() if self._eased else ():
            oldest.get(pod.namespace, []).append(pod)
        for namespace in list(self._eased):
            if len(chosen) >= _IN_ALL:
                break
            touched = self._eased.pop(namespace)
            mine = [p for p in oldest[namespace] if touched.get(p.uid, 0) < _TRIES]
            some = await self._borne(sorted(mine, key=lambda p: touched.get(p.uid, 0)))
            for pod in some:
                touched[pod.uid] = touched.get(pod.uid, 0) + 1
            if some:
                self._eased.setdefault(namespace, touched)  # at the end: the others come first next time
            chosen += some
        return chosen

    async def _borne(self, pods: Iterable[WaitingPod]) -> list[WaitingPod]:
        """The pods of one namespace that its quota allows together, if there is room for each."""
        besides: dict[Model, int] = {}
        nowhere: set[tuple[ContainerRequest, ...]] = set()  # what did not fit will not fit once more is held
        borne: list[WaitingPod] = []
        for pod in pods:
            if len(borne) == _OF_NAMESPACE:
                break
            if pod.gated or isinstance(pod.request, Refusal) or pod.request.containers in nowhere:
                continue
            if self._ledger.entry(pod.uid) is not None:
                continue
            bears = None
            with self._faults.apart("wake-up", pod.namespace, pod.name):
                bears = self._bears(pod.request, besides)
            if bears:
                borne.append(pod)
            elif bears is False:
                nowhere.add(pod.request.containers)
            await asyncio.sleep(0)
        return borne

    def _bears(self, asked: PodRequest, besides: dict[Model, int]) -> bool | None:
        """Whether the quota also allows this pod, which is then added to ``besides``; None: unknown."""
        usage, bounds = self._ledger.usage, self._ledger.bounds
        request = resolve(asked, self._classes)
        if isinstance(request, Refusal):
            return None
        left = usage.allowance(request, besides)
        if isinstance(left, Refusal) or not bounds.somewhere(request, left):
            return False
        for kind in () if usage.quota.limits_nobody else usage.kinds():
            besides[kind.named] = besides.get(kind.named, 0) + costs_of(request, kind.memory)[0]
        return True

    async def _touch(self, pod: WaitingPod) -> None:
        body = {"metadata": {"uid": pod.uid, "annotations": {ANNOTATION: str(self._wall_ns())}}}
        try:
            await self._client.merge_patch(paths.pod(pod.namespace, pod.name), body)
            log.info("woke pod=%s/%s", pod.namespace, pod.name)
        except FractileError as e:
            log.warning("wake-up failed pod=%s/%s reason=%s", pod.namespace, pod.name, e)


def _age(pod: WaitingPod) -> _Age:
    return pod.created, pod.uid


def _classes(pod: WaitingPod) -> list[str]:
    """The classes that the pod names."""
    if isinstance(pod.request, Refusal):
        return []
    return [
        name for c in pod.request.containers if c.request.device_class for name in c.request.device_class.split(",")
    ]
