"""Wiring of ``fractile agent``: cards -> inventory and plugins; kubelet -> steer, allocate, prestart; loops beside."""

import asyncio
import ctypes
import gc
import logging
import os
import random
import resource
import secrets
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Literal

import click

from fractile.agent.audit.departed import DepartedPods
from fractile.agent.debug_state import AgentDebugState, AgentParts
from fractile.agent.deviceplugin.allocate import Allocator
from fractile.agent.deviceplugin.assigned import Assigned
from fractile.agent.deviceplugin.plugin import Plugin
from fractile.agent.deviceplugin.plugin_conflict import PluginConflicts
from fractile.agent.deviceplugin.precedence import Precedence
from fractile.agent.deviceplugin.preferred_allocation import PreferredAllocation
from fractile.agent.deviceplugin.prestart import PreStart
from fractile.agent.deviceplugin.register import Registrar
from fractile.agent.deviceplugin.runtime_class import RuntimeClasses
from fractile.agent.devices.availability import Availability
from fractile.agent.devices.health import INTERVAL, HealthMonitor
from fractile.agent.devices.health_events import HealthEvents
from fractile.agent.devices.inventory import Inventory
from fractile.agent.devices.publish_file import DeviceFile
from fractile.agent.devices.publish_holders import NodeHolders
from fractile.agent.devices.xid_attribution import XidAttribution, pod_of
from fractile.agent.gpumanager.virtual_manager import VirtualManager
from fractile.agent.kubelet.arrivals import arriving
from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.agent.limits.arbiter import ArbiterKeeper
from fractile.agent.limits.bounds import DirectoryBounds
from fractile.agent.limits.enforce import Enforcer
from fractile.agent.limits.garbage_collection import GarbageCollector
from fractile.agent.limits.isolation import FRESH, Isolation
from fractile.agent.limits.journal import Journal
from fractile.agent.limits.ledger_lost import LedgerLost
from fractile.agent.limits.library import LibrarySweeper, LibraryVersion, default_source, hold, install
from fractile.agent.limits.library_content import LibraryContent
from fractile.agent.limits.library_damage import LibraryDamage
from fractile.agent.limits.limits_writer import LimitsWriter
from fractile.agent.limits.restore import Restorer
from fractile.agent.limits.slices import Slices
from fractile.agent.node.catalog import Catalog, CurrentCatalog
from fractile.agent.node.ground import Ground
from fractile.agent.node.instance_lock import LOCK, alone
from fractile.agent.node.pods import NodePods, room
from fractile.agent.node.runtime import RuntimeCheck
from fractile.agent.usage.http import Address, HttpServer
from fractile.dialects import table
from fractile.dialects.nvidia import SLOTS
from fractile.errors import SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.kube.events import EventRecorder
from fractile.main.agent_health import health_options, health_rules
from fractile.main.agent_usage import UsageOptions, pair_of, usage_command_options, usage_loops
from fractile.main.families import family_options
from fractile.main.logs import log_options, set_up_logging
from fractile.main.signals import told_to_stop
from fractile.main.state_dir import state_dir_option
from fractile.main.tracing import Tracing, tracing
from fractile.main.tracing import option as tracing_option
from fractile.model.offer import Offer
from fractile.model.units import MemoryUnit, MiB, NodeName
from fractile.nvml.driver import Driver, NvmlDriver
from fractile.nvml.meter import NvmlMeter
from fractile.nvml.simulated import SimulatedDriver
from fractile.policy.health import HealthRules
from fractile.policy.outside import Policy
from fractile.region import bounded
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME as CHECKPOINT
from fractile.wire.output import debug_state

SharedFiles = Literal["auto", "memory", "disk"]

_SOCKET_PATH = 107  # bytes that the kernel allows, less the names we add

_KUBELET = Path("/var/lib/kubelet")
HEALTH_RULES = HealthRules()
_NO_PAGES = UsageOptions()
_DESCRIPTORS = 65_536
_THREADS = 4  # for files; Python's own number is 32 on a large node, and each keeps some memory
_MALLOC = {-1: 128 * 1024, -3: 32 * 1024, -8: 1}  # mallopt(3): trim threshold, mmap threshold, arenas

