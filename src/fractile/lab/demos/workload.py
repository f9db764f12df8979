"""Pods for demonstrations and end-to-end tests: builds manifests, and waits for their pods through kubectl."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from fractile.dialects.aliyun import COUNT, MEMORY
from fractile.errors import FractileError
from fractile.model.placement import Placement
from fractile.wire.fractile import placement

IMAGE = "fractile.dev/busybox:1"

_TELL = 10.0  # seconds between progress messages about a wait

Manifest = dict[str, Any]


class Kubectl(Protocol):
    """Runs kubectl and returns its output; raises FractileError with its message when it fails."""

    def __call__(self, *args: str, stdin: str | None = None) -> str: ...


class NotInTime(FractileError):
    """Something did not happen within its time."""


def container(
    name: str = "main",
    *,
    memory: int = 0,
    count: int = 0,
    command: str = "sleep 1000000",
    sidecar: bool = False,
) -> Manifest:
    """A container that asks for ``memory`` units of GPU memory, or for ``count`` whole cards."""
    limits = {MEMORY: str(memory)} if memory else {}
    limits |= {COUNT: str(count)} if count else {}
    body: Manifest = {
        "name": name,
        "image": IMAGE,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", f"trap 'exit 0' TERM; {command} & wait $!"],
        "resources": {"limits": limits},
    }
    return body | ({"restartPolicy": "Always"} if sidecar else {})


def pod(
    name: str,
    *containers: Manifest,
    init: Sequence[Manifest] = (),
    nodes: Sequence[str] = (),
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A pod that may run only on the given nodes, or on any if none are given."""
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": list(nodes)}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    spec: Manifest = {
        "terminationGracePeriodSeconds": 1,
        "enableServiceLinks": False,
        "dnsPolicy": "Default",
        "containers": list(containers),
        "initContainers": list(init),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": "fractile-demo", **(labels or {})}},
        "spec": spec | ({"affinity": {"nodeAffinity": required}} if nodes else {}),
    }


class DemoWorkload:
    """The pods of one namespace. ``told`` is called with a line about each long wait."""

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
        told: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._kubectl = kubectl
        self.clock = clock
        self.sleep = sleep
        self._told = told
        self.namespace = namespace

    def create_namespace(self) -> None:
        """Create the namespace and wait for its service account, which pods need to be admitted."""
        self.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}])
        self.wait_until(20, "the default service account", self._has_service_account)

    def apply(self, objects: Sequence[Manifest]) -> None:
        """Create or update all objects in one call."""
        document = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self._kubectl("-n", self.namespace, "apply", "-f", "-", stdin=json.dumps(document))

    def delete(self, *names: str, wait: float = 60) -> None:
        """Delete the named pods, or all pods of the namespace, and wait until they are gone."""
        what = names or ("--all",)
        self._kubectl("-n", self.namespace, "delete", "pod", *what, "--ignore-not-found", "--wait=false")
        self.wait_gone(*names, seconds=wait)

    def pods(self) -> dict[str, Manifest]:
        """All pods of the namespace by name."""
        items = json.loads(self._kubectl("-n", self.namespace, "get", "pods", "-o", "json"))["items"]
        return {item["metadata"]["name"]: item for item in items}

    def wait_running(self, *names: str, seconds: float = 60) -> dict[str, Manifest]:
        """Wait until all named pods run; return them by name. NotInTime immediately if a pod fails, and on a timeout,
        with kube-scheduler's last message about the first pod that does not run."""
        seen: dict[str, Manifest] = {}

        def running() -> bool:
            seen.update(self.pods())
            failed = [n for n in names if n in seen and phase(seen[n]) == "Failed"]
            if failed:
                raise NotInTime(f"pod {failed[0]} failed: {seen[failed[0]]['status'].get('message', '')}")
            return all(runs(n) for n in names)

        def runs(name: str) -> bool:
            return name in seen and phase(seen[name]) == "Running" and ready(seen[name])

        what = f"pods {', '.join(names[:5])}{' ...' if len(names) > 5 else ''} to run"
        self.wait_until(seconds, what, running, why=lambda: self._refusal(next(n for n in names if not runs(n))))
        return {n: seen[n] for n in names}

    def wait_refused(self, name: str, *, seconds: float = 30) -> str:
        """Wait until kube-scheduler says why the pod cannot run; return the text of that event."""
        found: list[str] = []

        def refused() -> bool:
            found[:] = [e["message"] for e in self.events(name) if e["reason"] == "FailedScheduling"]
            return bool(found)

        self.wait_until(seconds, f"an event that says why {name} waits", refused)
        return found[-1]

    def wait_gone(self, *names: str, seconds: float = 60) -> None:
        """Wait until the named pods, or all pods, no longer exist."""
        self.wait_until(seconds, "pods to be gone", lambda: self._none_left(names))

    def events(self, name: str) -> list[Manifest]:
        """The events of the present pod of that name, oldest first, without those of its predecessors."""
        uid = self.pods()[name]["metadata"]["uid"]
        selector = f"--field-selector=involvedObject.uid={uid}"
        items = json.loads(self._kubectl("-n", self.namespace, "get", "events", selector, "-o", "json"))["items"]
        return sorted(items, key=lambda e: e["metadata"]["resourceVersion"])

    def environment(self, name: str, container: str = "main") -> dict[str, str]:
        """The actual environment of a running container."""
        text = self._kubectl("-n", self.namespace, "exec", name, "-c", container, "--", "env")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def _refusal(self, name: str) -> str:
        """Why the pod waits, as the end of a sentence; empty if kube-scheduler has not said so."""
        try:
            said = [e["message"] for e in self.events(name) if e["reason"] == "FailedScheduling"]
        except (FractileError, KeyError):  # the pod is gone
            return ""
        return f"; {name}: {said[-1]}" if said else ""

    def wait_until(
        self, seconds: float, what: str, done: Callable[[], bool], *, why: Callable[[], str] = lambda: ""
    ) -> None:
        """Poll ``done`` until it is true; NotInTime, ending with ``why``, after ``seconds``."""
        began = self.clock()
        tell = began + _TELL
        while not done():
            if self.clock() > began + seconds:
                raise NotInTime(f"waited {seconds:.0f} s in vain for {what}{why()}")
            if self.clock() > tell:
                self._told(f"still waiting for {what}: {tell - began:.0f} of at most {seconds:.0f} s")
                tell += _TELL
            self.sleep(0.2)

    def _has_service_account(self) -> bool:
        found = self._kubectl(
            "-n", self.namespace, "get", "serviceaccount", "default", "--ignore-not-found", "-o", "name"
        )
        return bool(found.strip())

    def _none_left(self, names: Iterable[str]) -> bool:
        left = self.pods().keys()
        wanted = set(names)
        return not (left & wanted) if wanted else not left

    def delete_deployment(self, name: str) -> None:
        self._kubectl("-n", self.namespace, "delete", "deployment", name, "--ignore-not-found", "--wait=false")


def phase(manifest: Manifest) -> str:
    return manifest["status"].get("phase", "")


def ready(manifest: Manifest) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in manifest["status"].get("conditions", ()))


def node_of(manifest: Manifest) -> str:
    return manifest["spec"].get("nodeName", "")


def annotations(manifest: Manifest) -> dict[str, str]:
    return manifest["metadata"].get("annotations") or {}


def placement_of(manifest: Manifest) -> Placement:
    """The placement recorded on a bound pod; WireError when it is malformed, KeyError when there is none."""
    return placement.decode(annotations(manifest)[placement.ANNOTATION])
