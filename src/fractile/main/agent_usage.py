"""Wiring of the agent's usage, audit and metrics: files, NVML and arbiter -> picture -> HTTP.

Separate from the rest of the agent, which works the same without it.
"""

import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from fractile.agent.audit.audit import GRACE, OutsideAudit
from fractile.agent.audit.departed import DepartedPods
from fractile.agent.audit.ending import Ender
from fractile.agent.audit.sight import Sight
from fractile.agent.audit.spared import Spared
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.beyond import BeyondWriter
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.leases import Leases
from fractile.agent.limits.library_damage import LibraryDamage
from fractile.agent.limits.slices import Slices
from fractile.agent.node.catalog import CurrentCatalog
from fractile.agent.node.cgroup import CgroupPlace, places
from fractile.agent.node.owners import Owners
from fractile.agent.node.pods import NodePods
from fractile.agent.node.procfs import ProcFs
from fractile.agent.node.runtime import RuntimeCheck
from fractile.agent.usage.arbiter_client import ArbiterClient
from fractile.agent.usage.http import Address, Handler, HttpServer
from fractile.agent.usage.look import Eye
from fractile.agent.usage.loop import UsageLoop
from fractile.agent.usage.pages import Pages
from fractile.errors import SetupError
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.nvml.meter import Meter
from fractile.policy.outside import Policy
from fractile.serving.certificate_files import Pair
from fractile.wire.output.node_usage import DEFAULT_PORT

log = logging.getLogger(__name__)

Command = TypeVar("Command", bound=Callable[..., Any])


def _address(_context: click.Context, _parameter: click.Parameter, text: str) -> Address | None:
    return Address.parse(text)


_OPTIONS = (
    click.option(
        "--metrics-address",
        default=f":{DEFAULT_PORT}",
        show_default=True,
        metavar="[HOST]:PORT",
        callback=_address,
        help='Address that serves /metrics, /usage and /healthz; "" for none.',
    ),
    click.option(
        "--metrics-tls-cert",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="Serve that address over TLS, with the certificate in this PEM file; it is read again when it changes.",
    ),
    click.option(
        "--metrics-tls-key",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The certificate's key, a PEM file without a password.",
    ),
    click.option(
        "--outside-ledger",
        type=click.Choice(["warn", "evict", "evict-all"]),
        default="warn",
        show_default=True,
        help="What to do about a pod that uses a card around its limits. warn: an event. evict: an event, and eviction "
        "of pods that hold no part of the card or removed the library from their container. evict-all: also eviction "
        "of pods that hold a part of it. A new release of the chart, and deploy/agent.yaml, set evict.",
    ),
    click.option(
        "--outside-ledger-grace",
        type=click.FloatRange(0, 86_400),
        default=GRACE,
        show_default=True,
        metavar="SECONDS",
        help="How long such use must last before the pod is evicted; at most one pod a minute is.",
    ),
)

ARBITER_SOCKET = "arbiter.sock"  # next to the slices, where fractile-arbiter --slices creates it


class UsageOptions(msgspec.Struct, frozen=True):
    """``address`` None: nothing is served. ``policy``: the action against use outside the ledger, after ``grace``
    seconds. ``meter`` None: the cards are unknown to NVML, so nothing is audited. ``enforced``: the library is in the
    containers. ``pair``: serve over TLS with it."""

    address: Address | None = None
    policy: Policy = "warn"
    meter: Meter | None = None
    enforced: bool = True
    pair: Pair | None = None
    grace: float = GRACE


def pair_of(cert: Path | None, key: Path | None) -> Pair | None:
    """The files of the command line. Raises SetupError when they cannot serve."""
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise SetupError("--metrics-tls-cert and --metrics-tls-key go together; give both or neither")
    pair = Pair(cert, key)
    pair.check()
    return pair


def usage_command_options(command: Command) -> Command:
    """Add the options of the command line."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def usage_loops(
    client: KubeClient,
    events: EventRecorder,
    *,
    current_catalog: CurrentCatalog,
    pods: NodePods,
    journal: Journal,
    kubelet: Kubelet,
    state: Path,
    options: UsageOptions,
    registrations: Callable[[], dict[str, int]] = dict,
    runtime: RuntimeCheck | None = None,
    departed: DepartedPods | None = None,
    damage: LibraryDamage | None = None,
    more: dict[str, Handler] | None = None,
) -> list[Coroutine[object, object, None]]:
    """The loops to run in addition to the others; ``events`` is run by the caller. ``registrations``: with the virtual
    manager, by outcome. ``runtime``: what the page shows about the container runtime. ``departed`` is called with the
    processes that the driver shows. ``damage``: pods whose library was damaged. ``more``: additional pages."""
    log.info("outside ledger policy=%s grace=%g audited=%s", options.policy, options.grace, options.meter is not None)
    spared = Spared(
        client,
        current_catalog.catalog.resources,
        kubelet.record,
        damaged=damage.concerns if damage is not None else lambda uid: False,
    )
    around = _around()
    owners = Owners(client, pods, around=frozenset(place.pod_uid for place in around if place.pod_uid))
    audit = OutsideAudit(
        client, events, owners, spared, Ender(around=around), policy=options.policy, grace=options.grace
    )
    sight = Sight(state) if options.enforced else None
    usage = UsageLoop(
        Eye(Slices(journal), options.meter, ProcFs(), enforced=options.enforced, sight=sight),
        current_catalog=current_catalog,
        pods=pods,
        audit=audit,
        beyond=BeyondWriter(journal),
        arbiter=ArbiterClient(state / ARBITER_SOCKET),
        leases=Leases(pods, events),
        driven=departed.driven if departed is not None else None,
        departed=(lambda: departed.present) if departed is not None else tuple,
        damaged=(lambda: damage.now) if damage is not None else frozenset[str],
    )
    loops: list[Coroutine[object, object, None]] = [usage.run(), audit.run()]
    if options.address is not None:
        labels = runtime.labels if runtime is not None else None
        pages = Pages(usage, registrations=registrations, runtime=labels).routes() | (more or {})
        tls = options.pair.context() if options.pair else None
        loops.append(HttpServer(options.address, pages, tls=tls).run())
        if options.pair is not None and tls is not None:
            loops.append(options.pair.renew(tls))
    return loops


def _around(cgroup: Path = Path("/proc/self/cgroup")) -> tuple[CgroupPlace, ...]:
    """The pods and containers in which this process runs; several in a cluster within a cluster."""
    try:
        return places(cgroup.read_text("utf-8", "replace"))
    except OSError:
        return ()
