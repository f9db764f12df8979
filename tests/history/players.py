"""The others in the cluster: one step each of a user, kube-scheduler, kubelet, an agent, or of bad luck.

A step names what it does and holds two draws, so that it means something in any state, and a history stays a history
when some of its steps are taken out.
"""

import json
import random
from collections.abc import Callable

import msgspec

from fractile.wire.kubernetes.extender import BindingArgs
from tests.history import shapes
from tests.history.judge import PLACEMENT
from tests.history.kernel import Kernel
from tests.history.replica import Replica
from tests.history.server import Chance, Server
from tests.history.store import CARDS, PODS, Object, Store

_CHOICE = "fractile.dev/kubelet-choice"
_NAMES = 24
_STUBBORN = 0.6  # of the calls that failed are made again

WEIGHTS: dict[str, float] = {
    "create": 16,
    "delete": 6,
    "recreate": 5,
    "finish": 3,
    "start": 5,
    "bind": 34,
    "bind again": 16,
    "bind the one before": 3,
    "choose": 3,
    "sicken": 1.5,
    "heal": 2,
    "lose card": 0.8,
    "find card": 2,
    "move card": 0.5,
    "recreate node": 0.4,
    "kill": 0.5,
    "stop": 0.4,
    "pause": 0.8,
    "suspend": 0.4,
    "jump": 0.4,
    "down": 0.4,
    "slow": 0.4,
    "slow answers": 0.4,
    "full": 0.3,
    "lag": 0.6,
    "cut": 1.5,
    "stall": 1.0,
    "compact": 0.6,
    "wait": 1.0,
}


class Step(msgspec.Struct, frozen=True):
    """After ``delay`` seconds, ``kind`` happens; ``a`` and ``b`` are drawn from 0 to 1."""

    delay: float
    kind: str
    a: float
    b: float


def plan(seed: str, count: int) -> list[Step]:
    """A history: some troubles are left out of each, so that others are seen for longer (swarm testing)."""
    rng = random.Random(seed)
    weights = {kind: w * (rng.choice((0, 0.5, 1, 3)) if w <= 5 else 1) for kind, w in WEIGHTS.items()}
    pace = rng.choice((0.02, 0.1, 0.4))
    kinds = rng.choices(list(weights), list(weights.values()), k=count)
    return [Step(round(rng.expovariate(1 / pace), 4), k, _draw(rng), _draw(rng)) for k in kinds]


def _draw(rng: random.Random) -> float:
    return int(rng.random() * 10_000) / 10_000


