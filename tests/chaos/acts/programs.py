"""The programs of a local cluster as the chaos hits them, and who starts them again: with two replicas of the control
plane behind one address, and a link before whoever asks the API server.

Everything is started through ``fractile.lab``, so that `fractile down` finds it, also after a crash of the tests.
"""

import asyncio
import json
import signal
import socket
import ssl
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from fractile.lab.cluster import component, plan
from fractile.lab.cluster.component import Component
from fractile.lab.cluster.local import LocalCluster
from fractile.main.leading import DEFAULT_LEASE
from tests.chaos.acts.links import Address, Front, Link
from tests.chaos.acts.players import Players

REPLICAS = ("control-plane-a", "control-plane-b")
EXTENDER, WEBHOOK = "extender-link", "webhook-link"
_CONTROL_PLANE = "control-plane"
_PROBE = 1.0  # seconds


class Programs:
    """``begin`` changes the cluster, ``end`` changes it back; between them ``watch`` runs."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._place, self._state = cluster.place, cluster.state
        made = plan.make(self._place, self._state, now=datetime.now(UTC))
        self._plain = {c.name: c for c in made.components()}
        self._tls = ssl.create_default_context(cafile=str(made.secrets.ca))
        self._replica = self._plain.pop(_CONTROL_PLANE)
        self._components, self._links = dict(self._plain), dict[str, Link]()
        self._players = Players(self._place, self._components, self._links)
        self._listen = {name: (free_port(), free_port()) for name in REPLICAS}
        self._front = Front({name: ("127.0.0.1", ports[0]) for name, ports in self._listen.items()}, self._is_ready)

    @property
    def players(self) -> Players:
        return self._players

    @property
    def nodes(self) -> list[str]:
        return [node.name for node in self._state.nodes]

    async def begin(self) -> None:
        """Put the links in place and start everything that uses one again."""
        await self._make_links()
        await asyncio.to_thread(self._cluster.kill, _CONTROL_PLANE, signal.SIGTERM)
        changed = list(self._through_links())
        self._components |= {one.name: one for one in changed}
        await self._stop(changed)
        await self._links_listen()
        await asyncio.gather(*(asyncio.to_thread(component.start, self._place, one) for one in changed))

    async def end(self, *, restore: bool) -> None:
        """Without chaos again: what used links is stopped, and, to ``restore`` the cluster, `up` starts the rest."""
        self._players.heal()
        await self._stop([one for name, one in self._components.items() if one is not self._plain.get(name)])
        for link in self._links.values():
            await link.close()
        if restore:
            await asyncio.to_thread(self._cluster.up)

    async def _stop(self, some: Iterable[Component]) -> None:
        await asyncio.gather(
            *(asyncio.to_thread(component.stop, self._place, one.name, grace=one.grace) for one in some)
        )

    async def watch(self) -> None:
        """Start what does not run, forever; and know who leads."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._front.run())
            tasks.create_task(self._players.watch())

    async def metrics(self) -> str:
        """The page of the replica that is ready; empty when none is."""
        name = self._front.leader
        answer = await self._get(("127.0.0.1", self._listen[name][0]), "/metrics") if name else None
        return answer or ""

    def agents(self) -> dict[str, int]:
        """The process of each node's agent; 0 where none runs."""
        return {node: self._players.pid(f"{node}/agent") for node in self.nodes}

    async def _make_links(self) -> None:
        api = ("127.0.0.1", self._state.ports.apiserver)
        clients = [*REPLICAS, *(f"{n}/{part}" for n in self.nodes for part in ("agent", "kubelet"))]
        self._links |= {name: Link(name, lambda: api) for name in clients}
        for link in self._links.values():
            await link.listen()
        for name, index in ((EXTENDER, 0), (WEBHOOK, 1)):
            self._links[name] = Link(name, self._front.upstream({r: p[index] for r, p in self._listen.items()}))

    async def _links_listen(self) -> None:
        await self._links[EXTENDER].listen(self._state.ports.control_plane)
        await self._links[WEBHOOK].listen(self._state.ports.webhook)

    def _through_links(self) -> Iterable[Component]:
        for name, (listen, webhook) in self._listen.items():
            more = f"--lease={DEFAULT_LEASE}", f"--listen=127.0.0.1:{listen}", f"--webhook=127.0.0.1:{webhook}"
            yield self._linked(msgspec.structs.replace(self._replica, name=name, probe=None), *more)
        for node in self.nodes:
            for part in ("agent", "kubelet"):
                yield self._linked(self._plain[f"{node}/{part}"])

    def _linked(self, one: Component, *more: str) -> Component:
        """The component with its API server behind its link. Of an option that is given twice the last counts."""
        option = next(a for a in one.argv if a.startswith("--kubeconfig="))
        config = json.loads(Path(option.partition("=")[2]).read_text())
        config["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{self._links[one.name].port}"
        path = self._place.config / "chaos" / f"{one.name.replace('/', '.')}.kubeconfig"
        self._place.write(path, json.dumps(config))
        return msgspec.structs.replace(one, argv=(*one.argv, f"--kubeconfig={path}", *more))

    async def _is_ready(self, there: Address) -> bool:
        return await self._get(there, "/readyz") is not None

    async def _get(self, there: Address, path: str) -> str | None:
        """The body of a 200; None for anything else."""
        writer = None
        try:
            async with asyncio.timeout(_PROBE):
                reader, writer = await asyncio.open_connection(*there, ssl=self._tls)
                writer.write(f"GET {path} HTTP/1.1\r\nHost: {there[0]}\r\nConnection: close\r\n\r\n".encode())
                head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        except (OSError, TimeoutError):
            return None
        finally:
            if writer is not None:
                writer.close()
        return body if head.partition("\r\n")[0].endswith(" 200 OK") else None


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
