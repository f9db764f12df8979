"""What ``fractile why`` says of a pod about which kube-scheduler could not ask the extender."""

from pathlib import Path
from typing import Any

import pytest

from fractile.kube import paths
from tests.fakes.apiserver import FakeApiServer
from tests.reports.objects import container
from tests.reports.why.why_cluster import fill, submit, waiting, why

URL = "https://10.96.0.77/scheduler"
DOOR = "kube-scheduler cannot talk to the extender "
CERTIFICATE = "check that it has the current certificate and CA (docs/operate/install.md, section 3)"
RUNS = "check that the control plane runs, and read its log"


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    return fill(server)


def tried(message: str) -> dict[str, Any]:
    """A pod that fits, of which kube-scheduler's last try ended so."""
    body = waiting("small", container("main", 4069))
    body["status"]["conditions"][0] |= {"reason": "SchedulerError", "message": message}
    return body


def event(server: FakeApiServer, uid: str, name: str, message: str, at: str) -> None:
    body = {
        "metadata": {"name": name, "namespace": "default"},
        "involvedObject": {"name": "small", "uid": uid},
        "reason": "FailedScheduling",
        "message": message,
        "lastTimestamp": at,
    }
    server.create(paths.events("default"), body)


@pytest.mark.parametrize(
    ("message", "how", "advice"),
    [
        (f'Post "{URL}/filter": EOF', "EOF", CERTIFICATE),
        (f"failed filter with extender at URL {URL}/filter, code 403", "code 403", CERTIFICATE),
        (f'Post "{URL}/bind": remote error: tls: bad certificate', "remote error: tls: bad certificate", CERTIFICATE),
        (
            f'Post "{URL}/filter": tls: failed to verify certificate: x509: certificate signed by unknown authority',
            "tls: failed to verify certificate: x509: certificate signed by unknown authority",
            CERTIFICATE,
        ),
        (
            f'Post "{URL}/filter": dial tcp 10.96.0.77:443: connect: connection refused',
            "dial tcp 10.96.0.77:443: connect: connection refused",
            RUNS,
        ),
        (
            f'Post "{URL}/filter": context deadline exceeded (Client.Timeout exceeded while awaiting headers)',
            "context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
            RUNS,
        ),
        (f"failed filter with extender at URL {URL}/filter, code 503", "code 503", RUNS),
    ],
    ids=["EOF", "403", "tls", "x509", "refused", "timeout", "503"],
)
async def test_a_call_of_the_extender_that_failed_is_the_verdict(
    filled: FakeApiServer, tmp_path: Path, message: str, how: str, advice: str
) -> None:
    submit(filled, tried(message))
    assert (await why(filled, tmp_path, "small")).verdict == f"{DOOR}({how}): {advice}"


@pytest.mark.parametrize(
    "message",
    [
        "0/3 nodes are available: 3 the control plane is rebuilding its ledger",
        'Post "https://10.0.0.9/other/filter": EOF',
        f"the extender at {URL}/filter has answered",
        'Post "https://10.0.0.9/api/v1/namespaces/default/pods/small/binding": EOF',
    ],
    ids=["an answer", "another extender", "no failure", "the API server"],
)
async def test_what_is_no_such_failure_is_none(filled: FakeApiServer, tmp_path: Path, message: str) -> None:
    submit(filled, tried(message))
    assert (
        await why(filled, tmp_path, "small")
    ).verdict == "2 nodes (n1, n2) would take it now, as far as Fractile can tell"


async def test_where_the_pod_itself_says_nothing_its_newest_event_does(filled: FakeApiServer, tmp_path: Path) -> None:
    uid = submit(filled, waiting("small", container("main", 4069), seen=False))
    event(filled, uid, "old", "0/3 nodes are available", "2026-11-21T04:00:00Z")
    event(filled, uid, "new", f'Post "{URL}/filter": EOF', "2026-11-21T04:00:09Z")
    assert (await why(filled, tmp_path, "small")).verdict.startswith(f"{DOOR}(EOF): ")


async def test_a_failure_that_is_over_is_not_told(filled: FakeApiServer, tmp_path: Path) -> None:
    uid = submit(filled, tried("0/3 nodes are available"))
    event(filled, uid, "old", f'Post "{URL}/filter": EOF', "2026-11-21T04:00:00Z")
    assert DOOR not in (await why(filled, tmp_path, "small")).verdict
