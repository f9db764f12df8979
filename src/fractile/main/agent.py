"""``fractile agent``: its command line, and the objects of a node (``main.node``) run until a signal comes."""

import asyncio
import ctypes
import gc
import logging
import resource
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import click
import msgspec

from fractile.agent.debug_state import AgentDebugState, AgentParts
from fractile.agent.limits.isolation import FRESH
from fractile.agent.limits.library import LibraryVersion, default_source, hold, install
from fractile.agent.node.ground import Ground
from fractile.agent.node.instance_lock import LOCK, alone
from fractile.agent.usage.http import Address, HttpServer
from fractile.errors import SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.main.agent_health import health_options, health_rules
from fractile.main.agent_usage import UsageOptions, pair_of, usage_command_options
from fractile.main.families import family_options
from fractile.main.logs import log_options, set_up_logging
from fractile.main.node.devices import NodeDevices
from fractile.main.node.known import NodeKnowledge
from fractile.main.node.kubelet_calls import KubeletCalls
from fractile.main.node.options import AgentOptions, SharedFiles
from fractile.main.node.upkeep import Upkeep
from fractile.main.signals import told_to_stop
from fractile.main.state_dir import state_dir_option
from fractile.main.tracing import option as tracing_option
from fractile.main.tracing import tracing
from fractile.model.units import MemoryUnit, MiB, NodeName
from fractile.nvml.driver import Driver, NvmlDriver
from fractile.nvml.meter import NvmlMeter
from fractile.nvml.simulated import SimulatedDriver
from fractile.policy.outside import Policy
from fractile.wire.output import debug_state

_SOCKET_PATH = 107  # bytes that the kernel allows, less the names we add

_KUBELET = Path("/var/lib/kubelet")
_DESCRIPTORS = 65_536
_THREADS = 4  # for files; Python's default is 32 on a large node, and each keeps some memory
_MALLOC = {-1: 128 * 1024, -3: 32 * 1024, -8: 1}  # mallopt(3): trim threshold, mmap threshold, arenas

log = logging.getLogger(__name__)


