"""`fractile up --chart`: Fractile installed from the chart, as users install it, as pods of the real kubelets.

The chart's values cover the differences from a user's cluster: there is no kube-proxy and no cluster DNS, so pods get
the API server's address, the control plane uses its node's network, and kube-scheduler and the API server reach it
through a port of `service_proxy`. All nodes are on this machine, so the paths that are equal on all nodes exist only in
each node's own mount namespace.
"""

import subprocess
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fractile.errors import SetupError
from fractile.lab.cluster.component import Component, HttpProbe
from fractile.lab.cluster.controlplane import Secrets, fractile_program
from fractile.lab.cluster.node import AGENT_LABEL, CONTEXT, LABEL_REFRESH
from fractile.lab.cluster.objects import kubectl_env, namespace_manifest
from fractile.lab.cluster.state import ClusterState
from fractile.lab.image import build
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import mounts
from fractile.lab.machine.programs import Programs
from fractile.lab.progress import Progress

RELEASE = "fractile"
NAMESPACE = "fractile-system"
SECRET = "fractile-extender"
PROXY = "service-proxy"
REPLICAS = 2
DEVICES = "devices.json"
_DEPLOYED = "deployed"
_AUTHORITY = "kube-root-ca.crt"  # in every namespace; here its authority has also signed kube-scheduler's certificate

_TIMEOUT = 60
_HOST = "127.0.0.1"


def folder() -> Path:
    return build.repository() / "charts" / "fractile"


def ensure_image(env: Mapping[str, str], progress: Progress) -> build.Image:
    """The image of these sources, tagged with a hash of their content; nodes import it if they lack it."""
    return build.kept(build.repository(), env=env, progress=progress)