class Players:
    """``nodes`` have two GPUs and a network card each."""

    def __init__(
        self, kernel: Kernel, store: Store, server: Server, replicas: list[Replica], nodes: list[str], chance: Chance
    ) -> None:
        self._kernel, self._store, self._server = kernel, store, server
        self._replicas, self._nodes, self._chance = replicas, nodes, chance
        self._uids = 0
        self._asked: list[BindingArgs] = []
        self._before: list[BindingArgs] = []  # calls for pods that may have been created again since
        self._home = {uuid: (node, i) for node in nodes for i, uuid in enumerate(_uuids(node))}
        self._acts: dict[str, Callable[[Step], None]] = {
            "create": self._create,
            "delete": self._delete,
            "recreate": self._recreate,
            "finish": self._finish,
            "start": self._start,
            "bind": self._bind,
            "bind again": self._bind_again,
            "bind the one before": self._bind_before,
            "choose": self._choose,
            "sicken": lambda s: self._phase(s, "Unhealthy"),
            "heal": lambda s: self._phase(s, "Available"),
            "lose card": self._lose,
            "find card": self._find,
            "move card": self._move,
            "recreate node": self._recreate_node,
            "kill": self._kill,
            "stop": self._stop,
            "pause": lambda s: self._pause(s, clock=True),
            "suspend": lambda s: self._pause(s, clock=False),
            "jump": self._jump,
            "down": lambda s: self._weather(s, "down", 20),
            "slow": lambda s: self._weather(s, "slow", 60),
            "slow answers": lambda s: self._weather(s, "slow answers", 60),
            "full": lambda s: self._weather(s, "full", 40),
            "lag": self._lag,
            "cut": lambda s: server.cut_watches(s.a),
            "stall": lambda s: server.stall_watch(s.a, s.b * 60),
            "compact": lambda s: store.compact(),
            "wait": lambda s: None,
        }

    def begin(self) -> None:
        for uuid in self._home:
            self._report(uuid)

    def pause_before(self, step: Step) -> float:
        return step.delay + (step.a * 40 if step.kind == "wait" else 0)

    def play(self, step: Step) -> None:
        self._acts[step.kind](step)

    # ── a user ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _create(self, step: Step) -> None:
        name = f"p{int(step.a * _NAMES)}"
        if name in self._store.collections[PODS]:
            return
        self._uids += 1
        made = shapes.pod(name, f"u{self._uids}", int(step.b * len(shapes.SHAPES)), self._kernel.now)
        self._store.create(PODS, name, made)

    def _delete(self, step: Step) -> None:
        pod = self._pick(step.a)
        if pod is None:
            return
        name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
        if step.b < 0.5:  # by force, or nobody has to end it
            self._store.delete(PODS, name)
            return
        self._store.update(PODS, name, lambda p: p["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"))
        self._kernel.after(step.b * 40, lambda: self._ended(name, uid))

    def _ended(self, name: str, uid: str) -> None:
        pod = self._store.collections[PODS].get(name)
        if pod is not None and pod["metadata"]["uid"] == uid:
            self._store.delete(PODS, name)

    def _recreate(self, step: Step) -> None:
        pod = self._pick(step.a)
        if pod is not None:
            name = pod["metadata"]["name"]
            self._store.delete(PODS, name)
            self._uids += 1
            shape = int(step.b * len(shapes.SHAPES))
            self._store.create(PODS, name, shapes.pod(name, f"u{self._uids}", shape, self._kernel.now))

    # ── kube-scheduler ───────────────────────────────────────────────────────────────────────────────────────────

    def _bind(self, step: Step) -> None:
        pod = self._pick(step.a, lambda p: not p["spec"].get("nodeName"))
        if pod is None:
            return
        meta = pod["metadata"]
        args = BindingArgs(meta["name"], "default", meta["uid"], self._node(step.b))
        self._asked = [*self._asked[-5:], args]
        self._before = [*self._before[-40:], args]
        self._call(args)

    def _bind_again(self, step: Step) -> None:
        if self._asked:
            args = self._asked[int(step.a * len(self._asked))]
            self._call(args if step.b < 0.5 else msgspec.structs.replace(args, node=self._node(step.b * 2 - 1)))

    def _bind_before(self, step: Step) -> None:
        if self._before:
            args = self._before[int(step.a * len(self._before))]
            self._call(msgspec.structs.replace(args, node=self._node(step.b)))

    def _call(self, args: BindingArgs, tries: int = 3) -> None:
        """What fails is tried again soon, on the same node or on another."""

        def failed() -> None:
            what = f"again {args.pod_uid}"
            node = self._node(self._chance.unit(what))
            if tries and self._chance.unit(what) < _STUBBORN:
                again = msgspec.structs.replace(args, node=node)
                self._kernel.after(self._chance.between(what, 0.02, 1), lambda: self._call(again, tries - 1))

        for replica in self._replicas:
            replica.bind(args, failed)

    # ── kubelet and agents ───────────────────────────────────────────────────────────────────────────────────────

    def _finish(self, step: Step) -> None:
        pod = self._pick(step.a, _bound)
        if pod is not None:
            phase = "Succeeded" if step.b < 0.5 else "Failed"
            self._store.update(PODS, pod["metadata"]["name"], lambda p: p["status"].update(phase=phase))

    def _start(self, step: Step) -> None:
        pod = self._pick(step.a, _bound)
        if pod is not None and pod["status"]["phase"] == "Pending":
            self._store.update(PODS, pod["metadata"]["name"], lambda p: p["status"].update(phase="Running"))

    def _choose(self, step: Step) -> None:
        """Kubelet took another card of the node for the pod, and the agent says so."""
        pod = self._pick(step.a, lambda p: _bound(p) and PLACEMENT in p["metadata"]["annotations"])
        if pod is None:
            return
        placed = json.loads(pod["metadata"]["annotations"][PLACEMENT])
        gpus = [u for u, (node, _) in self._home.items() if node == placed["node"] and u.startswith("GPU")]
        turn = 1 + int(step.b * (len(gpus) - 1))
        for container in placed["containers"].values():
            for part in container["slices"]:
                if part["card"] in gpus:
                    part["card"] = gpus[(gpus.index(part["card"]) + turn) % len(gpus)]
        text = json.dumps(placed)
        self._store.update(
            PODS, pod["metadata"]["name"], lambda p: p["metadata"]["annotations"].update({_CHOICE: text})
        )

    def _phase(self, step: Step, phase: str) -> None:
        name = self._card(step.a)
        if name is not None:
            self._store.update(CARDS, name, lambda c: c["status"].update(phase=phase))

    def _lose(self, step: Step) -> None:
        name = self._card(step.a)
        if name is not None:
            self._store.delete(CARDS, name)

    def _find(self, step: Step) -> None:
        lost = [u for u in self._home if u.lower() not in self._store.collections[CARDS]]
        if lost:
            self._report(lost[int(step.a * len(lost))])

    def _move(self, step: Step) -> None:
        """Somebody carries a card to another machine: its object goes, and another one comes. An object that changes
        its node is refused by the API server (33-devices.yaml)."""
        gpus = [uuid for uuid in self._home if uuid.startswith("GPU")]  # other devices have their node in their id
        uuid = gpus[int(step.a * len(gpus))]
        self._home[uuid] = self._node(step.b), 2 + self._home[uuid][1] % 2
        self._store.delete(CARDS, uuid.lower())
        self._kernel.after(step.b * 10 % 1 * 5, lambda: self._report(uuid))

    def _recreate_node(self, step: Step) -> None:
        """Its cards go and come; its pods go with it, or some time later."""
        node = self._node(step.a)
        for pod in list(self._store.collections[PODS].values()):
            if pod["spec"].get("nodeName") == node:
                name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
                self._kernel.after(step.b * 30, lambda name=name, uid=uid: self._ended(name, uid))
        for uuid, (home, _) in self._home.items():
            if home == node:
                self._store.delete(CARDS, uuid.lower())
                self._kernel.after(step.b * 5, lambda uuid=uuid: self._report(uuid))

    def _report(self, uuid: str) -> None:
        node, index = self._home[uuid]
        if uuid.lower() not in self._store.collections[CARDS]:
            made = shapes.card(uuid, node, index, uid=f"{uuid}-{self._store.revision}")
            self._store.create(CARDS, uuid.lower(), made)

    # ── bad luck ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _kill(self, step: Step) -> None:
        replica = self._replica(step.a)
        replica.kill()
        self._kernel.after(step.b * 10, replica.begin)

    def _stop(self, step: Step) -> None:
        replica = self._replica(step.a)
        replica.stop()

    def _pause(self, step: Step, *, clock: bool) -> None:
        replica = self._replica(step.a)
        machine = replica.machine
        machine.pause(clock=clock)
        self._kernel.after(step.b**2 * 60, machine.resume)

    def _jump(self, step: Step) -> None:
        self._replica(step.a).jump = (step.b - 0.5) * 1e6

    def _weather(self, step: Step, kind: str, longest: float) -> None:
        self._server.weather.until[kind] = self._kernel.now + step.a * longest

    def _lag(self, step: Step) -> None:
        self._server.weather.lag = step.a**3 * 8

    # ── choices ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _pick(self, draw: float, fits: Callable[[Object], bool] = lambda p: True) -> Object | None:
        found = [p for p in self._store.collections[PODS].values() if fits(p)]
        return found[int(draw * len(found))] if found else None

    def _node(self, draw: float) -> str:
        return self._nodes[int(draw * len(self._nodes)) % len(self._nodes)]

    def _card(self, draw: float) -> str | None:
        names = list(self._store.collections[CARDS])
        return names[int(draw * len(names))] if names else None

    def _replica(self, draw: float) -> Replica:
        """The one that leads more often than others."""
        leading = [r for r in self._replicas if r.term is not None]
        return leading[0] if leading and draw < 0.7 else self._replicas[int(draw * 1000) % len(self._replicas)]


def _uuids(node: str) -> list[str]:
    return [f"GPU-{node}-0", f"GPU-{node}-1", f"infiniband-0.{node}"]


def _bound(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"]["phase"] in ("Pending", "Running")
