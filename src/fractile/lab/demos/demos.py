"""The demonstrations: each runs pods on a cluster, checks what became of them, and reports that in a line or two.

They are also end-to-end tests (tests/e2e/local/test_demos.py), so each checks its claims and raises DemoFailed when the
cluster behaves differently. All run in their own namespace on four nodes: n1, n2 and n3 with two equal cards of 16,276
MiB, and n4 with four cards of different size. The numbers are those of evidence/gpushare.md#worked-example.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import msgspec

from fractile.dialects import aliyun
from fractile.errors import FractileError
from fractile.lab.demos import card_use
from fractile.lab.demos import workload as w
from fractile.lab.demos.workload import DemoWorkload, Manifest, NotInTime
from fractile.model.placement import Placement
from fractile.wire.fractile.device_ids import count_by_card

CARD = 16_276  # MiB

_NEXT = 120.0  # seconds; without a wake-up, kube-scheduler would retry the pod only after five minutes
_QUICK = 5.0


class DemoFailed(FractileError):
    """The cluster did not behave as the demonstration claims."""


Record = Mapping[tuple[str, str, str], Mapping[str, Sequence[str]]]  # namespace, pod, container -> resource -> ids


class DemoCluster(Protocol):
    """The operations on a cluster that the demonstrations need."""

    def kubectl(self, *args: str, stdin: str | None = None) -> str: ...

    def kubelet_record(self, node: str) -> Record:
        """kubelet's own record of its containers' devices (pod-resources)."""
        ...

    def restart_kubelet(self, node: str) -> None: ...

    def restart_control_plane(self, *, crash_at: str = "") -> None:
        """Restart the control plane; with ``crash_at`` it kills itself at that step, as by kill -9."""
        ...

    def control_plane_runs(self) -> bool: ...


class Demo(msgspec.Struct, frozen=True):
    """One demonstration: ``run`` yields what happened, line by line, and leaves its namespace empty."""

    name: str
    title: str
    run: Callable[[DemoCluster, DemoWorkload], Iterator[str]]


def pack(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """gpushare's first demonstration: several pods share one card."""
    names = [f"pack-{i}" for i in range(1, 5)]
    work.apply([w.pod(name, w.container(memory=4069), nodes=["n1", "n2"]) for name in names])
    running = work.wait_running(*names)
    cards = {_only_card(w.placement_of(pod)) for pod in running.values()}
    _expect(len(cards) == 1, f"four pods of 4069 MiB should share one card, they are on {sorted(cards)}")
    yield f"4 pods asked for 4069 MiB each; all run on one card ({_where(running[names[0]])}), which is full now."
    work.delete()