log = logging.getLogger(__name__)


@click.command("agent")
@click.option("--node-name", required=True, help="The name of this node in the API.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Credentials; in-cluster ones when not given.")
@click.option(
    "--memory-unit",
    type=click.Choice([u.name for u in MemoryUnit]),
    default="MiB",
    show_default=True,
    help="What one unit of aliyun.com/gpu-mem is worth; the same on every agent of the cluster.",
)
@click.option(
    "--device-plugin-dir",
    type=click.Path(path_type=Path),
    default=_KUBELET / "device-plugins",
    show_default=True,
    help="Where kubelet has its socket for device plugins, and the agent makes its own.",
)
@click.option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path),
    default=_KUBELET / "pod-resources" / "kubelet.sock",
    show_default=True,
    help="Where kubelet says which container holds which devices.",
)
@state_dir_option("Kept over restarts; the same path on the host and in the agent's container.")
@click.option(
    "--shared-files",
    type=click.Choice(["auto", "memory", "disk"]),
    default="auto",
    show_default=True,
    help="Where the one file lies that a container may write: a file system of its own, of fixed size and in memory, "
    "or --state-dir. auto: in memory where the agent may mount.",
)
@click.option("--simulated-cards", type=click.Path(path_type=Path), help="A file of cards instead of NVML.")
@click.option(
    "--library-dir",
    type=click.Path(path_type=Path),
    help="The folder of libfractile.so and fractile-arbiter; what lies beside the program when not given.",
)
@click.option("--no-library", is_flag=True, help="Hand out cards without enforcing anything inside the containers.")
@click.option(
    "--simgpu-dir",
    type=click.Path(path_type=Path),
    help="The state of simulated cards (SIMGPU_DIR), which containers share; with simgpu's own NVML as the driver.",
)
@click.option(
    "--context-memory",
    type=click.IntRange(0, 2**20),
    default=0,
    show_default=True,
    help="MiB that one CUDA context takes on this node's cards, if you have measured it; 0: the library measures.",
)
@click.option(
    "--label-refresh",
    type=click.FloatRange(1, 3600),
    default=FRESH,
    show_default=True,
    metavar="SECONDS",
    help="How late a changed label of the node or of a namespace, about isolation, may be noticed.",
)
@click.option(
    "--devices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Devices of this node that are no GPUs, offered by class (docs/use/classes.md). Read anew when it changes.",
)
@click.option(
    "--host-root",
    type=click.Path(path_type=Path),
    default=Path("/proc/1/root"),
    show_default=True,
    metavar="DIR",
    help="The node's file system, where the agent reads at its start how the container runtime hands out cards.",
)
@click.option(
    "--runtime-handlers",
    default="",
    metavar="NAME,...",
    help="Handlers of RuntimeClasses, beside runc, crun, youki and nvidia's, whose containers share the node's kernel. "
    "Pods with GPUs and another one are refused: the library would not be loaded.",
)
@family_options
@click.option(
    "--virtual-manager/--no-virtual-manager",
    default=True,
    show_default=True,
    help="Whether containers that ask by tencent.com/vcuda-core find gpu-manager's files and socket in /etc/vcuda.",
)
@health_options
@usage_command_options
@tracing_option
@log_options
def command(
    node_name: str,
    kubeconfig: Path | None,
    memory_unit: str,
    device_plugin_dir: Path,
    pod_resources_socket: Path,
    state_dir: Path,
    shared_files: SharedFiles,
    simulated_cards: Path | None,
    library_dir: Path | None,
    no_library: bool,
    simgpu_dir: Path | None,
    context_memory: int,
    label_refresh: float,
    devices: Path | None,
    host_root: Path,
    runtime_handlers: str,
    otlp_endpoint: str,
    log_level: str,
    log_format: str,
    dialects: frozenset[str],
    slots: int,
    ignore_xids: frozenset[int],
    sick_xids: frozenset[int],
    passing_minutes: float,
    reset_minutes: float,
    cooling_minutes: float,
    kernel_log: Path | None,
    metrics_address: Address | None,
    metrics_tls_cert: Path | None,
    metrics_tls_key: Path | None,
    outside_ledger: Policy,
    outside_ledger_grace: float,
    virtual_manager: bool,
) -> None:
    """Run the node agent: inventory, device plugin, and the limits inside the containers."""
    set_up_logging(log_level, log_format)
    traces = tracing(otlp_endpoint, service="fractile-agent", node=node_name)
    settle_memory()
    _allow_descriptors()
    _check_directory(device_plugin_dir)
    pair = pair_of(metrics_tls_cert, metrics_tls_key)
    driver = SimulatedDriver(simulated_cards) if simulated_cards else NvmlDriver(context=MiB(context_memory))
    meter = NvmlMeter(driver.session) if isinstance(driver, NvmlDriver) else None
    begin_again = True
    try:
        while begin_again:
            installed = None if no_library else _library(library_dir, state_dir.absolute(), simgpu_dir)
            begin_again = asyncio.run(
                run(
                    driver,
                    node=NodeName(node_name),
                    kubeconfig=kubeconfig,
                    unit=MemoryUnit[memory_unit],
                    plugins=device_plugin_dir.absolute(),
                    pod_resources=pod_resources_socket.absolute(),
                    state=state_dir.absolute(),
                    shared_files=shared_files,
                    installed=installed,
                    slots=slots,
                    dialects=dialects,
                    rules=health_rules(
                        ignore_xids=ignore_xids,
                        sick_xids=sick_xids,
                        passing_minutes=passing_minutes,
                        reset_minutes=reset_minutes,
                        cooling_minutes=cooling_minutes,
                    ),
                    usage=UsageOptions(
                        metrics_address, outside_ledger, meter, installed is not None, pair, outside_ledger_grace
                    ),
                    virtual_manager=virtual_manager,
                    label_refresh=label_refresh,
                    devices=devices,
                    host=host_root,
                    runtime_handlers=[word for word in runtime_handlers.split(",") if word],
                    kernel_log=kernel_log,
                    traces=traces,
                )
            )
    finally:
        if traces is not None:
            traces.close()
        driver.close()  # the meter may be in a call; the process ends anyway


