"""What a term serves: the extender's verbs, the webhook's reviews, and the pages of its metrics and state."""

import time
from collections.abc import Callable

from starlette.types import ASGIApp

from fractile.debug.debug_state import LeadParts
from fractile.extender.app import Extender, application
from fractile.extender.expected import Expected
from fractile.kube.client import KubeClient
from fractile.main.term.bookkeeping import Bookkeeping
from fractile.main.term.deciders import Deciders
from fractile.main.term.options import ControlPlaneOptions, Program
from fractile.main.term.watches import Watches
from fractile.main.term.webhook import Admission
from fractile.metrics.control_plane import PlacementFigures


class Answers:
    """``ready`` says whether the ledger is rebuilt and this replica leads. ``admission`` None: there is no webhook."""

    def __init__(
        self,
        bookkeeping: Bookkeeping,
        deciders: Deciders,
        watches: Watches,
        client: KubeClient,
        *,
        ready: Callable[[], bool],
        options: ControlPlaneOptions,
        program: Program,
    ) -> None:
        self._bookkeeping, self._deciders, self._watches = bookkeeping, deciders, watches
        self._ready, self._options, self._program = ready, options, program
        self._expected = Expected(time.monotonic)
        self.extender = self._make_extender()
        self.admission = self._make_admission(client) if options.webhook.listen else None

    def app(self) -> ASGIApp:
        """The extender and ``/metrics``."""
        metrics = self._deciders.quotas.metrics(
            self._bookkeeping.waiting,
            self._ready,
            self._placement_figures,
            insecure_open=bool(self._program.warning),
            faults=self._bookkeeping.faults.counts,
            certified=lambda: self.admission.certified if self.admission else None,
        )
        return application(self.extender, more=[metrics], warning=self._program.warning)

    def parts(self) -> LeadParts:
        """What ``/debug/state`` shows about this term."""
        options = self._options
        return LeadParts(
            ledger=self._bookkeeping.ledger,
            waiting=self._bookkeeping.waiting,
            nominations=self._bookkeeping.evictions.nominations,
            feeds=[
                *self._watches.first,
                self._watches.pods,
                *self._watches.classes,
                self._bookkeeping.evictions.budgets,
            ],
            expected=self._expected.__len__,
            quota_problem=lambda: self._deciders.quotas.handlers.problem,
            options={
                "node-policy": options.scoring.policy,
                "memory-unit": options.unit.name,
                "dialects": ",".join(sorted(options.dialects)),
                "extender": self._program.warning or "for callers with a certificate of --client-ca",
            },
        )

    def _placement_figures(self) -> PlacementFigures:
        return self._program.tally.figures(self._deciders.choice.placing.standing)

    def _make_extender(self) -> Extender:
        options, traces = self._options, self._options.traces
        return Extender(
            ledger=self._bookkeeping.ledger,
            binder=self._deciders.binder,
            expected=self._expected,
            unit=options.unit,
            ready=self._ready,
            dialects=options.dialects,
            classes=self._bookkeeping.classes,
            policies=self._deciders.scoring.policies,
            preemption=self._bookkeeping.evictions.preemption,
            nominations=self._bookkeeping.evictions.nominations,
            placing=self._deciders.choice.placing,
            trace=traces.trace if traces else None,
            naming=options.naming,
            undecided=self._bookkeeping.requeue.undecided,
        )

    def _make_admission(self, client: KubeClient) -> Admission:
        choice, classes = self._deciders.choice, self._watches.classes
        return Admission(
            self._options.webhook,
            client,
            ledger=self._bookkeeping.ledger,
            classes=self._bookkeeping.classes,
            known=lambda: self._ready() and all(watch.synced.is_set() for watch in classes),
            unit=self._options.unit,
            dialects=self._options.dialects,
            warn=self._bookkeeping.events.emit,
            gate=lambda pod, namespace: self._ready() and choice.gates(pod, namespace),
        )
