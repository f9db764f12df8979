"""What a demonstration takes for the cluster's fault, and what for kubelet's."""

import json

import pytest

from fractile.cluster import workload as w
from fractile.cluster.demos import running_in_the_end
from fractile.cluster.workload import Manifest, NotInTime, Workload

REFUSED = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices x"
PODS = {name: w.pod(name, w.container(memory=1)) for name in ("a", "b")}


class Cluster:
    """Pods as kubectl shows them; what is made anew runs, unless it is refused ``again``."""

    def __init__(self, refused: dict[str, str], *, again: bool = False) -> None:
        self.made: list[str] = []
        self._again = again
        self._status: dict[str, Manifest] = {n: {"phase": "Failed", "message": m} for n, m in refused.items()}

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        if "apply" in args:
            names = [item["metadata"]["name"] for item in json.loads(stdin or "")["items"]]
            self.made += names
            if not self._again:
                self._status = {n: s for n, s in self._status.items() if n not in names}
        return json.dumps({"items": [{"metadata": {"name": n}, "status": self._status.get(n, RUNS)} for n in PODS]})


RUNS: Manifest = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}


def work(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Workload:
    found = Workload(cluster.kubectl, "demo")
    monkeypatch.setattr(found, "wait_gone", gone_at_once)
    return found


def gone_at_once(*_names: str, seconds: float) -> None:
    """Deleted pods are gone."""


def test_a_pod_that_kubelet_refused_before_it_knew_the_cards_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster({"b": REFUSED})
    running, remade = running_in_the_end(work(cluster, monkeypatch), PODS, ran={"a"})
    assert (sorted(running), remade, cluster.made) == (["a", "b"], ["b"], ["b"])


@pytest.mark.parametrize(
    ("message", "ran", "again"),
    [
        pytest.param(REFUSED, {"a", "b"}, False, id="it ran before"),
        pytest.param("out of memory", {"a"}, False, id="for another cause"),
        pytest.param(REFUSED, {"a"}, True, id="a second time"),
    ],
)
def test_any_other_failure_is_one(monkeypatch: pytest.MonkeyPatch, message: str, ran: set[str], again: bool) -> None:
    with pytest.raises(NotInTime, match="pod b failed"):
        running_in_the_end(work(Cluster({"b": message}, again=again), monkeypatch), PODS, ran)
