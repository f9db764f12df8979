"""The programs of a run: what `fractile up` would start, less nodes and kube-controller-manager, and what they use up.

Everything is started through ``fractile.lab``, so that `fractile down --name` finds it, also after a crash.
"""

import asyncio
import os
import secrets
import shutil
import ssl
import subprocess
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import yaml

from fractile.errors import SetupError
from fractile.lab.cluster import component, controlplane, state
from fractile.lab.cluster.component import Component, HttpProbe
from fractile.lab.cluster.controlplane import CONTROL_PLANE_GROUP, Secrets
from fractile.lab.cluster.spec import from_options
from fractile.lab.cluster.state import ClusterState
from fractile.lab.layout import ClusterLayout
from fractile.lab.machine import processes
from fractile.lab.machine.programs import GO_FOLDERS, Programs
from fractile.lab.progress import silent
from tests.load.audit import POLICY
from tests.load.figures import Used
from tests.load.scenarios import Scenario
from tests.load.world import UNIT

ETCD, APISERVER, SCHEDULER, CONTROL_PLANE = "etcd", "kube-apiserver", "kube-scheduler", "control-plane"
NAMES = (ETCD, APISERVER, SCHEDULER, CONTROL_PLANE)

NEEDED = ("etcd", "kube-apiserver", "kube-scheduler", "kubectl")
_UNBOUNDED = 10_000  # calls a second; kube-scheduler's default of 50 would be all that is measured
_GRACE = 5.0  # seconds to end in order
_ANSWER = 10.0
FLOOR = Path(__file__).parent / "floor"
_BUILD = 300.0  # seconds


class Cluster:
    """The programs of the cluster ``place``. ``found``: where the Kubernetes programs are."""

    def __init__(self, place: ClusterLayout, found: Programs, *, now: datetime) -> None:
        spec = from_options(place.name, nodes=1, unit=UNIT)  # of the node only the address is used
        self.state: ClusterState = state.first(
            place, spec, hollow="nobody runs the nodes", fractile=True, programs=str(found.folder)
        )
        state.save(place, self.state)
        place.write(place.sharing, "version: 1\n")
        self.place = place
        self.found = found
        self.secrets: Secrets = controlplane.issue(place, self.state, now=now)
        self._bearer = secrets.token_urlsafe()  # by which the API server knows the control plane

    @property
    def audit(self) -> Path:
        return self.place.logs / "audit.log"

    async def start_store(self) -> None:
        await self._ensure(controlplane.etcd(self.place, self.state, self.secrets, self.found))

    async def start_api(self) -> None:
        plain = controlplane.apiserver(self.place, self.state, self.secrets, self.found)
        policy = self.place.write(self.place.config / "audit.yaml", yaml.safe_dump(POLICY))
        known = f'{self._bearer},{CONTROL_PLANE_GROUP},1,"{CONTROL_PLANE_GROUP}"\n'
        tokens = self.place.write(self.place.config / "tokens.csv", known)
        more = (
            "--disable-admission-plugins=TaintNodesByCondition",  # nobody would take the taint of a new node away
            "--delete-collection-workers=8",
            "--max-requests-inflight=2000",
            "--max-mutating-requests-inflight=1000",
            f"--token-auth-file={tokens}",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit}",
            "--audit-log-maxsize=2000",  # MB; one that is rotated cannot be counted
        )
        await self._ensure(msgspec.structs.replace(plain, argv=(*plain.argv, *more)))

    async def start_scheduler(self, scenario: Scenario) -> None:
        """Again, with the configuration of the row; its caches are filled when this returns."""
        await self.stop(SCHEDULER)
        config = self._write_config(scenario)
        plain = controlplane.scheduler(self.state, self.secrets, self.found, config)
        probe = HttpProbe(f"https://127.0.0.1:{self.state.ports.scheduler}/readyz", self.secrets.ca, self.secrets.admin)
        await self._ensure(msgspec.structs.replace(plain, probe=probe))

    async def start_control_plane(self, scenario: Scenario) -> None:
        """Again; its ledger is rebuilt when this returns."""
        await self.stop(CONTROL_PLANE)
        if scenario.floor is not None:
            await self._ensure(await self._floor(scenario.floor))
            return
        ports = self.state.ports if scenario.webhook else msgspec.structs.replace(self.state.ports, webhook=0)
        seen = msgspec.structs.replace(self.state, ports=ports)
        paths = {**self.secrets.kubeconfigs, CONTROL_PLANE: self._with_token()}
        plain = controlplane.fractile_control_plane(
            self.place, seen, msgspec.structs.replace(self.secrets, kubeconfigs=paths)
        )
        await self._ensure(msgspec.structs.replace(plain, argv=(*plain.argv, *scenario.flags)))

    async def stop(self, name: str) -> None:
        await asyncio.to_thread(component.stop, self.place, name, grace=_GRACE)

    def used(self) -> dict[str, Used]:
        """Of every program that runs; beside them this one."""
        found = {name: process.pid for name in NAMES if (process := processes.running(self.place.record(name)))}
        return {name: of_process(pid) for name, pid in {**found, "load": os.getpid()}.items()}

    def log(self, name: str) -> Path:
        return self.place.log(name)

    async def metrics(self, name: str) -> str:
        """The page of kube-scheduler or of the control plane."""
        port = self.state.ports.scheduler if name == SCHEDULER else self.state.ports.control_plane
        return (await self.fetch(f"https://127.0.0.1:{port}/metrics")).decode()

    async def fetch(self, url: str, *, timeout: float = _ANSWER) -> bytes:
        """What a program answers to the administrator; SetupError when it does not."""
        context = ssl.create_default_context(cafile=str(self.secrets.ca))
        context.load_cert_chain(self.secrets.admin.cert, self.secrets.admin.key)
        parts = urlsplit(url)
        path = f"{parts.path}?{parts.query}" if parts.query else parts.path
        async with asyncio.timeout(timeout):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port, ssl=context)
            try:
                writer.write(f"GET {path} HTTP/1.0\r\nHost: {parts.netloc}\r\n\r\n".encode())
                head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            finally:
                writer.close()
        first = head.partition(b"\r\n")[0].decode(errors="replace")
        if " 200 " not in f"{first} ":
            raise SetupError(f"{url} says {first!r}")
        return body

    async def _floor(self, options: tuple[str, ...]) -> Component:
        """The extender that decides nothing, in the place of the control plane; Go builds it when it has changed."""
        program = self.place.config / "floor"
        await asyncio.to_thread(build, FLOOR, program)
        listen = f"127.0.0.1:{self.state.ports.control_plane}"
        argv = (
            str(program),
            f"--listen={listen}",
            f"--cert={self.secrets.extender.cert}",
            f"--key={self.secrets.extender.key}",
            f"--ca={self.secrets.ca}",
            f"--api={controlplane.server_url(self.state)}",
            f"--token={self.place.write(self.place.config / 'floor.token', self._bearer)}",
            *options,
        )
        return Component(CONTROL_PLANE, argv, probe=HttpProbe(f"https://{listen}/readyz", self.secrets.ca))

    def _with_token(self) -> Path:
        """A kubeconfig of the control plane as its pods call: a token costs the API server a look into a table, a
        certificate two signatures to be checked at each call."""
        found = yaml.safe_load(self.secrets.kubeconfigs[CONTROL_PLANE].read_text())
        for one in found["users"]:
            one["user"] = {"token": self._bearer}
        return self.place.write(self.place.config / "control-plane-token.kubeconfig", yaml.safe_dump(found))

    def _write_config(self, scenario: Scenario) -> Path:
        """What `fractile up` writes, with what the row wants to be different."""
        written = controlplane.write_scheduler_config(self.place, self.state, self.secrets)
        config = configured(yaml.safe_load(written.read_text()), scenario)
        return self.place.write(self.place.config / f"scheduler-{scenario.name}.yaml", yaml.safe_dump(config))

    async def _ensure(self, one: Component) -> None:
        await component.ensure(self.place, one, silent())


