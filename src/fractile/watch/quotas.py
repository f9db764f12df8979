"""Follows the ConfigMap of quotas and the labels of nodes, and updates the ledger from them.

Level-triggered: the last state of the ConfigMap counts. An invalid one changes nothing: the quotas stay as they were,
and an event on it says where and why. A program that has just started uses the quotas kept for it
(``reconcile.kept_quotas``). If there was no ConfigMap before, that state stays in force: nothing is limited.
Failure rule: a program that has just started without kept quotas gives no pod a card until the ConfigMap is corrected,
since to drop all quotas for a typing error would give away what other tenants count on. A missing ConfigMap limits
nothing; a deleted one counts for some more seconds, since replacing it means deleting it first.

Quotas are for pods that are still to be placed: running pods lose nothing, and what they hold counts.
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

AWAY = 5.0  # seconds after which a deleted ConfigMap no longer limits anything


class Cancels(Protocol):
    def cancel(self) -> object: ...


Later = Callable[[float, Callable[[], None]], Cancels]  # after so many seconds, unless it is cancelled
Tell = Callable[[ObjectRef, str, str, EventKind], None]  # the object, the event's reason, message


def _later(seconds: float, call: Callable[[], None]) -> Cancels:
    return asyncio.get_running_loop().call_later(seconds, call)


class QuotaHandlers:
    """``source``: namespace and name of the ConfigMap, for messages. ``others``: whether namespaces that it does not
    name may use cards. ``eased`` is called whenever a namespace might have more than before; ``keep`` whenever ``text``
    changes."""

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
        self._leaving: Cancels | None = None  # it was deleted, and has not been recreated yet
        self._usage = usage
        self._source = source
        self._others = others
        self._tell = tell
        self._eased = eased
        self._keep = keep
        self._good: dict[str, NamespaceQuota] | None = None  # the last valid one
        self._recalled: dict[str, NamespaceQuota] | None = None  # of an earlier program
        self._absent = False  # there was no ConfigMap at the last check, and no valid one since
        self.problem = ""  # what is wrong with the current ConfigMap
        self.text: str | None = None  # its content, "" when there is no ConfigMap; None: no valid content is known
        usage.limit(Quota(others=others))

    def changed(self, config: ConfigMap) -> None:
        """Handle a ConfigMap that appeared or changed."""
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
        """Handle the deletion of the ConfigMap. Its quotas count for ``AWAY`` more seconds."""
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
        """Handle the end of the first list: a ConfigMap that was not shown by then does not exist."""
        if self.text is None and not self.problem:
            self._recalled = None
            self._absent = True
            self._say("")

    def recall(self, quotas: dict[str, NamespaceQuota]) -> None:
        """Take the quotas that were in force before this program started; they count if the ConfigMap is invalid."""
        self._recalled = quotas
        if self.problem and self._good is None:
            self._stay(quotas)

    def node_changed(self, node: ObjectMeta) -> None:
        """Handle a node that appeared or changed, with or without labels."""
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
            kept = "it is treated as missing, as before"
        elif self._good is None:
            self._put(Quota(problem=f"{problem}; until that is corrected, no pod is given a card"))
            kept = "no pod is given a card until that is corrected"
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
    """The node's place, from its labels."""
    labels = node.labels or {}
    return NodePlace(_first(labels, POOL_LABELS), _first(labels, MODEL_LABELS))


def _first(labels: dict[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")
