"""The agent's answers to kubelet while a pod is admitted and its containers start."""

from collections.abc import Coroutine
from typing import Any

from fractile.agent.deviceplugin.allocate import Allocator
from fractile.agent.deviceplugin.assigned import Assigned
from fractile.agent.deviceplugin.plugin import Plugin
from fractile.agent.deviceplugin.precedence import Precedence
from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.deviceplugin.prestart import PreStart
from fractile.agent.deviceplugin.register import Registrar
from fractile.agent.deviceplugin.runtime_class import RuntimeClasses
from fractile.agent.gpumanager.virtual_manager import VirtualManager
from fractile.agent.limits.enforce import Enforcer
from fractile.agent.limits.limits_writer import LimitsWriter
from fractile.agent.node.pods import room
from fractile.kube.client import KubeClient
from fractile.main.node.known import NodeKnowledge, new_token
from fractile.main.node.options import AgentOptions


class KubeletCalls:
    """``virtual_manager`` None: no container gets gpu-manager's files."""

    def __init__(self, known: NodeKnowledge, client: KubeClient, options: AgentOptions) -> None:
        self._known = known
        current_catalog, journal, pods = known.current_catalog, known.journal, known.pods
        self._assigned = Assigned(pods)
        self.enforcer = Enforcer(journal, pods, known.isolation, known.events)
        self.virtual_manager = (
            VirtualManager(journal, pods, current_catalog, state=options.state) if options.virtual_manager else None
        )
        traces = options.traces
        prestart = PreStart(
            known.kubelet,
            pods,
            LimitsWriter(journal, current_catalog),
            self._assigned,
            current_catalog,
            library_content=known.content,
            precedence=Precedence(pods, known.departed),
            runtimes=RuntimeClasses(client, more=options.runtime_handlers),
            isolation=known.isolation,
            granted=self.enforcer.granted,
            ready=self.virtual_manager.ready if self.virtual_manager is not None else None,
            trace=traces.trace if traces is not None else None,
        )
        preferred_allocation = PreferredAllocation(
            known.kubelet, pods, room=lambda: room(current_catalog.catalog.all, pods)
        )
        self.allocator = Allocator(
            journal,
            preferred_allocation,
            library=options.installed,
            isolation=known.isolation,
            virtual_manager=options.virtual_manager,
        )
        self.registrar = Registrar(
            options.plugins,
            [
                Plugin(
                    resource,
                    current_catalog=current_catalog,
                    preferred_allocation=preferred_allocation,
                    allocator=self.allocator,
                    prestart=prestart,
                )
                for resource in known.resources
            ],
            new_token=new_token,
            in_use=known.kubelet.in_use,
        )

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        return (
            self.registrar.run(),
            self._follow(),
            self.enforcer.run(),
            *([self.virtual_manager.run()] if self.virtual_manager is not None else []),
        )

    async def _follow(self) -> None:
        """Restore from the journal what was granted before a restart, then continue."""
        self._assigned.restore(await self._known.granted_before())
        await self._assigned.run()