def find_go() -> str | None:
    return shutil.which("go", path=os.pathsep.join((os.environ.get("PATH", ""), *GO_FOLDERS)))


def build(source: Path, program: Path) -> None:
    """A program of ours in Go, from its folder; SetupError in Go's words when it cannot be built."""
    go = find_go()
    if go is None:
        raise SetupError("this row needs Go, to build the extender that it measures")
    argv = [go, "build", "-o", str(program), "."]
    env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "", "GOWORK": "off"}
    done = subprocess.run(argv, cwd=source, env=env, capture_output=True, text=True, timeout=_BUILD, check=False)
    if done.returncode != 0:
        raise SetupError(f"go could not build {source}: {done.stderr.strip()[-300:]}")


def configured(config: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """kube-scheduler's configuration for the row."""
    connection = {**config["clientConnection"], "qps": _UNBOUNDED, "burst": _UNBOUNDED}
    return {
        **config,
        "clientConnection": connection,
        "percentageOfNodesToScore": scenario.percentage,
        "profiles": [{**one, **scenario.profile} for one in config["profiles"]],
        "extenders": [asked(one, scenario) for one in config["extenders"]] if scenario.extender else [],
    }


def asked(extender: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    """The extender with those verbs only that there are."""
    unknown = {"preemptVerb"} if scenario.floor is not None else set[str]()
    return {
        key: value for key, value in extender.items() if key not in unknown and (scenario.binds or key != "bindVerb")
    }


def of_process(pid: int) -> Used:
    """proc(5), stat and status; zeros of a process that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        status = Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return Used(0.0, 0)
    resident = next((line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")), "0")
    return Used((int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), int(resident) * 1024)
