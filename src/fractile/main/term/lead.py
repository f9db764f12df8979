"""One term of leadership: its objects are built, connected and run until it ends."""

import asyncio
from collections.abc import Coroutine
from typing import Any

from fractile.extender.app import verbs
from fractile.kube.client import KubeClient
from fractile.main.leading import LeadTerm
from fractile.main.term.answers import Answers
from fractile.main.term.bookkeeping import Bookkeeping
from fractile.main.term.deciders import Deciders
from fractile.main.term.options import ControlPlaneOptions, Program
from fractile.main.term.placing import QPS
from fractile.main.term.rebuild import rebuild
from fractile.main.term.watches import Watches


async def lead(term: LeadTerm, options: ControlPlaneOptions, program: Program) -> None:
    """Run until cancelled. Every write passes the term's fence."""
    async with (
        KubeClient(program.access, fence=term.left) as client,
        KubeClient(program.access, fence=term.left, qps=QPS, burst=QPS) as nominating,
    ):
        await _Lead(term, client, nominating, options, program).run()


class _Lead:
    def __init__(
        self,
        term: LeadTerm,
        client: KubeClient,
        nominating: KubeClient,
        options: ControlPlaneOptions,
        program: Program,
    ) -> None:
        self._term, self._program = term, program
        self._rebuilt = asyncio.Event()
        self._bookkeeping = Bookkeeping(client, term, options)
        self._deciders = Deciders(self._bookkeeping, client, nominating, term, options, program)
        self._watches = Watches(self._bookkeeping, self._deciders, client, options, program.sweeper)
        self._answers = Answers(
            self._bookkeeping,
            self._deciders,
            self._watches,
            client,
            ready=self._is_ready,
            options=options,
            program=program,
        )

    async def run(self) -> None:
        stage, debug = self._program.stage, self._program.debug
        stage.show(self._answers.app(), verbs(self._answers.extender))
        debug.lead(self._term, self._answers.parts(), self._is_ready)
        try:
            async with asyncio.TaskGroup() as tasks:
                for loop in self._loops():
                    tasks.create_task(loop)
        finally:
            self._term.unsettled(self._bookkeeping.ledger.unsettled)
            stage.clear()
            debug.clear()

    def _is_ready(self) -> bool:
        return self._rebuilt.is_set() and self._term.leading()

    def _loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        bookkeeping, deciders, watches, admission = (
            self._bookkeeping,
            self._deciders,
            self._watches,
            self._answers.admission,
        )
        cuts = deciders.cuts
        learned = [watch.synced for watch in (watches.cards, watches.upkeep.nodes, watches.pods)]
        return (
            *watches.loops(),
            self._rebuild(),
            *deciders.quotas.loops(),
            bookkeeping.requeue.run(),
            bookkeeping.assumed.run(),
            bookkeeping.events.run(),
            bookkeeping.evictions.budgets.run(),
            deciders.choice.run(self._rebuilt),
            *deciders.scoring.loops(learned),
            *([cuts.rules.run(), cuts.nodes.run()] if cuts else []),
            *(admission.loops() if admission else ()),
        )

    async def _rebuild(self) -> None:
        bookkeeping = self._bookkeeping
        await rebuild(
            [watch.synced for watch in self._watches.first],
            self._watches.pods,
            bookkeeping.ledger,
            quiet=self._term.quiet,
            begin=bookkeeping.repair.begin,
            after=[bookkeeping.repair.run, bookkeeping.audit.run],
            rebuilt=self._begin,
        )

    def _begin(self) -> None:
        self._rebuilt.set()
        self._bookkeeping.requeue.eased_everywhere()
