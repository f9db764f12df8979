"""A cluster at the wire that shows everything inspect has words for."""

from collections.abc import AsyncIterator

import pytest

from fractile.wire.fractile.resource_class import GPU_SLOT, resource_name
from tests.fakes.apiserver import FakeApiServer
from tests.reports.objects import MEMORY, card, container, node, placed, pod

CARDS = "/apis/fractile.dev/v1alpha1/extendedresources"
PODS = "/api/v1/namespaces/default/pods"


def fill(server: FakeApiServer) -> None:
    """Two nodes with two cards each; packed, waiting, doubtful and finished pods; one sick card."""
    for name in ("n1", "n2"):
        server.create("/api/v1/nodes", node(name, gpu_mem=2 * MEMORY))
        for index in (0, 1):
            server.create(CARDS, card(name, index, healthy=(name, index) != ("n2", 1)))
    for body in (
        pod("a", container("main", 8138), on="n1", placed=placed("n1", main=(0, 8138))),
        pod("b", container("main", 4069), on="n1", placed=placed("n1", main=(0, 4069))),
        pod("two", container("x", 1000), container("y", 500), on="n2", placed=placed("n2", x=(0, 1000), y=(0, 500))),
        pod("done", container("main", 9000), on="n1", placed=placed("n1", main=(1, 9000)), phase="Succeeded"),
        pod("liar", container("main", 4069), on="n1", placed=placed("n1", main=(0, 1))),
        pod("large", container("main", 16276)),
        pod("cards", container("main", 2, resource="aliyun.com/gpu-count")),
        pod("class", container("main", 1, resource=GPU_SLOT, more={resource_name("large"): 1})),
        pod("odd", container("main", 0), container("half", -1)),
        pod("cpu", {"name": "main"}, on="n1"),
    ):
        server.create(PODS, body)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as server:
        yield server


@pytest.fixture
async def cluster(server: FakeApiServer) -> FakeApiServer:
    fill(server)
    return server
