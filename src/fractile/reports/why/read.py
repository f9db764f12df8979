"""What ``fractile why`` reads from the API server: one pod, its events, and everything that decides about it.

Failure rule: the pod, all pods, nodes and cards are required. Anything else that may not be read is left out, and the
report says so: an application developer often has access to little more than a namespace.
"""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

import msgspec

from fractile.errors import ApiError, FractileError, SetupError, Unreachable
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.reports import plan_input, reading
from fractile.reports.why import departed
from fractile.sim.snapshot.build import SnapshotObjects
from fractile.wire.files.quota_file import DEFAULT_SOURCE, KEPT
from fractile.wire.fractile.extended_resource import ExtendedResource
from fractile.wire.kubernetes.objects import ConfigMap, Lease, ResourceQuota
from fractile.wire.kubernetes.why_objects import Event, ObservedPod, WebhookPresence
from fractile.wire.output.node_usage import DEFAULT_PORT, VERSION, NodeUsage

SHARING = "fractile-system/fractile-sharing"  # where manifests and chart keep the sharing rules
LEASE = "fractile-system/fractile-control-plane"  # names the leading replica
WEBHOOK = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/fractile"

_ANSWER = 3.0  # seconds for an agent to answer, over HTTP and HTTPS together, as in ``fractile top``

T = TypeVar("T")


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """``sharing``: the ConfigMap with the sharing rules. ``unread``: what could not be read, one sentence each.
    ``webhook``: whether it is registered; None: unknown."""

    pod: ObservedPod
    events: list[Event]
    objects: SnapshotObjects
    config: ConfigMap | None
    kept: ConfigMap | None
    sharing: ConfigMap | None
    resource_quotas: list[ResourceQuota]
    lease: Lease | None
    webhook: bool | None
    usage: NodeUsage | None
    unread: tuple[str, ...]
    config_unread: bool = False


async def read(client: KubeClient, namespace: str, name: str, *, source: str = DEFAULT_SOURCE) -> Read:
    """Read everything. SetupError with the remedy when the pod does not exist or a required object cannot be read."""
    unread: list[str] = []
    pod = await _pod(client, namespace, name)
    location, _, quota = source.partition("/")
    events = await _or(_events(client, pod), [], "its events", unread)
    before = len(unread)
    config = await _or(_or_none(client, paths.config_map(location, quota), ConfigMap), None, "quotas", unread)
    config_unread = len(unread) > before
    kept = await _or(_or_none(client, paths.config_map(*KEPT.split("/")), ConfigMap), None, "", unread)
    sharing = await _or(_or_none(client, paths.config_map(*SHARING.split("/")), ConfigMap), None, "sharing", unread)
    quotas = await _or(_listed(client, paths.resource_quotas(namespace)), [], "ResourceQuotas", unread)
    lease = await _or(_or_none(client, paths.lease(*LEASE.split("/")), Lease), None, "", unread)
    found = await _or(_or_none(client, WEBHOOK, WebhookPresence), WebhookPresence(), "", unread)
    return Read(
        pod=pod,
        events=[e for e in events if e.involved_object.uid in ("", pod.metadata.uid)],
        objects=await plan_input.objects_of(client),
        config=config,
        kept=kept,
        sharing=sharing,
        resource_quotas=quotas,
        lease=lease,
        webhook=None if found == WebhookPresence() else found is not None,
        usage=await _usage(client, pod, unread),
        unread=tuple(unread),
        config_unread=config_unread,
    )


async def _pod(client: KubeClient, namespace: str, name: str) -> ObservedPod:
    try:
        return await client.get(paths.pod(namespace, name), ObservedPod)
    except Unreachable as e:
        raise reading.no_answer(e) from None
    except ApiError as e:
        if e.code != 404:
            raise SetupError(f"pod {namespace}/{name} cannot be read: {e.message}") from None
    hint = (
        await _left_behind(client, namespace, name)
        or await _last_said(client, namespace, name)
        or await _elsewhere(client, name)
        or _never_made(namespace)
    )
    raise SetupError(f"there is no pod {name!r} in namespace {namespace}{hint}")