async def run(
    driver: Driver,
    *,
    node: NodeName,
    kubeconfig: Path | None,
    unit: MemoryUnit,
    plugins: Path,
    pod_resources: Path,
    state: Path,
    shared_files: SharedFiles = "disk",
    installed: LibraryVersion | None = None,
    slots: int = SLOTS,
    dialects: frozenset[str] = table.NAMES,
    rules: HealthRules = HEALTH_RULES,
    look: float = INTERVAL,
    usage: UsageOptions = _NO_PAGES,
    virtual_manager: bool = True,
    others: Sequence[Offer] = (),
    label_refresh: float = FRESH,
    devices: Path | None = None,
    host: Path | None = None,
    runtime_handlers: Sequence[str] = (),
    kernel_log: Path | None = None,
    traces: Tracing | None = None,
) -> bool:
    """Build the objects, connect them, run until a signal comes. True: begin again, since what this node keeps in
    ``state`` was removed."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "files"))
    catalog = Catalog.of(driver.cards(), unit, slots=slots, dialects=dialects, others=others)
    async with alone(state), KubeClient(credentials.load(kubeconfig)) as client:
        journal = Journal(state / "slices", new_token=_new_token, in_memory=_in_memory(shared_files, state))
        stock = CurrentCatalog(catalog)
        content = LibraryContent()
        kubelet = Kubelet(pod_resources, plugins / CHECKPOINT)
        pods = NodePods(client, node=node, unit=unit, dialects=dialects)
        steer = PreferredAllocation(kubelet, pods, room=lambda: room(stock.catalog.all, pods))
        assigned = Assigned(pods)
        isolation = Isolation(client, node=node, fresh=label_refresh)
        events = EventRecorder(client, "fractile-agent")
        departed = DepartedPods(Slices(journal), pods, events)
        enforcer = Enforcer(journal, pods, isolation, events)
        vcuda = VirtualManager(journal, pods, stock, state=state) if virtual_manager else None
        prestart = PreStart(
            kubelet,
            pods,
            LimitsWriter(journal, stock),
            assigned,
            stock,
            library_content=content,
            precedence=Precedence(pods, departed),
            runtimes=RuntimeClasses(client, more=runtime_handlers),
            isolation=isolation,
            granted=enforcer.granted,
            ready=vcuda.ready if vcuda is not None else None,
            trace=traces.trace if traces is not None else None,
        )
        allocator = Allocator(journal, steer, library=installed, isolation=isolation, virtual_manager=virtual_manager)
        registrar = Registrar(
            plugins,
            [
                Plugin(resource, stock=stock, steer=steer, allocator=allocator, prestart=prestart)
                for resource in catalog.resources
            ],
            new_token=_new_token,
            in_use=kubelet.in_use,
        )
        enforced = installed is not None
        damage = (
            LibraryDamage(kubelet, pods, journal, events, content, state=state, current=installed)
            if installed is not None
            else None
        )
        runtime = (
            RuntimeCheck(client, events, node=node, host=host, real=isinstance(driver, NvmlDriver) and not _simulated())
            if host is not None
            else None
        )
        culprits = XidAttribution(pod_of(pods, journal))
        if kernel_log is not None:
            culprits.open(kernel_log)
        health = HealthMonitor(driver, stock, HealthEvents(pods, events, suspects=culprits), rules=rules, interval=look)
        held = NodeHolders(pods, lambda: departed.present)
        offered = (
            DeviceFile(devices, stock, node=node, others=health.verdict, holders=held) if devices is not None else None
        )
        if offered is not None:
            offered.look()
        availability = Availability(
            client,
            stock,
            registered=registrar.registered,
            known=health.adopted,
            enforced=enforced,
            verdict=offered.verdict if offered is not None else health.verdict,
            stamp=health.stamp,
            holders=held,
            arriving=partial(arriving, kubelet, pods),
        )
        watch = pods.follow()
        beliefs = AgentDebugState(
            AgentParts(
                stock, health, journal, pods, [watch], registrar.known, installed.folder.name if installed else ""
            ),
            state,
        )
        ground = Ground(
            state,
            journal,
            [state / LOCK, *(installed.files if installed is not None else ())],
            sockets=[beliefs.socket],
            wrong=partial(content.wrong, installed.folder) if installed is not None else lambda: None,
        )
        await kubelet.record()  # what is in use is registered first
        async with asyncio.TaskGroup() as tasks:
            loops = [
                tasks.create_task(coroutine)
                for coroutine in (
                    registrar.run(),
                    availability.run(),
                    watch.run(),
                    HttpServer(beliefs.socket, beliefs.routes()).run(),
                    health.run(),
                    Inventory(
                        client,
                        stock,
                        health,
                        events,
                        node=node,
                        served=dialects,
                        strange=availability.forget,
                    ).run(),
                    _restore(assigned, pods, journal),
                    GarbageCollector(kubelet, pods, journal, in_use=departed.tokens).run(),
                    departed.run(),
                    Restorer(
                        kubelet,
                        pods,
                        journal,
                        stock,
                        events,
                        isolation=isolation,
                        restored=enforcer.granted,
                        busy=allocator.busy,
                    ).run(),
                    LedgerLost(journal, pods, events).run(),
                    enforcer.run(),
                    DirectoryBounds(journal, pods, events).run(),
                    PluginConflicts(client, stock, events, node=node, plugins=plugins).run(),
                    events.run(),
                    *([runtime.run()] if runtime is not None else []),
                    *([damage.run()] if damage is not None else []),
                    *_native(installed, kubelet, state),
                    *([vcuda.run()] if vcuda is not None else []),
                    *([offered.run()] if offered is not None else []),
                    *usage_loops(
                        client,
                        events,
                        stock=stock,
                        pods=pods,
                        journal=journal,
                        kubelet=kubelet,
                        state=state,
                        options=usage,
                        registrations=vcuda.outcomes if vcuda is not None else dict,
                        runtime=runtime,
                        departed=departed,
                        damage=damage,
                        more={debug_state.PATH: beliefs.refused},
                    ),
                )
            ]
            told, lost = tasks.create_task(told_to_stop()), tasks.create_task(ground.lost())
            await asyncio.wait({told, lost}, return_when=asyncio.FIRST_COMPLETED)
            await availability.withdraw()
            begin_again = not told.done()
            for loop in (*loops, told, lost):
                loop.cancel()
            culprits.close()
        return begin_again


def _library(source: Path | None, state: Path, simulated: Path | None) -> LibraryVersion | None:
    """The library as it is mounted into containers; None, with a line that says so, when there is none."""
    source = source or default_source()
    if source is None:
        log.warning(
            "isolation state=off reason=%r", "no libfractile.so here: nothing enforces limits; give --library-dir"
        )
        return None
    put = partial(install, source.absolute(), state, simulated=simulated.absolute() if simulated else None)
    version = hold(put(), put)
    log.info("isolation state=on version=%s from=%s", version.folder.name, source)
    return version


def _simulated() -> bool:
    """Whether NVML is simgpu's: no container runtime hands out such cards."""
    return "SIMGPU_DIR" in os.environ


