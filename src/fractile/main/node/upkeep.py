"""The agent's background work for running containers: their directories, their library, and their use."""

import os
import random
from collections.abc import Coroutine
from typing import Any

from fractile.agent.limits.arbiter import ArbiterKeeper
from fractile.agent.limits.bounds import DirectoryBounds
from fractile.agent.limits.garbage_collection import GarbageCollector
from fractile.agent.limits.ledger_lost import LedgerLost
from fractile.agent.limits.library import LibrarySweeper
from fractile.agent.limits.library_damage import LibraryDamage
from fractile.agent.limits.restore import Restorer
from fractile.agent.node.runtime import RuntimeCheck
from fractile.agent.usage.http import Handler
from fractile.kube.client import KubeClient
from fractile.main.agent_usage import usage_loops
from fractile.main.node.known import NodeKnowledge
from fractile.main.node.kubelet_calls import KubeletCalls
from fractile.main.node.options import AgentOptions
from fractile.nvml.driver import Driver, NvmlDriver


class Upkeep:
    """``pages``: handlers that the agent's page gets in addition to its own."""

    def __init__(
        self,
        driver: Driver,
        known: NodeKnowledge,
        calls: KubeletCalls,
        client: KubeClient,
        options: AgentOptions,
        pages: dict[str, Handler],
    ) -> None:
        self._known, self._calls, self._client, self._options = known, calls, client, options
        self._pages = pages
        installed = options.installed
        self._damage = (
            LibraryDamage(
                known.kubelet,
                known.pods,
                known.journal,
                known.events,
                known.content,
                state=options.state,
                current=installed,
            )
            if installed is not None
            else None
        )
        real = isinstance(driver, NvmlDriver) and not _simulated()
        self._runtime = (
            RuntimeCheck(client, known.events, node=options.node, host=options.host, real=real)
            if options.host is not None
            else None
        )

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        known = self._known
        return (
            *self._directories(),
            *self._library(),
            known.departed.run(),
            *([self._runtime.run()] if self._runtime is not None else []),
            *self._usage(),
        )

    def _directories(self) -> tuple[Coroutine[Any, Any, None], ...]:
        known, calls = self._known, self._calls
        restorer = Restorer(
            known.kubelet,
            known.pods,
            known.journal,
            known.current_catalog,
            known.events,
            isolation=known.isolation,
            restored=calls.enforcer.granted,
            busy=calls.allocator.busy,
        )
        collector = GarbageCollector(known.kubelet, known.pods, known.journal, in_use=known.departed.tokens)
        return (
            restorer.run(),
            collector.run(),
            LedgerLost(known.journal, known.pods, known.events).run(),
            DirectoryBounds(known.journal, known.pods, known.events).run(),
        )

    def _library(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """No loops if there is no library."""
        installed, state = self._options.installed, self._options.state
        if installed is None or self._damage is None:
            return ()
        arbiter = ArbiterKeeper(installed.arbiter, slices=state / "slices", state=state, rng=random.Random())
        return arbiter.run(), LibrarySweeper(self._known.kubelet, installed).run(), self._damage.run()

    def _usage(self) -> list[Coroutine[object, object, None]]:
        known, virtual_manager = self._known, self._calls.virtual_manager
        return usage_loops(
            self._client,
            known.events,
            current_catalog=known.current_catalog,
            pods=known.pods,
            journal=known.journal,
            kubelet=known.kubelet,
            state=self._options.state,
            options=self._options.usage,
            registrations=virtual_manager.outcomes if virtual_manager is not None else dict,
            runtime=self._runtime,
            departed=known.departed,
            damage=self._damage,
            more=self._pages,
        )


def _simulated() -> bool:
    """Whether NVML is simgpu's, whose cards no container runtime provides."""
    return "SIMGPU_DIR" in os.environ
