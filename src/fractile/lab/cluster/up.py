"""`fractile up`: brings a cluster from its present state to the wanted state."""

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from ipaddress import IPv4Network
from pathlib import Path
from time import monotonic
from typing import cast

import msgspec

from fractile.errors import FractileError, SetupError
from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.lab.cluster import chart, component, inotify, objects, plan, replicas, state
from fractile.lab.cluster.component import Component, ComponentLook, ensure
from fractile.lab.cluster.controlplane import webhook_url
from fractile.lab.cluster.nodeimages import import_images
from fractile.lab.cluster.plan import ClusterPlan, NodePlan
from fractile.lab.cluster.spec import ClusterSpec, from_options
from fractile.lab.cluster.state import ClusterState
from fractile.lab.hollow import shortcuts
from fractile.lab.image import build
from fractile.lab.layout import ClusterLayout, locked
from fractile.lab.machine import cgroups, mounts, native, network, packages, programs
from fractile.lab.machine.programs import PACKAGES, Programs
from fractile.lab.progress import Progress

_USABLE_TIMEOUT = 120.0
_POLL = 0.2


class UpOptions(msgspec.Struct, frozen=True):
    """What the user asks for. ``spec``: None keeps the existing cluster, or starts the default one. ``sharing``: the
    text of a file of sharing rules; None keeps the present rules. ``policy``: how nodes are chosen; None keeps it.
    ``chart``: run Fractile as pods, from its chart. ``replicas``: the number of control planes as processes; None keeps
    it."""

    spec: ClusterSpec | None = None
    hollow: bool = False
    fractile: bool = True
    sharing: str | None = None
    chart: bool = False
    policy: str | None = None
    replicas: int | None = None


class StartedCluster(msgspec.Struct, frozen=True):
    """A cluster that is up."""

    state: ClusterState
    components: tuple[ComponentLook, ...]
    seconds: float


async def up(
    place: ClusterLayout, wish: UpOptions, *, env: Mapping[str, str], progress: Progress, now: datetime
) -> StartedCluster:
    """Start what does not run, and wait until everything works. Safe to repeat after any crash."""
    began = monotonic()
    with locked(place):
        # 1. The wanted state of the cluster: kept from the last time, or decided now.
        before = state.load(place)
        wanted = await asyncio.to_thread(_decide, place, wish, env, progress)
        # 2. The files of all components.
        planned = plan.make(place, wanted, now=now)
        _put_sharing(place, wish.sharing)
        replicas.stop_unwanted(place, before, wanted)
        real = [n for n in planned.nodes if n.containerd is not None]
        inotify.check(sum(component.running(place, n.kubelet) is None for n in real))
        # 3. Control plane and nodes, at the same time.
        await _start_all(place, wanted, planned, progress)
        # 4. Usable: nodes Ready, cards counted, control plane ready.
        async with KubeClient(credentials.load(place.kubeconfig)) as client:
            await _wait_usable(place, wanted, planned, client, progress)
    seen = tuple(component.seen(place, c) for c in planned.components())
    return StartedCluster(wanted, seen, monotonic() - began)


def _decide(place: ClusterLayout, wish: UpOptions, env: Mapping[str, str], progress: Progress) -> ClusterState:
    kept = state.load(place)
    if kept is not None and wish.spec is not None:
        state.check_same(place, kept, wish.spec)
    hollow = kept.hollow if kept is not None else _why_hollow(wish, env, progress)
    if hollow:
        progress.line("nodes", f"hollow, without kubelet and containers: {hollow}")
    found = programs.ensure(env, progress, [n for n in PACKAGES if not (hollow and n == "kubelet")])
    if kept is None:
        spec = wish.spec or from_options(place.name)
        decided = state.first(place, spec, hollow=hollow, fractile=wish.fractile, programs=str(found.folder))
    else:
        decided = state.grown(place, kept, wish.spec) if wish.spec is not None else kept
        decided = msgspec.structs.replace(decided, programs=str(found.folder))
    built = native.ensure(env, progress) if decided.fractile and not hollow else ""
    policy = decided.policy if wish.policy is None else wish.policy
    decided = msgspec.structs.replace(decided, native=built, policy=policy)
    if wish.chart or decided.image:
        decided = _with_chart(decided, kept, env, progress, wish_again=wish.chart)
    if wish.replicas is not None:
        decided = replicas.decide(place, decided, wish.replicas)
    state.save(place, decided)
    return decided


def _with_chart(
    decided: ClusterState, kept: ClusterState | None, env: Mapping[str, str], progress: Progress, *, wish_again: bool
) -> ClusterState:
    """The state with the chart's image. SetupError for a cluster that runs Fractile as processes, which cannot become
    pods without dropping what they hold."""
    if kept is not None and not kept.image:
        raise SetupError("this cluster runs Fractile as processes; take it down first, or choose another --name")
    if why := chart.why_impossible(decided.hollow, decided.native):
        raise SetupError(why)
    if kept is not None and not wish_again:
        return decided  # repairing a cluster does not upgrade it
    return msgspec.structs.replace(decided, image=chart.ensure_image(env, progress).name)