def proxy(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> Component:
    """The proxy to the control plane; ready when the leader answers through it."""
    forwards = {state.ports.control_plane: "fractile", state.ports.webhook: "fractile-webhook"}
    argv = (
        *fractile_program(),
        "service-proxy",
        f"--kubeconfig={place.kubeconfig}",
        *(f"--forward={port}={NAMESPACE}/{name}" for port, name in forwards.items()),
    )
    return Component(PROXY, argv, probe=HttpProbe(f"https://{_HOST}:{state.ports.control_plane}/readyz", secrets.ca))


def replicas(state: ClusterState) -> int:
    """The number of control planes; at most one per node, since they use the node's network."""
    return min(REPLICAS, len(state.nodes))


def values(place: ClusterLayout, state: ClusterState) -> dict[str, Any]:
    """The chart's values for a local cluster."""
    rules: dict[str, Any] = yaml.safe_load(place.sharing.read_text()) or {}
    repository, _, tag = state.image.rpartition(":")
    return {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "memoryUnit": state.spec.unit.name,
        "kubernetes": {"host": _HOST, "port": state.ports.apiserver},
        "controlPlane": {
            "replicas": replicas(state),
            "hostNetwork": True,
            **({"nodePolicy": state.policy} if state.policy else {}),
            "tls": {"mode": "secret", "secretName": SECRET},
            "clients": {"configMap": _AUTHORITY},
        },
        "webhook": {"url": f"https://{_HOST}:{state.ports.webhook}"},
        "agent": {
            "nodeSelector": {"fractile.dev/gpu": None, AGENT_LABEL: "true"},
            "stateDir": mounts.AGENT,
            "extraArgs": [
                f"--context-memory={CONTEXT}",
                f"--label-refresh={LABEL_REFRESH}",
                f"--devices={mounts.AGENT}/{DEVICES}",
            ],
        },
        "simulated": {"enabled": True, "hostDir": mounts.SIMGPU},
        "sharing": {k: v for k, v in rules.items() if k != "version"},
    }


def install(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> str:
    """Install the release, or upgrade it when values or image differ; return what was done."""
    for node in state.nodes:
        there = place.node(node.index)
        place.write(there.agent / DEVICES, (there.config / DEVICES).read_bytes())
    _apply_before(place, state, secrets)
    helm = Helm(place)
    if helm.is_deployed():
        _wake(place, state)
    return helm.ensure(values(place, state))


def _wake(place: ClusterLayout, state: ClusterState) -> None:
    """Restore the replicas and labels that ``pods.py`` has changed. This comes before the upgrade, since Helm does not
    overwrite a number of replicas that it did not set."""
    scaled = ("-n", NAMESPACE, "scale", "deployment/fractile", f"--replicas={replicas(state)}")
    label = ("label", "nodes", "--selector", f"{AGENT_LABEL}=false", f"{AGENT_LABEL}=true", "--overwrite")
    for args in (scaled, label):
        _kubectl(place, state, *args)


class Helm:
    """The release of a local cluster, through Helm's own code. SetupError with Helm's message when it fails."""

    def __init__(self, place: ClusterLayout) -> None:
        self._place = place

    def ensure(self, wanted: Mapping[str, Any], *, chart: Path | None = None) -> str:
        """Install or upgrade the release; level-triggered: a release that is up to date is left alone."""
        last = self._last()
        if not last:
            self._call("install", str(chart or folder()), RELEASE, dict(wanted), timeout=_TIMEOUT)
            return "installed"
        if last == _DEPLOYED and self._call("get_values", RELEASE) == _stored(wanted):
            return "installed already"
        return self.upgrade(wanted, chart=chart)

    def is_deployed(self) -> bool:
        return self._last() == _DEPLOYED

    def upgrade(self, wanted: Mapping[str, Any], *, chart: Path | None = None) -> str:
        self._call("upgrade", str(chart or folder()), RELEASE, dict(wanted), timeout=_TIMEOUT, reset_values=True)
        return "upgraded"

    def rollback(self) -> None:
        self._call("rollback", RELEASE, timeout=_TIMEOUT)

    def uninstall(self) -> None:
        self._call("uninstall", RELEASE, timeout=_TIMEOUT, wait="legacy")

    def _last(self) -> str:
        """The status of the last revision; "" if there is no release."""
        there = any(release["name"] == RELEASE for release in self._call("list", all_states=True))
        history: list[dict[str, Any]] = self._call("history", RELEASE) if there else []
        return str(history[-1].get("status")) if history else ""

    def _call(self, verb: str, *args: object, **options: object) -> Any:
        try:
            with self._sdk.Config(kubeconfig_path=str(self._place.kubeconfig), namespace=NAMESPACE) as config:
                return getattr(config, verb)(*args, **options)
        except self._sdk.HelmError as e:
            raise SetupError(f"helm {verb} failed: {e}") from None

    @cached_property
    def _sdk(self) -> Any:
        try:
            import helm_python
        except ImportError:
            raise SetupError("--chart needs Helm; install it with `pip install helm-python-sdk`") from None
        return helm_python


def _stored(wanted: Mapping[str, Any]) -> Any:
    """The values as Helm returns them, after a round trip through JSON."""
    return msgspec.json.decode(msgspec.json.encode(wanted))


def _apply_before(place: ClusterLayout, state: ClusterState, secrets: Secrets) -> None:
    """Create what `helm install` needs: the namespace, and the certificate that kube-scheduler will trust."""
    secret = {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": SECRET, "namespace": NAMESPACE},
        "type": "kubernetes.io/tls",
        "stringData": {
            "tls.crt": secrets.extender.cert.read_text(),
            "tls.key": secrets.extender.key.read_text(),
            "ca.crt": secrets.ca.read_text(),
        },
    }
    _kubectl(
        place,
        state,
        "apply",
        "--server-side",
        "-f",
        "-",
        given=f"{namespace_manifest()}\n---\n{yaml.safe_dump(secret)}",
    )


def _kubectl(place: ClusterLayout, state: ClusterState, *args: str, given: str = "") -> None:
    done = subprocess.run(
        [Programs.at(state.programs)["kubectl"], *args],
        input=given,
        env=kubectl_env(place, {}),
        capture_output=True,
        text=True,
        timeout=_TIMEOUT,
        check=False,
    )
    if done.returncode != 0:
        raise SetupError(f"kubectl {args[0]} failed for the chart: {done.stderr.strip().splitlines()[-1:]}")


def why_impossible(state_hollow: str, built: str) -> str:
    """Why the chart cannot be installed here; empty when it can."""
    if state_hollow:
        return f"--chart needs real nodes: {state_hollow}"
    return "" if built else "--chart needs the library, which is not built here; see the line above"
