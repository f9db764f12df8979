"""``LocalCluster``: the API of one local cluster, for the commands, the demonstrations and the tests.

Its methods block. In a coroutine, call them through ``asyncio.to_thread``.
"""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fractile.agent.kubelet.kubelet_state import Kubelet
from fractile.errors import FractileError, SetupError
from fractile.lab.cluster import chart, component, state
from fractile.lab.cluster import down as down_flow
from fractile.lab.cluster import plan as plans
from fractile.lab.cluster.component import Component, ComponentLook
from fractile.lab.cluster.objects import kubectl_env
from fractile.lab.cluster.plan import ClusterPlan
from fractile.lab.cluster.pods import Pods
from fractile.lab.cluster.state import ClusterState
from fractile.lab.cluster.up import StartedCluster, UpOptions, up
from fractile.lab.layout import DEFAULT_NAME, ClusterLayout, cluster_names, default_clusters_dir, layout
from fractile.lab.machine import processes
from fractile.lab.machine.processes import StartedProcess
from fractile.lab.machine.programs import Programs
from fractile.lab.progress import Progress, silent
from fractile.wire.foreign.kubelet_checkpoint import FILE_NAME

_KUBECTL_TIMEOUT = 120.0


class KubectlFailed(FractileError):
    """kubectl failed; the text is its output."""