def _why_hollow(wish: UpOptions, env: Mapping[str, str], progress: Progress) -> str:
    return "asked for" if wish.hollow else packages.why_hollow(progress, env)


def _put_sharing(place: ClusterLayout, text: str | None) -> None:
    """Write the sharing rules; a running control plane watches the file, which exists even without rules."""
    if text is not None or not place.sharing.exists():
        place.write(place.sharing, text or "version: 1\n")


async def _start_all(place: ClusterLayout, wanted: ClusterState, planned: ClusterPlan, progress: Progress) -> None:
    api = asyncio.Event()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_control_plane(place, wanted, planned, api, progress))
            for node in planned.nodes:
                tasks.create_task(_node(place, wanted, node, api, progress))
    except BaseExceptionGroup as group:
        raise _first(group) from None


async def _control_plane(
    place: ClusterLayout, wanted: ClusterState, planned: ClusterPlan, api: asyncio.Event, progress: Progress
) -> None:
    await ensure(place, planned.etcd, progress)
    await ensure(place, planned.apiserver, progress)
    api.set()
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(KubeClient(credentials.load(place.kubeconfig)))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        tasks.create_task(_ensure(place, planned.controller_manager, progress))
        tasks.create_task(_ensure(place, planned.scheduler, progress))
        await _put_objects(place, wanted, planned, progress)
        if planned.proxy is not None:
            tasks.create_task(_ensure(place, planned.proxy, progress))
        for one in planned.control_planes:
            tasks.create_task(_ensure(place, one, progress))
        with progress.step("admission policy") as step:
            await objects.wait_policy(client)
            step.done("active")


async def _put_objects(place: ClusterLayout, wanted: ClusterState, planned: ClusterPlan, progress: Progress) -> None:
    if wanted.image:
        with progress.step("chart") as step:
            step.done(await asyncio.to_thread(chart.install, place, wanted, planned.secrets))
        return
    with progress.step("manifests") as step:
        await asyncio.to_thread(objects.apply_manifests, place, Programs.at(wanted.programs), webhook_url(wanted))
        step.done("applied")


async def _node(
    place: ClusterLayout, wanted: ClusterState, node: NodePlan, api: asyncio.Event, progress: Progress
) -> None:
    if wanted.hollow:
        shortcuts.make(place, node.state.index)
    else:
        await asyncio.to_thread(_prepare, place, node)
    if node.containerd is not None:
        await ensure(place, node.containerd, progress)
        with progress.step(f"{node.state.name}/images") as step:
            step.done(await asyncio.to_thread(_import_images, place, wanted, node))
    await api.wait()
    await ensure(place, node.kubelet, progress)
    if node.agent is not None:
        await ensure(place, node.agent, progress)


def _import_images(place: ClusterLayout, wanted: ClusterState, node: NodePlan) -> str:
    probe = Path(wanted.native, native.PROBE) if wanted.native else None
    ours = build.archive(wanted.image) if wanted.image else None
    return import_images(place, node.state.index, probe=probe, also=ours)


def _prepare(place: ClusterLayout, node: NodePlan) -> None:
    """Make the bridge and the mount namespace. Before a new namespace is made, everything in the old one is stopped,
    since the new one cannot reach it."""
    index = node.state.index
    network.ensure_bridge(network.bridge_name(place.name, index), IPv4Network(node.state.subnet))
    if mounts.is_complete(place, index):
        return
    for one in (node.agent, node.kubelet, node.containerd):
        if one is not None:
            component.stop(place, one.name, grace=0)
    mounts.kill_all_in(place.pin(index))
    cgroups.remove(cgroups.of_node(place.node(index)))
    cgroups.make_parent()
    mounts.make_namespace(place, index)


async def _ensure(place: ClusterLayout, one: Component, progress: Progress) -> None:
    await ensure(place, one, progress)


async def _wait_usable(
    place: ClusterLayout, wanted: ClusterState, planned: ClusterPlan, client: KubeClient, progress: Progress
) -> None:
    deadline = monotonic() + _USABLE_TIMEOUT
    with progress.step("nodes") as step:
        while lacks := await objects.unready(client, wanted):
            _check_alive(place, planned)
            if monotonic() > deadline:
                raise SetupError(f"{lacks[0]} after {_USABLE_TIMEOUT:.0f} s; see the logs in {place.logs}")
            await asyncio.sleep(_POLL)
        step.done("Ready, all cards counted" if wanted.fractile else "Ready")
    if webhook_url(wanted):
        with progress.step("admission webhook") as step:
            await objects.wait_webhook(client)
            step.done("active")
    for node in wanted.nodes:
        await objects.label_node(client, node)


def _check_alive(place: ClusterLayout, planned: ClusterPlan) -> None:
    for one in planned.components():
        if component.running(place, one) is None:
            raise SetupError(f"{one.name} ended: {component.last_line(place, one.name)}")


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to show; errors meant for users come first."""
    known = group.subgroup(FractileError)
    error: BaseException = known or group
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
