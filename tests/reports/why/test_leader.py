"""What ``fractile why`` makes of the Lease of the control plane, which a control plane without one does not touch."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from fractile.kube import paths
from fractile.lab import cluster
from tests.fakes.apiserver import FakeApiServer
from tests.reports.objects import container, placed, pod
from tests.reports.why.why_cluster import fill, later, submit, waiting

MANIFESTS = Path(cluster.__file__).parent / "manifests"
NOBODY = "no control plane of Fractile seems to lead"


@pytest.fixture
def filled(server: FakeApiServer) -> FakeApiServer:
    return fill(server)


def after(begin: str, seconds: float) -> str:
    return f"{datetime.fromisoformat(begin) + timedelta(seconds=seconds):%Y-%m-%dT%H:%M:%SZ}"


def lease(server: FakeApiServer, holder: str, *, renewed: str) -> None:
    meta = {"name": "fractile-control-plane", "namespace": "fractile-system"}
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": renewed}
    server.create(paths.leases("fractile-system"), {"metadata": meta, "spec": spec})


def created(server: FakeApiServer, name: str) -> str:
    found: str = server.get(paths.pod("default", name))["metadata"]["creationTimestamp"]
    return found


@pytest.mark.parametrize(
    ("holder", "seconds", "leads"), [("a", 24, True), ("a", 26, False), ("", 0, False), ("", 90, False)]
)
async def test_without_a_control_plane_that_leads_nobody_is_placed(
    filled: FakeApiServer, holder: str, seconds: float, leads: bool
) -> None:
    submit(filled, waiting("small", container("main", 4069)))
    lease(filled, holder, renewed=created(filled, "small"))
    found = await later(filled, "small", seconds=seconds)

    assert found.verdict.startswith(NOBODY) is not leads


async def test_it_says_whose_lease_has_expired_and_since_when(filled: FakeApiServer) -> None:
    submit(filled, waiting("small", container("main", 4069)))
    begun = created(filled, "small")
    lease(filled, "cp-1", renewed=begun)
    found = await later(filled, "small", seconds=15 + 7261)

    assert (
        f"the Lease fractile-system/fractile-control-plane of cp-1 expired 2h1m ago ({after(begun, 15)}), and no pod "
        "was placed since; check whether the control plane runs"
    ) in found.verdict


async def test_a_lease_that_was_given_back_is_not_said_to_have_expired(filled: FakeApiServer) -> None:
    submit(filled, waiting("small", container("main", 4069)))
    lease(filled, "", renewed=created(filled, "small"))

    assert "fractile-control-plane was released 1m30s ago" in (await later(filled, "small", seconds=90)).verdict


@pytest.mark.parametrize(("bound", "works"), [(20, False), (26, True)])
async def test_a_pod_that_was_placed_since_shows_that_a_control_plane_runs_without_the_lease(
    filled: FakeApiServer, bound: float, works: bool
) -> None:
    """A replica that led until it expired may have bound a pod in its last seconds; clocks may be 10 s apart."""
    submit(filled, waiting("large", container("main", 10_000)))
    begun = created(filled, "large")
    lease(filled, "cp-1", renewed=begun)
    body = pod("fresh", container("main", 100), on="n1", placed=placed("n1", main=(0, 100)))
    body["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "True", "lastTransitionTime": after(begun, bound)}
    ]
    submit(filled, body)
    found = await later(filled, "large", seconds=3600)

    assert found.verdict.startswith("none of 3 nodes takes it" if works else NOBODY)
    left = [n for n in found.notes if "is left from an earlier run: pod default/fresh was placed since" in n]
    assert bool(left) is works


@pytest.mark.parametrize("placement", [None, "by hand"])
async def test_a_pod_that_no_control_plane_has_placed_shows_nothing(
    filled: FakeApiServer, placement: str | None
) -> None:
    submit(filled, waiting("large", container("main", 10_000)))
    begun = created(filled, "large")
    lease(filled, "cp-1", renewed=begun)
    body = pod("fresh", {"name": "main"}, on="n1" if placement is None else "", placed=placement)
    body["status"]["conditions"] = [{"type": "PodScheduled", "status": "True", "lastTransitionTime": after(begun, 99)}]
    submit(filled, body)

    assert (await later(filled, "large", seconds=3600)).verdict.startswith(NOBODY)


@pytest.mark.parametrize(
    ("message", "works"),
    [
        ("0/3 nodes are available: 2 10000 MiB requested on one card, the most free on one is 8138 MiB (card 0; 8138 "
        "MiB free on 1 card together), 1 node(s) had untolerated taint {team: b}.", True),
        ("0/3 nodes are available: 3 Insufficient aliyun.com/gpu-mem.", False),
        ('Post "https://10.0.0.1:8443/filter": dial tcp 10.0.0.1:8443: connect: connection refused', False),
    ],
    ids=["the extender's sentence", "kube-scheduler's own sums", "no extender"],
)  # fmt: skip
async def test_an_answer_of_the_extender_since_then_shows_it_too(
    filled: FakeApiServer, message: str, works: bool
) -> None:
    uid = submit(filled, waiting("large", container("main", 10_000)))
    begun = created(filled, "large")
    lease(filled, "cp-1", renewed=begun)
    event = {
        "metadata": {"name": "e1", "namespace": "default"},
        "involvedObject": {"name": "large", "uid": uid},
        "reason": "FailedScheduling",
        "message": message,
        "lastTimestamp": after(begun, 60),
    }
    filled.create(paths.events("default"), event)
    found = await later(filled, "large", seconds=3600)

    assert found.verdict.startswith(NOBODY) is not works


async def test_a_lease_that_nobody_ever_held_says_nothing_of_a_leader(filled: FakeApiServer) -> None:
    written = yaml.safe_load_all((MANIFESTS / "34-leader.yaml").read_text())
    empty = next(each for each in written if each["kind"] == "Lease")
    filled.create(paths.leases("fractile-system"), empty)
    submit(filled, waiting("small", container("main", 4069)))

    assert (await later(filled, "small", seconds=100)).verdict.endswith(
        "would take it now, as far as Fractile can tell"
    )
