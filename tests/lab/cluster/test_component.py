"""Starting one component: level-triggered, waited for, and explained when it fails."""

import http.server
import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path

import pytest

from fractile.errors import SetupError
from fractile.lab.cluster import component
from fractile.lab.cluster.component import Component, HttpProbe, SocketProbe
from fractile.lab.layout import ClusterLayout, layout
from fractile.lab.machine import processes
from fractile.lab.progress import Progress


@pytest.fixture
def place(tmp_path: Path) -> Generator[ClusterLayout]:
    found = layout(tmp_path, "a")
    yield found
    for record in (found.root / "run").glob("*.pid"):
        component.stop(found, record.stem, grace=0)


async def test_it_is_started_once_and_then_left_alone(place: ClusterLayout) -> None:
    lines: list[str] = []
    one = Component("one", ("sleep", "60"))
    assert await component.ensure(place, one, Progress(lines.append, clock=lambda: 0.0))
    first = component.running(place, one)
    assert not await component.ensure(place, one, Progress(lines.append))
    assert component.running(place, one) == first
    assert [line.split(maxsplit=1) for line in lines] == [["one", "started (0.0 s)"], ["one", "running already"]]


async def test_a_dead_one_is_started_again(place: ClusterLayout) -> None:
    one = Component("node-1/one", ("sleep", "60"))
    await component.ensure(place, one, Progress(lambda line: None))
    first = component.running(place, one)
    assert first is not None
    processes.stop(first, grace=0)
    assert await component.ensure(place, one, Progress(lambda line: None))
    assert component.running(place, one) not in (None, first)


async def test_one_that_ends_is_explained_by_the_last_line_of_its_log(place: ClusterLayout) -> None:
    lines: list[str] = []
    never = SocketProbe(place.root / "none.sock")
    one = Component("one", ("sh", "-c", "echo first; echo 'bad flag: --x'"), probe=never)
    with pytest.raises(SetupError, match=r"one ended right after its start: bad flag: --x \(see .*one\.log\)"):
        await component.ensure(place, one, Progress(lines.append))
    assert "failed after" in lines[0]


async def test_one_that_never_becomes_ready_is_given_up(place: ClusterLayout) -> None:
    one = Component("one", ("sleep", "60"), probe=SocketProbe(place.root / "none.sock"))
    component.start(place, one)
    with pytest.raises(SetupError, match="one was not ready after 0 s: it wrote nothing"):
        await component.wait_ready(place, one, timeout=0.1)


async def test_what_enters_a_namespace_comes_before_the_program(place: ClusterLayout) -> None:
    one = Component("one", ("echo", "inside"), enter=("env", "--"))
    process = component.start(place, one)
    assert processes.wait(process, 5)
    assert place.log("one").read_text() == "inside\n"


def test_the_environment_names_no_other_cluster(place: ClusterLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", "/somebody/elses")
    one = Component("one", ("sh", "-c", 'echo "$KUBECONFIG,$OURS"'), env={"OURS": "1"})
    process = component.start(place, one)
    assert processes.wait(process, 5)
    assert place.log("one").read_text() == ",1\n"
    assert os.environ["KUBECONFIG"] == "/somebody/elses"


def test_a_socket_is_ready_when_it_takes_connections(tmp_path: Path) -> None:
    path = tmp_path / "s"
    assert not SocketProbe(path).ready()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        assert not SocketProbe(path).ready()
        server.listen()
        assert SocketProbe(path).ready()
    assert not SocketProbe(path).ready(), "the file is left, nobody listens"


@pytest.mark.parametrize(("status", "ready"), [(200, True), (500, False), (403, False)])
def test_http_is_ready_when_it_answers_200(status: int, ready: bool) -> None:
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        assert HttpProbe(f"http://127.0.0.1:{server.server_port}/healthz").ready() is ready
        assert not HttpProbe(f"http://127.0.0.1:{server.server_port}/other").ready()
    finally:
        server.shutdown()
        server.server_close()
    assert not HttpProbe(f"http://127.0.0.1:{server.server_port}/healthz").ready()
