"""Control plane and agents that run as pods of the chart, under the names that they have as processes.

Kubernetes would replace a killed pod. To keep it stopped like a killed process, the control plane is scaled to zero,
and an agent's node loses the label that the DaemonSet selects. SIGKILL is sent to the pid that the container has on
this machine, so the pod ends immediately, without a grace period. Extra arguments are set by an upgrade of the release.
"""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import msgspec

from fractile.errors import SetupError
from fractile.lab.cluster import chart
from fractile.lab.cluster.chart import NAMESPACE
from fractile.lab.cluster.chart_options import with_arguments
from fractile.lab.cluster.node import AGENT_LABEL
from fractile.lab.cluster.state import ClusterState
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import mounts, processes
from fractile.lab.machine.processes import StartedProcess

CONTROL_PLANE = "control-plane"

_WAIT = 60.0
_POLL = 0.2
_TIMEOUT = 20.0

Kubectl = Callable[..., str]


class Pods(msgspec.Struct, frozen=True):
    """The pods of a cluster. ``kubectl`` runs kubectl against the cluster and returns its output."""

    place: ClusterLayout
    state: ClusterState
    kubectl: Kubectl

    def names(self) -> list[str]:
        return [CONTROL_PLANE, *(f"{node.name}/agent" for node in self.state.nodes)]

    def process(self, name: str) -> StartedProcess | None:
        """The process of a ready pod, for the control plane the leader's; None when no pod of that name is ready."""
        ready = [p for p in self._pods(name) if _is_ready(p)]
        return next((found for pod in ready for found in self._processes(pod)), None)

    def kill(self, name: str, number: int) -> None:
        """Send the signal; after SIGKILL and SIGTERM the component stays stopped."""
        if number == signal.SIGCONT:  # a pod stopped by SIGSTOP is no longer ready
            for found in (found for pod in self._pods(name) for found in self._processes(pod)):
                processes.send(found, number)
            return
        if number not in (signal.SIGKILL, signal.SIGTERM):
            found = self.process(name)
            if found is None or not processes.send(found, number):
                raise SetupError(f"{name} does not run")
            return
        pods = self._pods(name)
        self._keep(name)
        self._want(name, wanted=False)
        if number == signal.SIGKILL:
            for found in (found for pod in pods for found in self._processes(pod)):
                processes.send(found, signal.SIGKILL)
        self._wait(f"{name} to be gone", lambda: not self._pods(name))

    def start(self, name: str, args: Sequence[str]) -> None:
        """Start the component with ``args`` in addition to the chart's, without those of an earlier start."""
        values = with_arguments(chart.values(self.place, self.state), args)
        self._want(name, wanted=True)  # before Helm: it does not overwrite a changed number of replicas
        chart.Helm(self.place).ensure(values)
        self._wait(f"{name} to be ready", lambda: self._is_current(name))

    def log(self, name: str) -> Path:
        """One file with the logs of all pods of that name, including those that ``kill`` has ended."""
        self._keep(name)
        file = self.place.log(name)
        kept = sorted(self._kept(name).glob("*"), key=lambda p: p.stat().st_mtime)
        file.write_text("".join(_said(line) for path in kept for line in path.read_text().splitlines()))
        return file

    def _keep(self, name: str) -> None:
        """Copy the logs of the pods, which are removed from the node together with the pod."""
        pattern = f"{NAMESPACE}_fractile-agent-*/agent/*.log"
        if name == CONTROL_PLANE:
            pattern = f"{NAMESPACE}_fractile-*/control-plane/*.log"
        self._kept(name).mkdir(parents=True, exist_ok=True)
        for index in [n.index for n in self.state.nodes if name in (CONTROL_PLANE, f"{n.name}/agent")]:
            for path in (self.place.node(index).log / "pods").glob(pattern):
                with contextlib.suppress(FileNotFoundError):  # removed in the meantime
                    shutil.copy2(path, self._kept(name) / f"{path.parts[-3]}.{path.name}")

    def _kept(self, name: str) -> Path:
        return self.place.log(name).with_suffix(".pods")

    def _want(self, name: str, *, wanted: bool) -> None:
        if name == CONTROL_PLANE:
            replicas = chart.replicas(self.state) if wanted else 0
            self.kubectl("-n", NAMESPACE, "scale", "deployment/fractile", f"--replicas={replicas}")
            return
        node = name.partition("/")[0]
        self.kubectl("label", "node", node, f"{AGENT_LABEL}={'true' if wanted else 'false'}", "--overwrite")

    def _pods(self, name: str) -> list[dict[str, Any]]:
        label = "fractile" if name == CONTROL_PLANE else "fractile-agent"
        listed = self.kubectl("-n", NAMESPACE, "get", "pods", "-l", f"app.kubernetes.io/name={label}", "-o", "json")
        node = name.partition("/")[0]
        pods: list[dict[str, Any]] = json.loads(listed)["items"]
        return [p for p in pods if name == CONTROL_PLANE or p["spec"].get("nodeName") == node]

    def _is_current(self, name: str) -> bool:
        """Whether a pod of that name is ready, and all of them run with the present arguments of the release."""
        kind = "deployment/fractile" if name == CONTROL_PLANE else "daemonset/fractile-agent"
        template = json.loads(self.kubectl("-n", NAMESPACE, "get", kind, "-o", "json"))["spec"]["template"]
        pods = self._pods(name)
        return all(_args(p) == _args(template) for p in pods) and any(_is_ready(p) for p in pods)

    def _processes(self, pod: dict[str, Any]) -> list[StartedProcess]:
        """The first process of each container, by its pid on this machine."""
        if not pod["spec"].get("nodeName"):
            return []
        index = self.state.node(pod["spec"]["nodeName"]).index
        ids = [c.get("containerID", "").rpartition("/")[2] for c in pod["status"].get("containerStatuses", [])]
        argv = [*mounts.enter(self.place.pin(index)), "ctr", "--namespace", "k8s.io", "task", "list"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT, check=False, env=dict(os.environ))
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        pids = [int(row[1]) for row in rows if len(row) > 2 and row[0] in ids and row[2] == "RUNNING"]
        return [found for pid in pids if (found := processes.identify(pid)) is not None]

    def _wait(self, what: str, there: Callable[[], bool]) -> None:
        deadline = monotonic() + _WAIT
        while not there():
            if monotonic() > deadline:
                raise SetupError(f"waited {_WAIT:.0f} s for {what}; see `fractile kubectl -n {NAMESPACE} get pods`")
            sleep(_POLL)


def _is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    going = pod["metadata"].get("deletionTimestamp")
    return not going and any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _args(pod: dict[str, Any]) -> list[str]:
    """The arguments of a pod or a pod template."""
    args: list[str] = pod["spec"]["containers"][0].get("args", [])
    return args


def _said(line: str) -> str:
    """The log line without the container runtime's prefix: time, stream, tag."""
    parts = line.split(" ", 3)
    return f"{parts[3]}\n" if len(parts) == 4 else ""