def too_large(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """gpushare's second demonstration: the node's total would suffice, but no single card does."""
    work.apply([w.pod(f"holder-{i}", w.container(memory=9000), nodes=["n1"]) for i in (1, 2)])
    work.wait_running("holder-1", "holder-2")
    work.apply([w.pod("large", w.container(memory=10_000), nodes=["n1"])])
    reason = work.wait_refused("large")
    _expect("10000 MiB requested on one card" in reason and "7276 MiB" in reason, f"the event should say why: {reason}")
    work.sleep(3)  # it must stay refused
    _expect(w.phase(work.pods()["large"]) == "Pending", "the pod should stay Pending")
    yield (
        "n1 has 2 x 7276 MiB free, so its sum of 14552 MiB would be enough for a pod of 10000 MiB, but no single card "
        "has that much:"
    )
    yield f'   event: "{reason}"'
    work.delete("holder-1")
    freed = work.clock()
    work.wait_running("large", seconds=_NEXT)
    seconds = work.clock() - freed
    late = "" if seconds <= _QUICK else f" A quiet machine needs {_QUICK:.0f} s at most; this one was busy."
    yield f"A pod that held the space was deleted: the waiting pod ran {seconds:.1f} s later.{late}"
    work.delete()


def three_nodes(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """n1 is refused by the default scheduler's sum and n2 by Fractile; n3 is chosen."""
    use = {"n1": [CARD, 12_207], "n2": [12_207, 12_207], "n3": [8138, CARD]}
    for node, sizes in use.items():
        for i, size in enumerate(sizes):
            work.apply([w.pod(f"use-{node}-{i}", w.container(memory=size), nodes=[node])])
            work.wait_running(f"use-{node}-{i}")
    work.apply([w.pod("asks-8138", w.container(memory=8138), nodes=["n1", "n2", "n3"])])
    chosen = work.wait_running("asks-8138")["asks-8138"]
    _expect(w.node_of(chosen) == "n3", f"n3 should be chosen, {w.node_of(chosen)} was")
    _expect(w.annotations(chosen)[aliyun.IDX] == "0", f"card 0 has the room, card {_where(chosen)} was taken")
    yield "n1 has 4069 MiB left in all, n2 4069 + 4069, n3 8138 on card 0; a pod asks for 8138 MiB:"
    yield (
        f"   it runs on {_where(chosen)}. Why the others could not, from the event of a pod that may use only those "
        "two:"
    )
    work.apply([w.pod("asks-too", w.container(memory=8138), nodes=["n1", "n2"])])
    reason = work.wait_refused("asks-too")
    _expect("1 Insufficient aliyun.com/gpu-mem" in reason, f"n1 should be refused by the sum: {reason}")
    _expect(
        "8138 MiB requested on one card, the most free on one is 4069 MiB" in reason, f"n2 should say why: {reason}"
    )
    yield f'   event: "{reason}"'
    work.delete()


def best_fit(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """Of the cards that fit, the one with the least memory left is chosen."""
    asked = 8138
    free = card_use.free(stage.kubectl, "n4")
    rooms = [(room - asked, index) for index, room in enumerate(free) if room >= asked]
    said = f"n4 has {' / '.join(map(str, free))} MiB free"
    _expect(bool(rooms), f"{said}: no card has room for a pod of {asked} MiB")
    left, best = min(rooms)
    work.apply([w.pod("fits-best", w.container(memory=asked), nodes=["n4"])])
    pod = work.wait_running("fits-best")["fits-best"]
    _expect(w.annotations(pod)[aliyun.IDX] == str(best), f"{said}, card {best} fits best, {_where(pod)} was chosen")
    rest = f"{left} MiB" if left else "nothing"
    yield f"{said}; a pod of {asked} MiB got {_where(pod)}: {rest} left over there."
    work.delete()


def shapes(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """Whole cards and slices on one node; several containers, an init container and a sidecar in one pod."""
    work.apply([w.pod("slice", w.container(memory=2000), nodes=["n1"])])
    work.wait_running("slice")
    work.apply([w.pod("whole", w.container(count=1), nodes=["n1"])])
    whole = work.wait_running("whole")["whole"]
    card = _only_card(w.placement_of(whole))
    _expect(card != _only_card(w.placement_of(work.pods()["slice"])), "a whole card must be unused")
    yield f"A pod with a whole card and a pod with 2000 MiB of a card run side by side on n1 ({_where(whole)})."
    init = [w.container("prepare", memory=3000, command="true"), w.container("proxy", memory=500, sidecar=True)]
    mixed = w.pod("mixed", w.container("a", memory=1000), w.container("b", memory=1500), init=init, nodes=["n2"])
    work.apply([mixed])
    pod = work.wait_running("mixed", seconds=90)["mixed"]
    total = w.annotations(pod)[aliyun.POD]
    _expect(total == "3000", f"max(3000 before, 500 + 1000 + 1500 together) is 3000, {total} was charged")
    for name, amount in (("a", 1000), ("b", 1500), ("proxy", 500)):
        held = work.environment("mixed", name)
        _expect(held[aliyun.CONTAINER] == str(amount), f"{name} should see {amount}, sees {held[aliyun.CONTAINER]}")
        _expect(held[aliyun.POD] == "3000", f"{name} should see the pod's 3000, sees {held[aliyun.POD]}")
    yield "A pod with an init container (3000), a sidecar (500) and two containers (1000, 1500) is charged 3000 MiB,"
    yield "   as Kubernetes counts: init containers peak before the others add up. Each container sees its own share."
    work.delete()


def inside(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """The container's environment, the pod's annotations and kubelet's own record name the same card."""
    work.apply([w.pod("looks-inside", w.container(memory=2048), nodes=["n2"])])
    pod = work.wait_running("looks-inside")["looks-inside"]
    placed = w.placement_of(pod)
    env = work.environment("looks-inside")
    wanted = {
        aliyun.VISIBLE: _only_card(placed),
        aliyun.IDX: "0",
        aliyun.POD: "2048",
        aliyun.CONTAINER: "2048",
        aliyun.DEV: str(CARD),
    }
    seen = {key: env.get(key) for key in wanted}
    _expect(seen == wanted, f"the container should see {wanted}, it sees {seen}")
    noted = w.annotations(pod)
    noted = _wait_assigned(work, "looks-inside", noted)
    for key in (aliyun.IDX, aliyun.POD, aliyun.DEV):
        _expect(noted.get(key) == wanted[key], f"annotation {key} is {noted.get(key)}, not {wanted[key]}")
    _expect(noted.get(aliyun.ASSIGNED) == "true", "annotation ALIYUN_COM_GPU_MEM_ASSIGNED should be true")
    _expect(abs(int(noted[aliyun.ASSUME_TIME]) / 1e9 - time.time()) < 120, "the assume time should be now, in ns")
    check_kubelet_record(stage, work.namespace, {"looks-inside": pod})
    yield "kubectl exec looks-inside -- env | grep -e ALIYUN -e NVIDIA"
    yield from (f"   {key}={value}" for key, value in sorted(wanted.items()))
    yield "The annotations say the same, and kubelet's own record (pod-resources) names the same card."
    work.delete()


def fifty(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """Fifty equal pods in one apply, with kubelets restarted midway: each pod gets the card of its placement."""
    names = [f"fifty-{i:02}" for i in range(50)]
    pods = {name: w.pod(name, w.container(memory=1024), nodes=["n1", "n2"]) for name in names}
    work.apply([*pods.values()])
    started = time.monotonic()
    while len(ran := {n for n, p in work.pods().items() if w.phase(p) == "Running"}) < 10:
        _expect(time.monotonic() - started < 120, "ten of fifty pods should run within two minutes")
        time.sleep(0.1)
    for node in ("n1", "n2"):
        stage.restart_kubelet(node)
    running, remade = running_in_the_end(work, pods, ran)
    seconds = time.monotonic() - started
    check_not_overallocated(running)
    check_environment(work, running)
    check_kubelet_record(stage, work.namespace, running)
    cards = {_only_card(w.placement_of(pod)) for pod in running.values()}
    yield f"50 pods of 1024 MiB in one apply, both kubelets restarted in the middle: all run after {seconds:.0f} s on"
    yield f"   {len(cards)} cards; each container's environment and kubelet's record name the card of its placement."
    if remade:
        yield (
            f"   {len(remade)} that kubelet had refused, before the node's cards were registered again, were created "
            "again."
        )
    work.delete(wait=120)
    full = [f"full-{i}" for i in range(4)]
    work.apply([w.pod(name, w.container(memory=CARD), nodes=["n1", "n2"]) for name in full])
    filled = {_only_card(w.placement_of(pod)) for pod in work.wait_running(*full).values()}
    _expect(len(filled) == 4, "after the deletion each of the four cards must be free as a whole")
    yield "   All were deleted, and four pods that fill a whole card each ran at once: everything was free again."
    work.delete()


def running_in_the_end(
    work: DemoWorkload, pods: Mapping[str, Manifest], ran: Collection[str]
) -> tuple[dict[str, Manifest], list[str]]:
    """Wait until all pods run; return them, and the names of those recreated here as a controller would. kubelet
    permanently fails pods that it admits before it knows the agent's devices (docs/operate/recovery.md). A pod that ran
    before must not be among them."""
    remade: list[str] = []
    while True:
        try:
            return work.wait_running(*pods, seconds=240), remade
        except NotInTime:
            refused = [n for n, p in work.pods().items() if _refused_by_kubelet(p)]
            if not refused or not set(refused).isdisjoint([*ran, *remade]):
                raise
            work.delete(*refused)
            work.apply([pods[n] for n in refused])
            remade += refused


def _refused_by_kubelet(pod: Manifest) -> bool:
    said = str(pod["status"].get("message", ""))
    return w.phase(pod) == "Failed" and "no healthy devices present" in said


def crashes(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    """kill -9 of the control plane before and after its one write: the pod runs, is charged once, and nothing leaks."""
    try:
        yield from _crash_twice(stage, work)
    except FractileError:
        stage.restart_control_plane()  # do not leave a control plane that will kill itself
        raise


def _crash_twice(stage: DemoCluster, work: DemoWorkload) -> Iterator[str]:
    for step, when in (("assumed", "between assume and Binding"), ("bound", "after the Binding, before its answer")):
        name = f"crash-{step}"
        stage.restart_control_plane(crash_at=step)
        work.apply([w.pod(name, w.container(memory=CARD), nodes=["n1"])])
        deadline = time.monotonic() + 60
        while stage.control_plane_runs():
            _expect(time.monotonic() < deadline, f"the control plane should have ended at step {step}")
            time.sleep(0.1)
        stage.restart_control_plane()
        pod = work.wait_running(name, seconds=90)[name]
        work.apply([w.pod(f"{name}-other", w.container(memory=CARD), nodes=["n1"])])
        other = work.wait_running(f"{name}-other")[f"{name}-other"]
        _expect(
            _only_card(w.placement_of(pod)) != _only_card(w.placement_of(other)),
            "two pods that fill a card each must be on different cards",
        )
        work.apply([w.pod(f"{name}-third", w.container(memory=1), nodes=["n1"])])
        work.wait_refused(f"{name}-third")
        yield f"Control plane killed {when}: the pod runs ({_where(pod)}), charged once:"
        yield "   a second full card fits beside it, and then not one MiB more."
        work.delete()


DEMOS: tuple[Demo, ...] = (
    Demo("pack", "Several pods share one card", pack),
    Demo("too-large", "A pod that no single card can hold waits, and says why", too_large),
    Demo("three-nodes", "Three nodes, only one of which has the room", three_nodes),
    Demo("best-fit", "Best fit: the card with least left over", best_fit),
    Demo("shapes", "Whole cards, several containers, init containers and sidecars", shapes),
    Demo("inside", "What the container, its annotations and kubelet say", inside),
    Demo("fifty", "Fifty equal pods at once, kubelets restarted in the middle", fifty),
    Demo("crashes", "The control plane is killed in the middle of a bind", crashes),
)


def check_not_overallocated(pods: Mapping[str, Manifest]) -> None:
    """Check that the placements of the pods, added up per card, do not exceed CARD."""
    used: dict[str, int] = {}
    for pod in pods.values():
        for part in w.placement_of(pod).containers:
            for s in part.slices:
                used[s.card] = used.get(s.card, 0) + s.memory
    over = {card: sum_ for card, sum_ in used.items() if sum_ > CARD}
    _expect(not over, f"cards hold more than {CARD} MiB: {over}")


def check_environment(work: DemoWorkload, pods: Mapping[str, Manifest]) -> None:
    """Check that every container sees exactly the card of its own placement."""
    with ThreadPoolExecutor(4) as pool:
        seen = dict(zip(pods, pool.map(work.environment, pods), strict=True))
    for name, pod in pods.items():
        card = _only_card(w.placement_of(pod))
        visible = seen[name].get(aliyun.VISIBLE)
        _expect(visible == card, f"{name} was placed on {card}, its container sees {visible}")


def check_kubelet_record(stage: DemoCluster, namespace: str, pods: Mapping[str, Manifest]) -> None:
    """Check that kubelet's own record gives every container the cards and amounts of its placement."""
    records = {node: stage.kubelet_record(node) for node in {w.node_of(pod) for pod in pods.values()}}
    for name, pod in pods.items():
        for part in w.placement_of(pod).containers:
            ids = records[w.node_of(pod)][(namespace, name, part.container)][aliyun.MEMORY]
            wanted = {s.card: int(s.memory) for s in part.slices}
            _expect(count_by_card(ids) == wanted, f"{name}: kubelet holds {count_by_card(ids)}, placed {wanted}")


def _wait_assigned(work: DemoWorkload, name: str, noted: dict[str, str]) -> dict[str, str]:
    """Wait for the annotation ASSIGNED, which the agent writes after it has prepared the container."""

    def assigned() -> bool:
        noted.update(w.annotations(work.pods()[name]))
        return noted.get(aliyun.ASSIGNED) == "true"

    work.wait_until(60, f"the annotation {aliyun.ASSIGNED} of {name}", assigned)
    return noted


def _only_card(placed: Placement) -> str:
    cards = {s.card for c in placed.containers for s in c.slices}
    _expect(len(cards) == 1, f"one card expected, the placement names {sorted(cards)}")
    return cards.pop()


def _where(pod: Manifest) -> str:
    index = w.annotations(pod).get(aliyun.IDX)
    return f"{w.node_of(pod)}, card {index if index is not None else _only_card(w.placement_of(pod))}"


def _expect(condition: bool, sentence: str) -> None:
    if not condition:
        raise DemoFailed(sentence)