def _in_memory(wanted: SharedFiles, state: Path) -> bool:
    """Whether the files that containers may write get file systems of their own."""
    if wanted == "disk":
        return False
    reason = bounded.why_not(state)
    if not reason:
        return True
    if wanted == "memory":
        raise SetupError(f"--shared-files=memory: {reason}; run the agent privileged, or give it --shared-files=disk")
    log.warning("shared files in=disk reason=%r", f"{reason}; until it is cut back, a container's can fill the disk")
    return False


def _native(installed: LibraryVersion | None, kubelet: Kubelet, state: Path) -> list[Coroutine[None, None, None]]:
    """The loops that only a node with the library needs."""
    if installed is None:
        return []
    arbiter = ArbiterKeeper(installed.arbiter, slices=state / "slices", state=state, rng=random.Random())
    return [arbiter.run(), LibrarySweeper(kubelet, installed).run()]


async def _restore(assigned: Assigned, pods: NodePods, journal: Journal) -> None:
    """What was granted before a restart, from the journal; then go on."""
    while not await pods.synced(60.0):
        log.warning("pods of the node not listed yet node=%s", pods.node)
    grants = await asyncio.to_thread(lambda: [journal.limits(g.token) for g in journal.grants()])
    assigned.restore(limits.pod_uid for limits in grants if limits is not None)
    await assigned.run()


def settle_memory() -> None:
    """Once, when all is imported. Make malloc give back what a message of 60,000 ids took: 64 pods by MiB leave 80 MB
    behind instead of 112. And make the collector leave alone what is there for good: to look through it takes 25 ms,
    in the middle of some pod's start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc; others need no telling
    if mallopt is not None:
        for option, value in _MALLOC.items():
            mallopt(option, value)
    gc.collect()
    gc.freeze()


def _allow_descriptors() -> None:
    """A service starts with 1,024 of them; each slice may need a dozen for its connections, pages and region."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS), most)
    )


def _new_token() -> str:
    return secrets.token_hex(16)


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise SetupError(f"{directory} does not exist; start kubelet first, or give --device-plugin-dir")
    longest = len(str(directory.absolute())) + len("/fractile-vcuda-memory-12345678.sock")
    if longest > _SOCKET_PATH:
        raise SetupError(f"{directory} is too long for a unix socket in it ({longest} of {_SOCKET_PATH} bytes)")
