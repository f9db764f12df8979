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
        self._books = Bookkeeping(client, term, options)
        self._deciders = Deciders(self._books, client, nominating, term, options, program)
        self._watches = Watches(self._books, self._deciders, client, options, program.sweeper)
        self._answers = Answers(
            self._books,
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
            self._term.unsettled(self._books.ledger.unsettled)
            stage.clear()
            debug.clear()

    def _is_ready(self) -> bool:
        return self._rebuilt.is_set() and self._term.leading()

    def _loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        books, deciders, watches, admission = self._books, self._deciders, self._watches, self._answers.admission
        cuts = deciders.cuts
        learned = [watch.synced for watch in (watches.cards, watches.upkeep.nodes, watches.pods)]
        return (
            *watches.loops(),
            self._rebuild(),
            *deciders.quotas.loops(),
            books.requeue.run(),
            books.assumed.run(),
            books.events.run(),
            books.evictions.budgets.run(),
            deciders.choice.run(self._rebuilt),
            *deciders.scoring.loops(learned),
            *([cuts.rules.run(), cuts.nodes.run()] if cuts else []),
            *(admission.loops() if admission else ()),
        )

    async def _rebuild(self) -> None:
        books = self._books
        await rebuild(
            [watch.synced for watch in self._watches.first],
            self._watches.pods,
            books.ledger,
            quiet=self._term.quiet,
            begin=books.repair.begin,
            after=[books.repair.run, books.audit.run],
            rebuilt=self._begin,
        )

    def _begin(self) -> None:
        self._rebuilt.set()
        self._books.requeue.eased_everywhere()
