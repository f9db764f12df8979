"""The API objects that a new cluster needs before Fractile runs (CRDs, rights, admission policies); its nodes' state.

Level-triggered: the manifests are applied at every `up`, which restores deleted objects.
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from importlib import resources
from time import monotonic
from typing import Any

import yaml

from fractile.dialects import table
from fractile.errors import ApiError, SetupError
from fractile.kube import paths
from fractile.kube.client import KubeClient
from fractile.lab.cluster.state import ClusterState, LabNodeState
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine.programs import Programs
from fractile.wire.fractile.placement import ANNOTATION
from fractile.wire.fractile.resource_class import GPU_SLOT, RESOURCE_PREFIX
from fractile.wire.kubernetes.objects import KubeStruct, ObjectMeta
from fractile.wire.quantity import whole_number

_KUBECTL_TIMEOUT = 60.0
_ACTIVE_TIMEOUT = 60.0
_POLL = 0.2
_WEBHOOK_RIGHTS = "fractile:webhook"  # the roles and their bindings


class ObjectCondition(KubeStruct, frozen=True):
    type: str = ""
    status: str = ""
    message: str = ""


class LabNodeStatus(KubeStruct, frozen=True):
    allocatable: dict[str, str] | None = None
    conditions: list[ObjectCondition] | None = None


class LabNode(KubeStruct, frozen=True):
    """A node, with the fields that show whether it is usable."""

    metadata: ObjectMeta = ObjectMeta()
    status: LabNodeStatus = LabNodeStatus()


def manifests() -> str:
    """All manifests in one stream, in the order of their file names."""
    folder = resources.files("fractile.lab.cluster").joinpath("manifests")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    return "\n---\n".join(f.read_text() for f in files)


def namespace_manifest() -> str:
    """The manifest of the namespace, which must exist before anything can be created in it."""
    return resources.files("fractile.lab.cluster").joinpath("manifests", "00-namespace.yaml").read_text()


def manifests_for(webhook: str) -> str:
    """The manifests for an API server that reaches the webhook by URL, not through a Service. If ``webhook`` is "",
    they contain neither the webhook nor the rights to configure it."""
    documents: list[dict[str, Any]] = list(yaml.safe_load_all(manifests()))
    kept = [d for d in documents if webhook or not (_configures_webhook(d) or d["metadata"]["name"] == _WEBHOOK_RIGHTS)]
    for hook in (hook for d in kept if _configures_webhook(d) for hook in d["webhooks"]):
        hook["clientConfig"] = {"url": f"{webhook}{hook['clientConfig']['service']['path']}"}
    return yaml.safe_dump_all(kept, sort_keys=False)


def _configures_webhook(document: dict[str, Any]) -> bool:
    return str(document["kind"]).endswith("WebhookConfiguration")


def apply_manifests(place: ClusterLayout, programs: Programs, webhook: str) -> None:
    """Apply the manifests server-side; SetupError with kubectl's message when the API server refuses."""
    args = ["apply", "--server-side", "--force-conflicts", "--field-manager=fractile-up", "-f", "-"]
    done = subprocess.run(
        [programs["kubectl"], *args],
        input=manifests_for(webhook),
        env=kubectl_env(place, os.environ),
        capture_output=True,
        text=True,
        timeout=_KUBECTL_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise SetupError(f"the manifests cannot be applied: {done.stderr.strip().splitlines()[-1:] or 'no output'}")


def kubectl_env(place: ClusterLayout, env: Mapping[str, str]) -> dict[str, str]:
    """The environment for kubectl on this cluster; the cache is the cluster's, not the user's."""
    return {**env, "KUBECONFIG": str(place.kubeconfig), "KUBECACHEDIR": str(place.root / "kubectl-cache")}


async def wait_policy(client: KubeClient) -> None:
    """Wait until the API server refuses a placement by a user: policies take effect seconds after their creation."""
    deadline = monotonic() + _ACTIVE_TIMEOUT
    pod = {
        "metadata": {"generateName": "fractile-policy-check-", "annotations": {ANNOTATION: "{}"}},
        "spec": {"containers": [{"name": "none", "image": "none"}]},
    }
    while True:
        try:
            await client.create(f"{paths.pods('default')}?dryRun=All", pod)
            answer = "it admits a forged placement"
        except ApiError as e:
            if ANNOTATION in e.message:
                return
            answer = e.message  # for example, the service account does not exist yet
        if monotonic() > deadline:
            raise SetupError(f"the admission policy is not active after {_ACTIVE_TIMEOUT:.0f} s: {answer}")
        await asyncio.sleep(_POLL)


async def wait_webhook(client: KubeClient) -> None:
    """Wait until the API server calls the webhook: its configuration must contain the certificate's authority, and the
    API server must have read it again."""
    mixed = {f"{RESOURCE_PREFIX}one": "1", f"{RESOURCE_PREFIX}other": "1"}  # refused by mutation
    bound = {GPU_SLOT: "1"}  # refused by validation, for its node's name
    deadline = monotonic() + _ACTIVE_TIMEOUT
    for limits, node in ((mixed, {}), (bound, {"nodeName": "none"})):
        container = {"name": "none", "image": "none", "resources": {"limits": limits}}
        pod = {"metadata": {"generateName": "fractile-webhook-check-"}, "spec": {"containers": [container], **node}}
        while not (answer := await _refused(client, pod)).startswith("admission webhook"):
            if monotonic() > deadline:
                raise SetupError(f"the admission webhook is not active after {_ACTIVE_TIMEOUT:.0f} s: {answer}")
            await asyncio.sleep(_POLL)


async def _refused(client: KubeClient, pod: Mapping[str, object]) -> str:
    """Why the API server would refuse the pod; empty when it would accept it."""
    try:
        await client.create(f"{paths.pods('default')}?dryRun=All", pod)
    except ApiError as e:
        return e.message
    return ""


async def label_node(client: KubeClient, node: LabNodeState) -> None:
    """Set the labels of the node's spec on the node."""
    there = await client.get(paths.node(node.name), LabNode)
    if not node.spec.labels.items() <= (there.metadata.labels or {}).items():
        await client.merge_patch(paths.node(node.name), {"metadata": {"labels": node.spec.labels}})


async def unready(client: KubeClient, state: ClusterState) -> list[str]:
    """What unusable nodes lack, one sentence each; empty when all are usable."""
    nodes, _ = await client.list(paths.nodes(), LabNode)
    by_name = {n.metadata.name: n for n in nodes}
    return [lack for one in state.nodes if (lack := _lacks(state, one, by_name.get(one.name)))]


def _lacks(state: ClusterState, node: LabNodeState, there: LabNode | None) -> str:
    if there is None:
        return f"{node.name} has not registered"
    ready = [c for c in there.status.conditions or () if c.type == "Ready"]
    if not any(c.status == "True" for c in ready):
        return f"{node.name} is not Ready: {ready[0].message if ready else 'it has no status'}"
    return _missing_resources(state, node, there.status.allocatable or {}) if state.fractile else ""


def _missing_resources(state: ClusterState, node: LabNodeState, allocatable: Mapping[str, str]) -> str:
    wanted = {a.resource: a.total for a in table.advertised(node.spec.cards, state.spec.unit) if a.total}
    lacking = [name for name, total in wanted.items() if whole_number(allocatable.get(name, "0")) != total]
    return f"{node.name} does not show {_and(lacking)}" if lacking else ""


def _and(names: Sequence[str]) -> str:
    return " and ".join(names)