@click.command("agent")
@click.option("--node-name", required=True, help="The name of this node in the API.")
@click.option(
    "--kubeconfig", type=click.Path(path_type=Path), help="Kubeconfig file; default: the in-cluster credentials."
)
@click.option(
    "--memory-unit",
    type=click.Choice([u.name for u in MemoryUnit]),
    default="MiB",
    show_default=True,
    help="What one unit of aliyun.com/gpu-mem is worth; must be the same on the control plane and all agents.",
)
@click.option(
    "--device-plugin-dir",
    type=click.Path(path_type=Path),
    default=_KUBELET / "device-plugins",
    show_default=True,
    help="Folder of kubelet's socket for device plugins, in which the agent creates its own.",
)
@click.option(
    "--pod-resources-socket",
    type=click.Path(path_type=Path),
    default=_KUBELET / "pod-resources" / "kubelet.sock",
    show_default=True,
    help="Socket on which kubelet reports which container holds which devices.",
)
@state_dir_option("Folder for state that outlives restarts; the same path on the host and in the agent's container.")
@click.option(
    "--shared-files",
    type=click.Choice(["auto", "memory", "disk"]),
    default="auto",
    show_default=True,
    help="Where to keep the one file that a container may write. memory: a separate file system of fixed size, in "
    "memory. disk: --state-dir. auto: memory, if the agent may mount.",
)
@click.option(
    "--simulated-cards", type=click.Path(path_type=Path), help="Read the cards from this file instead of NVML."
)
@click.option(
    "--library-dir",
    type=click.Path(path_type=Path),
    help="Folder of libfractile.so and fractile-arbiter; default: the ones beside the program.",
)
@click.option("--no-library", is_flag=True, help="Hand out cards without enforcing anything inside the containers.")
@click.option(
    "--simgpu-dir",
    type=click.Path(path_type=Path),
    help="State of simulated cards (SIMGPU_DIR), which containers share; the driver is then simgpu's NVML.",
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
    help="How late a changed isolation label of the node or of a namespace may be noticed.",
)
@click.option(
    "--devices",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Non-GPU devices of this node, offered by class (docs/use/classes.md). Read again when it changes.",
)
@click.option(
    "--host-root",
    type=click.Path(path_type=Path),
    default=Path("/proc/1/root"),
    show_default=True,
    metavar="DIR",
    help="Root of the node's file system, in which the agent reads at its start how the container runtime hands out "
    "cards.",
)
@click.option(
    "--runtime-handlers",
    default="",
    metavar="NAME,...",
    help="Handlers of RuntimeClasses, beside runc, crun, youki and nvidia's, whose containers share the node's kernel. "
    "GPU pods with any other handler are refused: the library would not be loaded.",
)
@family_options
@click.option(
    "--virtual-manager/--no-virtual-manager",
    default=True,
    show_default=True,
    help="Whether containers that request tencent.com/vcuda-core find gpu-manager's files and socket in /etc/vcuda.",
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
    options = AgentOptions(
        node=NodeName(node_name),
        kubeconfig=kubeconfig,
        unit=MemoryUnit[memory_unit],
        plugins=device_plugin_dir.absolute(),
        pod_resources=pod_resources_socket.absolute(),
        state=state_dir.absolute(),
        shared_files=shared_files,
        slots=slots,
        dialects=dialects,
        rules=health_rules(
            ignore_xids=ignore_xids,
            sick_xids=sick_xids,
            passing_minutes=passing_minutes,
            reset_minutes=reset_minutes,
            cooling_minutes=cooling_minutes,
        ),
        usage=UsageOptions(metrics_address, outside_ledger, meter, not no_library, pair, outside_ledger_grace),
        virtual_manager=virtual_manager,
        label_refresh=label_refresh,
        devices=devices,
        host=host_root,
        runtime_handlers=[word for word in runtime_handlers.split(",") if word],
        kernel_log=kernel_log,
        traces=traces,
    )
    begin_again = True
    try:
        while begin_again:
            installed = None if no_library else _library(library_dir, options.state, simgpu_dir)
            usage = msgspec.structs.replace(options.usage, enforced=installed is not None)
            begin_again = asyncio.run(run(driver, msgspec.structs.replace(options, installed=installed, usage=usage)))
    finally:
        if traces is not None:
            traces.close()
        driver.close()  # the meter may be in a call; the process ends anyway


async def run(driver: Driver, options: AgentOptions) -> bool:
    """Build the objects, connect them, and run until a signal comes. Returns True if the files that this node keeps in
    ``state`` were removed, so that everything must start again."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "files"))
    async with alone(options.state), KubeClient(credentials.load(options.kubeconfig)) as client:
        known = NodeKnowledge(driver, client, options)
        calls = KubeletCalls(known, client, options)
        devices = NodeDevices(driver, known, calls, client, options)
        shown = _debug_state(known, calls, devices, options)
        upkeep = Upkeep(driver, known, calls, client, options, {debug_state.PATH: shown.refused})
        ground = _ground(known, shown, options)
        await known.kubelet.record()  # resources in use are registered first
        async with asyncio.TaskGroup() as tasks:
            loops = [
                tasks.create_task(loop)
                for loop in (
                    *calls.loops(),
                    *devices.loops(),
                    *upkeep.loops(),
                    known.watch.run(),
                    known.events.run(),
                    HttpServer(shown.socket, shown.routes()).run(),
                )
            ]
            told, lost = tasks.create_task(told_to_stop()), tasks.create_task(ground.lost())
            await asyncio.wait({told, lost}, return_when=asyncio.FIRST_COMPLETED)
            await devices.availability.withdraw()
            begin_again = not told.done()
            for loop in (*loops, told, lost):
                loop.cancel()
            devices.close()
        return begin_again


def _debug_state(
    known: NodeKnowledge, calls: KubeletCalls, devices: NodeDevices, options: AgentOptions
) -> AgentDebugState:
    library = options.installed.folder.name if options.installed else ""
    return AgentDebugState(
        AgentParts(
            known.current_catalog,
            devices.health,
            known.journal,
            known.pods,
            [known.watch],
            calls.registrar.known,
            library,
        ),
        options.state,
    )


def _ground(known: NodeKnowledge, shown: AgentDebugState, options: AgentOptions) -> Ground:
    """The check that the files in the state directory exist as long as this agent runs."""
    installed = options.installed
    return Ground(
        options.state,
        known.journal,
        [options.state / LOCK, *(installed.files if installed is not None else ())],
        sockets=[shown.socket],
        wrong=partial(known.content.wrong, installed.folder) if installed is not None else lambda: None,
    )


def _library(source: Path | None, state: Path, simulated: Path | None) -> LibraryVersion | None:
    """The library as it is mounted into containers; None, with a log line, if there is none."""
    source = source or default_source()
    if source is None:
        log.warning(
            "isolation state=off reason=%r", "no libfractile.so found, so limits are not enforced; give --library-dir"
        )
        return None
    put = partial(install, source.absolute(), state, simulated=simulated.absolute() if simulated else None)
    version = hold(put(), put)
    log.info("isolation state=on version=%s from=%s", version.folder.name, source)
    return version


def settle_memory() -> None:
    """Tune malloc and the garbage collector; call it once, after all imports. malloc then returns what a message of
    60,000 ids took: 64 pods by MiB leave 80 MB behind instead of 112. The collector skips permanent objects: scanning
    them takes 25 ms, possibly in the middle of a pod's start."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc only; other C libraries do not need it
    if mallopt is not None:
        for option, value in _MALLOC.items():
            mallopt(option, value)
    gc.collect()
    gc.freeze()


def _allow_descriptors() -> None:
    """Raise the limit of 1,024: each slice may need a dozen for its connections, pages and region."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS), most)
    )


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise SetupError(f"{directory} does not exist; start kubelet first, or give --device-plugin-dir")
    longest = len(str(directory.absolute())) + len("/fractile-vcuda-memory-12345678.sock")
    if longest > _SOCKET_PATH:
        raise SetupError(f"{directory} is too long for a unix socket in it ({longest} of {_SOCKET_PATH} bytes)")
