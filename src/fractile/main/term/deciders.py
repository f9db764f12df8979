"""The decisions of a term: how nodes are scored, how much each namespace may hold, which node and cards a pod gets."""

import time

from fractile.extender.bind import Binder
from fractile.kube.client import KubeClient
from fractile.main.leading import LeadTerm
from fractile.main.term.bookkeeping import Bookkeeping
from fractile.main.term.options import ControlPlaneOptions, Program
from fractile.main.term.placing import GlobalChoice
from fractile.main.term.quota import Quotas
from fractile.main.term.scoring import Scoring
from fractile.main.term.sharing import SharingLoops


class Deciders:
    """``cuts`` None: there are no rules on how cards are cut. ``nominating`` is the client for nominations."""

    def __init__(
        self,
        bookkeeping: Bookkeeping,
        client: KubeClient,
        nominating: KubeClient,
        term: LeadTerm,
        options: ControlPlaneOptions,
        program: Program,
    ) -> None:
        ledger, faults = bookkeeping.ledger, bookkeeping.faults
        self.scoring = Scoring(
            options.scoring, client, ledger, unit=options.unit, dialects=options.dialects, faults=faults
        )
        self.quotas = Quotas(
            options.quota, client, ledger, bookkeeping.events, eased=bookkeeping.requeue.eased_everywhere
        )
        self.cuts = (
            SharingLoops(options.sharing, client, ledger, freed=bookkeeping.pods.freed, faults=faults)
            if options.sharing
            else None
        )
        self.binder = Binder(
            ledger=ledger,
            waiting=bookkeeping.waiting,
            handlers=bookkeeping.pods,
            client=client,
            unit=options.unit,
            wall_ns=time.time_ns,
            dialects=options.dialects,
            classes=bookkeeping.classes,
            narrowed=self.scoring.policies.narrowed,
            reached=term.reached,
            term=lambda: term.name,
            nominations=bookkeeping.evictions.nominations,
        )
        self.choice = GlobalChoice(
            options.placement,
            nominating,
            ledger,
            classes=bookkeeping.classes,
            scoring=self.scoring,
            nominations=bookkeeping.evictions.nominations,
            unit=options.unit,
            dialects=options.dialects,
            handlers=bookkeeping.pods,
            binder=self.binder,
            tally=program.tally,
            faults=faults,
        )
        bookkeeping.freed.add(lambda _: self.choice.placing.freed(), lambda _: self.scoring.policies.soon())
