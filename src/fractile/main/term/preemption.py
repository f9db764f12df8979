"""Wiring of preemption by card: bound pods and their budgets -> victims; nominated pods -> room that is kept."""

import time

from fractile.extender.preempt import Preemption
from fractile.kube.client import KubeClient
from fractile.kube.reflector import Reflector
from fractile.ledger.classes import ClassIndex
from fractile.ledger.ledger import Ledger
from fractile.reconcile.faults import Faults, itself
from fractile.reconcile.nominations import Nominations
from fractile.watch.assigned_pods import AssignedPods
from fractile.watch.waiting_pods import WaitingPods
from fractile.wire.kubernetes import disruption
from fractile.wire.kubernetes.disruption import PodDisruptionBudget


class Evictions:
    """``assigned_pods`` is fed with the pods, after the ledger; ``budgets`` must be run by the caller."""

    def __init__(
        self, client: KubeClient, ledger: Ledger, waiting: WaitingPods, classes: ClassIndex, faults: Faults
    ) -> None:
        self.assigned_pods = AssignedPods(ledger)
        self.nominations = Nominations(
            ledger=ledger, waiting=waiting, assigned_pods=self.assigned_pods, classes=classes, clock=time.monotonic
        )
        self.preemption = Preemption(ledger, self.assigned_pods, self.nominations)
        self.budgets = Reflector(
            client,
            disruption.PATH,
            PodDisruptionBudget,
            changed=faults.each("budgets", lambda about: about.metadata, self.assigned_pods.budget_changed),
            gone=faults.each("budgets", itself, lambda gone: self.assigned_pods.budget_gone(gone.namespace, gone.name)),
        )
