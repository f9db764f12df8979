"""The ledger of a term, and what keeps it in step with the pods of the API server."""

import time

from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.main.leading import LeadTerm
from fractile.main.listeners import Listeners
from fractile.main.term.options import ControlPlaneOptions
from fractile.main.term.preemption import Evictions
from fractile.model.units import NodeName
from fractile.reconcile.assumed_pods import AssumedPods
from fractile.reconcile.faults import Faults
from fractile.reconcile.ledger_audit import LedgerAudit
from fractile.reconcile.repair import Repair
from fractile.reconcile.requeue import Requeue
from fractile.watch.event_handlers import ClassHandlers, PodHandlers
from fractile.watch.waiting_pods import WaitingPods


class Bookkeeping:
    """``freed`` is called with the name of a node that has room again."""

    def __init__(self, client: KubeClient, term: LeadTerm, options: ControlPlaneOptions) -> None:
        self.ledger = Ledger(time.monotonic, slots=options.slots)
        self.classes = ClassIndex(self.ledger)
        self.waiting = WaitingPods()
        self.events = EventRecorder(client, "fractile")
        self.faults = Faults()
        self.requeue = Requeue(
            ledger=self.ledger,
            waiting=self.waiting,
            client=client,
            wall_ns=time.time_ns,
            classes=self.classes,
            faults=self.faults,
        )
        self.freed: Listeners[NodeName] = Listeners(self.requeue.freed)
        self.evictions = Evictions(client, self.ledger, self.waiting, self.classes, self.faults)
        self.repair = Repair(
            ledger=self.ledger,
            client=client,
            unit=options.unit,
            warn=self.events.emit,
            wall_ns=time.time_ns,
            dialects=options.dialects,
            classes=self.classes,
            term=lambda: term.name,
            faults=self.faults,
        )
        self.pods = PodHandlers(
            ledger=self.ledger,
            waiting=self.waiting,
            unit=options.unit,
            warn=self.events.emit,
            freed=self.freed,
            needs_repair=self.repair.request,
            dialects=options.dialects,
            eased=self.requeue.eased,
            named=self.evictions.assigned_pods.named,
        )
        self.class_handlers = ClassHandlers(self.classes, changed_class=self.requeue.class_changed)
        self.audit = LedgerAudit(
            ledger=self.ledger, handlers=self.pods, client=client, warn=self.events.emit, faults=self.faults
        )
        self.assumed = AssumedPods(
            ledger=self.ledger, waiting=self.waiting, handlers=self.pods, client=client, faults=self.faults
        )
