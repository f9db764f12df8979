"""The cluster of a soak: two nodes, two replicas of the control plane that share a Lease, and who reads them."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fractile.lab.cluster import component, node, plan
from fractile.lab.cluster.component import Component
from fractile.lab.cluster.local import LocalCluster
from fractile.lab.cluster.spec import DEFAULT_CARDS, from_options
from fractile.lab.cluster.up import UpOptions
from fractile.lab.machine import processes
from fractile.main.leading import DEFAULT_LEASE
from tests.chaos.acts.programs import free_port
from tests.soak import probes
from tests.soak.samples import Sample

LEADER, STANDBY = "control-plane", "control-plane-standby"
_ARBITER = "fractile-arbite"  # as much of the name as the kernel keeps
_LEASE = f"--lease={DEFAULT_LEASE}"


class World:
    """``begin`` starts it all; the cluster is taken down by whoever made it."""

    def __init__(self, cluster: LocalCluster, *, nodes: int) -> None:
        self.cluster = cluster
        self._nodes = nodes
        self._port = free_port()
        self._ca = Path()

    def begin(self) -> None:
        self.cluster.up(UpOptions(spec=from_options(self.cluster.name, nodes=self._nodes, cards=DEFAULT_CARDS)))
        self.cluster.restart(LEADER, _LEASE)
        made = plan.make(self.cluster.place, self.cluster.state, now=datetime.now(UTC))
        self._ca = made.secrets.ca
        component.start(self.cluster.place, self._standby(made.component(LEADER)))

    @property
    def native(self) -> bool:
        """Whether the nodes have the library and simulated drivers."""
        return bool(self.cluster.state.native)

    async def look(self, seconds: float) -> list[Sample]:
        """One sample of each program that runs."""
        return [one async for one in self._samples(seconds)]

    async def entries(self) -> dict[str, int]:
        """What is still in the books: of the leader's ledger, and directories by agent."""
        page = await self._metrics(LEADER)
        found = {LEADER: probes.ledger_pods(page)}
        found |= {f"{name}/agent": self._directories(name) for name in self.cluster.nodes}
        return {name: -1 if count is None else count for name, count in found.items()}

    async def _samples(self, seconds: float) -> AsyncIterator[Sample]:
        for name in (LEADER, STANDBY):
            if one := probes.sample(name, self._pid(name), await self._metrics(name), seconds=seconds):
                yield one
        for name in self.cluster.nodes:
            agent = f"{name}/agent"
            address = self.cluster.state.node(name).address
            page = await probes.get(address, node.METRICS_PORT, "/metrics")
            pid, directories = self._pid(agent), await asyncio.to_thread(self._directories, name)
            if one := probes.sample(agent, pid, page, seconds=seconds, entries=directories):
                yield one
            for child, comm in probes.children(pid):
                own = probes.sample(f"{name}/arbiter", child, "", seconds=seconds, entries=directories)
                if comm == _ARBITER and own:
                    yield own
            if one := probes.sample(f"{name}/kubelet", self._pid(f"{name}/kubelet"), "", seconds=seconds):
                yield one

    async def _metrics(self, replica: str) -> str:
        port = self.cluster.state.ports.control_plane if replica == LEADER else self._port
        return await probes.get("127.0.0.1", port, "/metrics", ca=self._ca)

    def _standby(self, leader: Component) -> Component:
        """Of an option that is given twice the last counts."""
        more = (_LEASE, f"--listen=127.0.0.1:{self._port}", f"--webhook=127.0.0.1:{free_port()}")
        return msgspec.structs.replace(leader, name=STANDBY, probe=None, argv=(*leader.argv, *more))

    def _pid(self, name: str) -> int:
        process = processes.running(self.cluster.place.record(name))
        return process.pid if process else 0

    def _directories(self, name: str) -> int:
        place = self.cluster.place.node(self.cluster.state.node(name).index)
        return sum(1 for _ in (place.agent / "slices").glob("[!.]*"))
