"""What a demonstration takes for the cluster's fault, and what for kubelet's."""

import json
from typing import cast

import pytest

from fractile.dialects import aliyun
from fractile.lab.demos import card_use, demos
from fractile.lab.demos import workload as w
from fractile.lab.demos.demos import DemoFailed, best_fit, running_in_the_end, too_large
from fractile.lab.demos.workload import DemoWorkload, Manifest, NotInTime

REFUSED = "Pod was rejected: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices x"
PODS = {name: w.pod(name, w.container(memory=1)) for name in ("a", "b")}


class Cluster:
    """Pods as kubectl shows them; what is made again runs, unless it is refused ``again``."""

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


def work(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> DemoWorkload:
    found = DemoWorkload(cluster.kubectl, "demo")
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


class Node:
    """One node at the wire of kubectl, on a clock of its own: the pod ``large`` waits for its holders and is then
    slow to start."""

    def __init__(self, *, slow: float) -> None:
        self.time = 0.0
        self.told: list[str] = []
        self._slow = slow
        self._pods: set[str] = set()
        self._freed: float | None = None

    def work(self) -> DemoWorkload:
        return DemoWorkload(self.kubectl, "demo", clock=lambda: self.time, sleep=self.sleep, told=self.told.append)

    def sleep(self, seconds: float) -> None:
        self.time += seconds

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        if "apply" in args:
            self._pods |= {item["metadata"]["name"] for item in json.loads(stdin or "")["items"]}
        if "delete" in args:
            self._freed = self.time
            self._pods -= self._pods if "--all" in args else {"holder-1"}
        if "events" in args:
            message = "10000 MiB requested on one card, the most free on one is 7276 MiB"
            event = {"metadata": {"resourceVersion": "1"}, "reason": "FailedScheduling", "message": message}
            return json.dumps({"items": [event]})
        return json.dumps({"items": [self._shown(name) for name in sorted(self._pods)]})

    def _shown(self, name: str) -> Manifest:
        late = self._freed is None or self.time < self._freed + self._slow
        status: Manifest = {"phase": "Pending"} if name == "large" and late else RUNS
        return {"metadata": {"name": name, "uid": name}, "status": status}


class Stage:
    """Of a demonstration that needs none."""


@pytest.mark.parametrize("seconds", [20, 60, 118])
def test_the_next_pod_may_start_late_on_a_busy_machine(seconds: int) -> None:
    node = Node(slow=seconds)
    *_, last = too_large(cast("demos.DemoCluster", Stage()), node.work())
    assert f"the waiting pod ran {seconds}" in last
    assert last.endswith("A quiet machine needs 5 s at most; this one was busy.")
    assert node.told[0] == "still waiting for pods large to run: 10 of at most 120 s"
    assert len(node.told) == (seconds - 1) // 10


def test_on_a_quiet_one_only_the_time_is_said() -> None:
    node = Node(slow=0.4)
    *_, last = too_large(cast("demos.DemoCluster", Stage()), node.work())
    assert last == "A pod that held the space was deleted: the waiting pod ran 0.4 s later."
    assert node.told == []


def test_a_pod_that_nobody_wakes_is_a_failure() -> None:
    with pytest.raises(NotInTime, match="waited 120 s in vain for pods large to run; large: 10000 MiB requested"):
        list(too_large(cast("demos.DemoCluster", Stage()), Node(slow=300).work()))


def test_why_a_pod_waits_is_left_out_where_it_is_gone() -> None:
    with pytest.raises(NotInTime, match=r"waited 60 s in vain for pods ghost to run$"):
        Node(slow=0).work().wait_running("ghost")


class Mixed:
    """n4 at the wire of kubectl: its cards, what is used of them, and a pod that runs on card ``chosen``."""

    def __init__(self, used: dict[int, int], *, chosen: int) -> None:
        self._used = used
        self._chosen = chosen
        self._deleted = False

    def kubectl(self, *args: str, stdin: str | None = None) -> str:
        self._deleted = self._deleted or "delete" in args
        if "extendedresources" in args:
            return json.dumps({"items": [self._card(3 - i) for i in range(4)]})
        annotations = {aliyun.IDX: str(self._chosen)}
        shown = {"metadata": {"name": "fits-best", "annotations": annotations}, "spec": {"nodeName": "n4"}}
        return json.dumps({"items": [] if self._deleted else [shown | {"status": RUNS}]})

    def _card(self, index: int) -> Manifest:
        used = self._used.get(index, 0)
        size = (12_207, 8138, 4069, demos.CARD)[index]
        spec = {"nodeName": "n4", "deviceID": f"GPU-{index}", "index": index, "model": "m", "memory": f"{size}Mi"}
        bound = [{"namespace": n, "pod": "p", "container": "main", "memory": f"{used}Mi"} for n in ("default", "demo")]
        status = {"used": {"memory": f"{used}Mi", "slices": 1}, "boundTo": bound} if used else {}
        return {"metadata": {"name": f"gpu-{index}"}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("used", "chosen", "says"),
    [
        (
            {},
            1,
            "n4 has 12207 / 8138 / 4069 / 16276 MiB free; a pod of 8138 MiB got n4, card 1: nothing left over there.",
        ),
        (
            {1: 512},
            0,
            "n4 has 12207 / 7626 / 4069 / 16276 MiB free; a pod of 8138 MiB got n4, card 0: 4069 MiB left over ",
        ),
    ],
)
def test_what_is_free_is_read(used: dict[int, int], chosen: int, says: str) -> None:
    cluster = Mixed(used, chosen=chosen)
    (line,) = best_fit(cast("demos.DemoCluster", cluster), DemoWorkload(cluster.kubectl, "demo"))
    assert line.startswith(says)


def test_a_card_that_fits_worse_is_a_failure() -> None:
    cluster = Mixed({}, chosen=0)
    with pytest.raises(DemoFailed, match="card 1 fits best, n4, card 0 was chosen"):
        list(best_fit(cast("demos.DemoCluster", cluster), DemoWorkload(cluster.kubectl, "demo")))


def test_a_node_without_room_says_so() -> None:
    cluster = Mixed({0: 12_207, 1: 1, 3: 10_000}, chosen=0)
    with pytest.raises(
        DemoFailed, match="n4 has 0 / 8137 / 4069 / 6276 MiB free: no card has room for a pod of 8138 MiB"
    ):
        list(best_fit(cast("demos.DemoCluster", cluster), DemoWorkload(cluster.kubectl, "demo")))


def test_parts_of_cards_that_other_namespaces_hold_are_named() -> None:
    assert list(card_use.others(Mixed({1: 512}, chosen=0).kubectl, "demo")) == ["default/p (512 MiB of card 1 of n4)"]
