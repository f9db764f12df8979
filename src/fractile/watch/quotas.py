"""Follows the ConfigMap of quotas and the labels of nodes, and tells the ledger what they say.

Level-triggered: the last state of the ConfigMap is what counts. One that makes no sense changes nothing: the quotas
stay as they were, and an event on it says where and why. A program that has just started takes those that were kept
for it (``quota_kept``). Where it is known that there was no ConfigMap before, that stays in force: nobody is limited.
Failure rule: a program that has just started, for which nothing was kept, gives nobody a card until somebody corrects
it. To forget all quotas for a typing error would give away what others count on. A ConfigMap that is not
there limits nobody; one that was deleted counts for some seconds more, since to replace it is to delete it first.

Quotas are for pods that are still to be placed: nobody who runs loses anything, and what runs counts.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from fractile.errors import WireError
from fractile.kube.events import EventKind, ObjectRef
from fractile.kube.reflector import Gone
from fractile.ledger.usage import LedgerUsage
from fractile.model.quota import MODEL_LABELS, POOL_LABELS, NamespaceQuota, NodePlace, Quota
from fractile.model.units import NodeName
from fractile.wire.files import quota_file
from fractile.wire.kubernetes.objects import ConfigMap, ObjectMeta

log = logging.getLogger(__name__)

AWAY = 5.0  # seconds after which a ConfigMap that was deleted limits nobody


class Cancels(Protocol):
    def cancel(self) -> object: ...


Later = Callable[[float, Callable[[], None]], Cancels]  # after so many seconds, unless it is cancelled
Tell = Callable[[ObjectRef, str, str, EventKind], None]  # about what, the event's reason, message


def _later(seconds: float, call: Callable[[], None]) -> Cancels:
    return asyncio.get_running_loop().call_later(seconds, call)


class QuotaHandlers:
    """``source``: namespace and name of the ConfigMap, for sentences. ``others``: whether namespaces that it does not
    name may use cards. ``eased`` is told whenever somebody may have more than before, as far as anybody can say;
    ``keep`` whenever ``text`` is another one."""

    def __init__(
        self,
        usage: LedgerUsage,
        source: str,
        *,
        others: bool,
        tell: Tell,
        eased: Callable[[], None],
        keep: Callable[[], None] = lambda: None,
        later: Later = _later,
    ) -> None:
        self._later = later
        self._leaving: Cancels | None = None  # it was deleted, and nobody has made it again yet
        self._usage = usage
        self._source = source
        self._others = others
        self._tell = tell
        self._eased = eased
        self._keep = keep
        self._good: dict[str, NamespaceQuota] | None = None  # the last that made sense
        self._recalled: dict[str, NamespaceQuota] | None = None  # of an earlier program
        self._absent = False  # there was none when we looked last, and none that made sense since
        self.problem = ""  # what is wrong with the ConfigMap as it is now
        self.text: str | None = None  # what it says, "" when there is none; None: nothing that is known makes sense
        usage.limit(Quota(others=others))

    def changed(self, config: ConfigMap) -> None:
        """The ConfigMap is there, or says something else."""
        self._stays()
        about = ObjectRef("ConfigMap", config.metadata.namespace, config.metadata.name, config.metadata.uid)
        try:
            quotas = quota_file.decode(config.data or {}, f"quota ConfigMap {self._source}")
        except WireError as e:
            self._refused(about, str(e))
            return
        recovered = bool(self.problem)
        self.problem = ""
        self._say((config.data or {})[quota_file.KEY])
        if quotas == self._good and not recovered:
            return
        self._good = quotas
        self._absent = False
        self._put(Quota(quotas, others=self._others))
        log.info("quotas read source=%s namespaces=%d", self._source, len(quotas))
        self._tell(about, "QuotaRead", f"in force for {len(quotas)} namespace{'s' * (len(quotas) != 1)}", "Normal")

    def gone(self, _: Gone) -> None:
        """The ConfigMap was deleted. Its quotas count for ``AWAY`` seconds more."""
        self._stays()
        self._leaving = self._later(AWAY, self._left)

    def _stays(self) -> None:
        if self._leaving is not None:
            self._leaving.cancel()
            self._leaving = None

    def _left(self) -> None:
        self._leaving = None
        self.problem = ""
        self._good = self._recalled = None
        self._absent = True
        self._say("")
        self._put(Quota(others=self._others))
        log.warning("quotas gone source=%s", self._source)

    def synced(self) -> None:
        """What there is of the ConfigMap has been shown: it is not there if it was not."""
        if self.text is None and not self.problem:
            self._recalled = None
            self._absent = True
            self._say("")

    def recall(self, quotas: dict[str, NamespaceQuota]) -> None:
        """These were in force before this program started; they count if the ConfigMap makes no sense."""
        self._recalled = quotas
        if self.problem and self._good is None:
            self._stay(quotas)

    def node_changed(self, node: ObjectMeta) -> None:
        """A node, with its labels or without."""
        self._place(NodeName(node.name), place_of(node))

    def node_gone(self, node: Gone) -> None:
        self._place(NodeName(node.name), NodePlace())

    def _say(self, text: str) -> None:
        if self.text != text:
            self.text = text
            self._keep()

    def _stay(self, quotas: dict[str, NamespaceQuota]) -> None:
        self._good = quotas
        self._put(Quota(quotas, others=self._others))
        log.warning("quotas of an earlier program are in force source=%s namespaces=%d", self._source, len(quotas))

    def _refused(self, about: ObjectRef, problem: str) -> None:
        self.problem = problem
        self.text = None
        if self._good is None and self._recalled is not None:
            self._stay(self._recalled)
        if self._good is None and self._absent:
            kept = "it counts as if it were not there, as before"
        elif self._good is None:
            self._put(Quota(problem=f"{problem}; until that is corrected nobody is given a card"))
            kept = "nobody is given a card until that is corrected"
        else:
            kept = "the quotas stay as they were"
        log.error("quotas refused reason=%s consequence=%s", problem, kept)
        self._tell(about, "QuotaIgnored", f"{problem}; {kept}", "Warning")

    def _put(self, quota: Quota) -> None:
        if quota != self._usage.quota:
            self._usage.limit(quota)
            self._eased()

    def _place(self, node: NodeName, place: NodePlace) -> None:
        if self._usage.place(node) != place:
            self._usage.put_place(node, place)
            if not self._usage.quota.limits_nobody:
                self._eased()


def place_of(node: ObjectMeta) -> NodePlace:
    """What the node's labels say."""
    labels = node.labels or {}
    return NodePlace(_first(labels, POOL_LABELS), _first(labels, MODEL_LABELS))


def _first(labels: dict[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