class LocalCluster:
    """This user's cluster ``name``, whether it runs or not."""

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        clusters: Path | None = None,
        env: Mapping[str, str] | None = None,
        progress: Progress | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.place: ClusterLayout = layout(clusters or default_clusters_dir(), name)
        self._env = dict(os.environ if env is None else env)
        self._progress = progress or silent()
        self._now = now

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def kubeconfig(self) -> Path:
        return self.place.kubeconfig

    @property
    def logs(self) -> Path:
        return self.place.logs

    @property
    def state(self) -> ClusterState:
        """The kept state of the cluster; SetupError when there is no such cluster."""
        kept = state.load(self.place)
        if kept is None:
            known = ", ".join(cluster_names(self.place.root.parent)) or "none"
            raise SetupError(
                f"there is no local cluster {self.name!r} (there are: {known}); "
                f"start it with `fractile up --name {self.name}`"
            )
        return kept

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self.state.nodes]

    @property
    def hollow(self) -> str:
        """Why its nodes have no kubelet; empty when they have one."""
        return self.state.hollow

    def up(self, wish: UpOptions | None = None) -> StartedCluster:
        """Start or complete the cluster."""
        flow = up(self.place, wish or UpOptions(), env=self._env, progress=self._progress, now=self._now())
        return asyncio.run(flow)

    def down(self, *, keep_logs: bool = False) -> bool:
        """Stop and remove the cluster; False when nothing of it existed. ``keep_logs``: keep the end of each log."""
        return down_flow.down(self.place, self._progress, keep_logs=keep_logs)

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = _KUBECTL_TIMEOUT) -> str:
        """Run kubectl against the cluster and return its output. KubectlFailed with its message when it fails."""
        argv = [Programs.at(self.state.programs)["kubectl"], *args]
        try:
            done = subprocess.run(
                argv,
                env=kubectl_env(self.place, self._env),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise KubectlFailed(f"kubectl {' '.join(args[:3])} took longer than {timeout:.0f} s") from None
        if done.returncode != 0:
            raise KubectlFailed(done.stderr.strip() or f"kubectl ended with status {done.returncode}")
        return done.stdout

    def components(self) -> list[str]:
        """The names of all processes, such as kube-apiserver and node-1/kubelet; without pods."""
        return [c.name for c in self._plan().components()]

    def status(self) -> dict[str, ComponentLook]:
        """Each component with its log and its pid, which is None when it does not run."""
        return {c.name: component.seen(self.place, c) for c in self._plan().components()}

    def process(self, name: str) -> StartedProcess | None:
        """The process of the component, if it runs; the leader's if it is several replicas in pods."""
        if (pods := self._pods(name)) is not None:
            return pods.process(name)
        return component.running(self.place, self._component(name))

    def log(self, name: str) -> Path:
        pods = self._pods(name)
        return self.place.log(name) if pods is None else pods.log(name)

    def kill(self, name: str, number: int = signal.SIGKILL, *, wait: float = 10.0) -> None:
        """Send the signal to the component; for SIGKILL and SIGTERM, wait until it has ended."""
        if (pods := self._pods(name)) is not None:
            pods.kill(name, number)
            return
        process = self.process(name)
        if process is None or not processes.send(process, number):
            raise SetupError(f"{name} does not run")
        if number in (signal.SIGKILL, signal.SIGTERM) and not processes.wait(process, wait):
            raise SetupError(f"{name} still runs {wait:.0f} s after signal {number}")

    def start(self, name: str, *args: str, program: Sequence[str] = ()) -> None:
        """Start the component unless it runs, with ``args`` added to its command line, and wait until it is ready.
        ``program`` takes the place of the program and its subcommand; SetupError if the component is a pod."""
        if (pods := self._pods(name)) is not None:
            if program:
                raise SetupError(f"{name} is a pod of this cluster: it runs the program of its image")
            pods.start(name, args)
            return
        one = self._component(name)
        arguments = one.argv[one.argv.index(name) + 1 :] if program else one.argv
        one = msgspec.structs.replace(one, argv=(*program, *arguments, *args))
        component.start(self.place, one)
        asyncio.run(component.wait_ready(self.place, one))

    def restart(self, name: str, *args: str, program: Sequence[str] = ()) -> None:
        """Kill the component if it runs, and start it."""
        if self.process(name) is not None:
            self.kill(name)
        self.start(name, *args, program=program)

    def restart_kubelet(self, node: str) -> None:
        """Kill and restart the node's kubelet, real or hollow; containers and the agent keep running."""
        self.restart(f"{self.state.node(node).name}/{'hollow-node' if self.hollow else 'kubelet'}")

    def kubelet_folder(self, node: str) -> Path:
        """The node's /var/lib/kubelet, as a path on this machine."""
        index = self.state.node(node).index
        return self.place.shortcut(index) if self.hollow else self.place.node(index).kubelet

    def devices_file(self, node: str) -> Path:
        """The file from which the node's agent reads non-GPU devices."""
        there = self.place.node(self.state.node(node).index)
        return (there.agent if self.state.image else there.config) / chart.DEVICES

    def kubelet_record(self, node: str) -> dict[tuple[str, str, str], dict[str, list[str]]]:
        """What kubelet's pod-resources API says: (namespace, pod, container) -> resource -> device ids."""
        folder = self.kubelet_folder(node)
        kubelet = Kubelet(folder / "pod-resources" / "kubelet.sock", folder / "device-plugins" / FILE_NAME)
        listed = asyncio.run(kubelet.state()).listed
        return {
            (pod.namespace, pod.name, name): {resource: sorted(ids) for resource, ids in held.items()}
            for pod in listed
            for name, held in pod.held.items()
            if held
        }

    def _pods(self, name: str) -> Pods | None:
        """Access to the component of that name, if it is a pod of the chart; else None."""
        state = self.state
        pods = Pods(self.place, state, self.kubectl) if state.image else None
        return pods if pods is not None and name in pods.names() else None

    def _plan(self) -> ClusterPlan:
        return plans.make(self.place, self.state, now=self._now())

    def _component(self, name: str) -> Component:
        return self._plan().component(name)


def kubectl_command(place: ClusterLayout, args: Sequence[str]) -> tuple[str, list[str], dict[str, str]]:
    """Program, arguments and environment with which os.execve runs kubectl for that cluster."""
    cluster = LocalCluster(place.name, clusters=place.root.parent)
    program = Programs.at(cluster.state.programs)["kubectl"]
    return program, [program, *args], kubectl_env(place, os.environ)
