"""Wiring of the agent's usage, audit and metrics: files, NVML and arbiter -> picture -> HTTP; apart from the rest of the
agent, which works the same without."""

from collections.abc import Coroutine
from pathlib import Path

import msgspec

from fractile.agent.audit import Audit, Policy
from fractile.agent.catalog import Stock
from fractile.agent.http import Address, HttpServer
from fractile.agent.journal import Journal
from fractile.agent.look import Eye
from fractile.agent.owners import Owners
from fractile.agent.pages import Pages
from fractile.agent.pods import NodePods
from fractile.agent.procfs import ProcFs
from fractile.agent.slices import Slices
from fractile.agent.turns import Turns
from fractile.agent.usage import Usage
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.nvml.meter import Meter

ARBITER_SOCKET = "arbiter.sock"  # beside the slices: where fractile-arbiter --slices puts it


class UsageOptions(msgspec.Struct, frozen=True):
    """``address`` None: nothing is served. ``policy``: what is done about use outside the ledger. ``meter`` None: cards
    that no NVML knows; then nothing is audited."""

    address: Address | None = None
    policy: Policy = "warn"
    meter: Meter | None = None


def usage_loops(
    client: KubeClient,
    events: EventRecorder,
    *,
    stock: Stock,
    pods: NodePods,
    journal: Journal,
    state: Path,
    options: UsageOptions,
) -> list[Coroutine[object, object, None]]:
    """The loops to run beside the others; ``events`` is run by the caller."""
    usage = Usage(
        Eye(Slices(state / "slices", journal), options.meter, ProcFs()),
        stock=stock,
        pods=pods,
        audit=Audit(client, events, Owners(client, pods), policy=options.policy),
        turns=Turns(state / ARBITER_SOCKET),
    )
    loops: list[Coroutine[object, object, None]] = [usage.run()]
    if options.address is not None:
        loops.append(HttpServer(options.address, Pages(usage).routes()).run())
    return loops
