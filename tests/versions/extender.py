"""A played extender over HTTPS that prefers the second node and binds by itself, and remembers what it was asked."""

import json
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trustme

from fractile.kube import paths
from tests.fakes.apiserver import FakeApiServer
from tests.fakes.http1 import Exchange, Server
from tests.fakes.store import place
from tests.versions.scheduler import NODES


class Asked:
    """The bodies of the requests by verb."""

    def __init__(self, api: FakeApiServer) -> None:
        self._api = api
        self.bodies: dict[str, list[dict[str, Any]]] = {}

    async def answer(self, exchange: Exchange) -> None:
        verb = exchange.path.rpartition("/")[2]
        body: dict[str, Any] = json.loads(exchange.body)
        self.bodies.setdefault(verb, []).append(body)
        await exchange.answer(200, json.dumps(getattr(self, f"_{verb}")(body)).encode())

    def _filter(self, body: dict[str, Any]) -> object:
        return {"NodeNames": body["NodeNames"]}

    def _prioritize(self, body: dict[str, Any]) -> object:
        return [{"Host": name, "Score": 10 if name == NODES[1] else 0} for name in body["NodeNames"]]

    def _bind(self, body: dict[str, Any]) -> object:
        at = place(paths.binding(body["PodNamespace"], body["PodName"]))
        self._api.store.bind(at, {"metadata": {"uid": body["PodUID"]}, "target": {"name": body["Node"]}})
        return {"Error": ""}


@asynccontextmanager
async def listening(api: FakeApiServer, folder: Path) -> AsyncGenerator[tuple[str, Path, Asked]]:
    """Its URL, the file of the authority that signed its certificate, and what it was asked."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    pem = folder / "extender.pem"
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    tls.load_cert_chain(pem)
    ca = folder / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))
    asked = Asked(api)
    server = Server(asked.answer, tls=tls)
    await server.start()
    try:
        yield f"https://127.0.0.1:{server.port}/scheduler", ca, asked
    finally:
        await server.stop()
