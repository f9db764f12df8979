"""The two API servers that every contract test runs against: the fake of tests/fakes and the real kube-apiserver."""

import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx2
import pytest

from fractile.kube import credentials
from fractile.kube.client import KubeClient
from fractile.kube.credentials import Credentials
from fractile.kube.tokens import StaticToken
from tests.contract import real_apiserver
from tests.contract.kubectl import Kubectl, with_manifests
from tests.contract.real_apiserver import RealApiServer
from tests.fakes.apiserver import FakeApiServer

_namespaces = itertools.count(1)


@dataclass(frozen=True)
class Api:
    """One server, a client for it, and a namespace of the test's own."""

    client: KubeClient
    credentials: Credentials
    namespace: str
    compact: Callable[[], Awaitable[None]]  # forget the history of config maps up to now

    @property
    def config_maps(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/configmaps"

    def config_map(self, name: str) -> str:
        return f"{self.config_maps}/{name}"


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Generator[RealApiServer, None, None]:
    why = real_apiserver.missing()
    if why:
        pytest.skip(why)
    with real_apiserver.running(tmp_path_factory.mktemp("apiserver")) as server:
        yield server


@pytest.fixture(params=["fake", "real"])
async def api(request: pytest.FixtureRequest) -> AsyncGenerator[Api, None]:
    namespace = f"contract-{next(_namespaces)}"
    async with AsyncExitStack() as stack:
        if request.param == "fake":
            fake = await stack.enter_async_context(FakeApiServer(tokens={real_apiserver.TOKEN}))
            found = fake.credentials(token=StaticToken(real_apiserver.TOKEN))
            compact = _compact_fake(fake)
        else:
            real: RealApiServer = request.getfixturevalue("real_server")
            found = credentials.load(real.kubeconfig)
            compact = _compact_real(real)
        client = await stack.enter_async_context(KubeClient(found, page_size=3))
        await client.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
        yield Api(client, found, namespace, compact)


def _compact_fake(fake: FakeApiServer) -> Callable[[], Awaitable[None]]:
    async def compact() -> None:
        fake.compact()

    return compact


def _compact_real(real: RealApiServer) -> Callable[[], Awaitable[None]]:
    async def compact() -> None:
        async with httpx2.AsyncClient(base_url=real.etcd, timeout=10) as etcd:
            now = (await etcd.post("/v3/kv/range", json={"key": "AA=="})).json()["header"]["revision"]
            answer = await etcd.post("/v3/kv/compaction", json={"revision": now, "physical": True})
            assert answer.status_code == 200, answer.text

    return compact


@pytest.fixture(scope="session")
def kubectl(tmp_path_factory: pytest.TempPathFactory) -> Generator[Kubectl, None, None]:
    """An administrator's, with all manifests applied: to a server of its own, or our policies would judge the other
    tests, by the order in which they run."""
    why = real_apiserver.missing()
    if why:
        pytest.skip(why)
    with real_apiserver.running(tmp_path_factory.mktemp("manifests")) as server:
        told = with_manifests(server)
        if told is None:
            pytest.skip("kubectl is not built; `fractile up` builds it")
        yield told