async def _left_behind(client: KubeClient, namespace: str, name: str) -> str:
    """What processes of a deleted pod of that name hold."""
    try:
        cards, _ = await client.list(paths.extended_resources(), ExtendedResource)
    except FractileError:
        return ""
    return departed.still_held(cards, namespace, name)


async def _last_said(client: KubeClient, namespace: str, name: str) -> str:
    """What became of a pod of that name, as long as its events are kept."""
    try:
        found = await _said_of(client, namespace, name, kind="Pod")
    except FractileError:
        return ""
    return departed.last_said(found, namespace, name)


def _never_made(namespace: str) -> str:
    """Where to find why the API server refused the pods of a workload."""
    return (
        "; if a workload should have created it, these events say why it did not: "
        f"kubectl get events -n {namespace} --field-selector reason=FailedCreate"
    )


async def _elsewhere(client: KubeClient, name: str) -> str:
    """The namespaces that have a pod of that name: most often only the namespace is wrong."""
    try:
        found, _ = await client.list(paths.pods(), ObservedPod, field_selector=f"metadata.name={name}")
    except FractileError:
        return ""
    where = sorted(p.metadata.namespace for p in found)
    return f"; there is one in {reading.listed(where)} (-n)" if where else ""


async def _events(client: KubeClient, pod: ObservedPod) -> list[Event]:
    return await _said_of(client, pod.metadata.namespace, pod.metadata.name)


async def _said_of(client: KubeClient, namespace: str, name: str, *, kind: str = "") -> list[Event]:
    selector = f"involvedObject.name={name}" + (f",involvedObject.kind={kind}" if kind else "")
    found, _ = await client.list(paths.events(namespace), Event, field_selector=selector)
    return found


async def _listed(client: KubeClient, path: str) -> list[ResourceQuota]:
    return (await client.list(path, ResourceQuota))[0]


async def _or_none(client: KubeClient, path: str, kind: type[T]) -> T | None:
    try:
        return await client.get(path, kind)
    except ApiError as e:
        if e.code == 404:
            return None
        raise


async def _or(asked: Awaitable[T], otherwise: T, what: str, unread: list[str]) -> T:
    """The awaited object, or ``otherwise`` if it may not be read. ``what``: its name in ``unread``; "": no report."""
    try:
        return await asked
    except ApiError as e:
        if what:
            unread.append(f"{what} cannot be read: {e.message}")
        return otherwise


async def _usage(client: KubeClient, pod: ObservedPod, unread: list[str]) -> NodeUsage | None:
    """What the node's agent reports. Asked through the API server, which reaches nodes that this machine may not."""
    if not pod.spec.node_name or pod.finished:
        return None
    try:
        async with asyncio.timeout(_ANSWER):
            found = await _asked(client, pod.spec.node_name)
    except TimeoutError:
        unread.append(f"what it uses is unknown: the agent of {pod.spec.node_name} has not answered in {_ANSWER:g} s")
        return None
    except (FractileError, OSError) as e:
        unread.append(f"what it uses is unknown: the agent of {pod.spec.node_name} does not say: {e}")
        return None
    if found.version != VERSION:
        unread.append(f"what it uses is unknown: the agent uses version {found.version}, this program {VERSION}")
        return None
    return found


async def _asked(client: KubeClient, node: str) -> NodeUsage:
    """The answer of the node's agent. It is unknown whether agents use TLS, so HTTPS is tried after HTTP."""
    try:
        return await client.get(paths.node_page(node, DEFAULT_PORT, "/v1/usage"), NodeUsage)
    except (FractileError, OSError):
        with contextlib.suppress(FractileError, OSError):
            return await client.get(paths.node_page(node, DEFAULT_PORT, "/v1/usage", scheme="https"), NodeUsage)
        raise
