"""One short history: it is played, then all trouble ends, and after a while the books must agree."""

import random
from collections.abc import Callable, Sequence

import msgspec

from tests.history import shapes
from tests.history.judge import Judge, held_by
from tests.history.kernel import Kernel
from tests.history.players import Players, Step, plan
from tests.history.replica import SLOTS, Parts, Replica, Term
from tests.history.server import Chance, Server, Weather
from tests.history.store import CLASSES, PODS, Object, Store

STEPS = 1500
_REST = 260.0  # seconds: a hold of unknown outcome, a watch that is silent, a lease, one after the other


class Found(msgspec.Struct, frozen=True):
    """What an episode showed. ``operations``: steps, and calls that the server got."""

    operations: int
    overallocations: tuple[str, ...] = ()
    leaks: tuple[str, ...] = ()
    ghosts: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()  # nobody leads, a program has ended, books that contradict themselves
    bound: int = 0

    @property
    def wrong(self) -> tuple[str, ...]:
        return (*self.overallocations, *self.leaks, *self.ghosts, *self.broken)

    @property
    def kinds(self) -> frozenset[str]:
        return frozenset(sentence.partition(":")[0] for sentence in self.wrong)


def history(seed: int, episode: int) -> list[Step]:
    return plan(f"{seed}/{episode}", STEPS)


def play(
    seed: int,
    episode: int,
    steps: Sequence[Step],
    parts: Parts | None = None,
    *,
    say: Callable[[str], None] | None = None,
) -> Found:
    """The history, on a new cluster whose luck comes from the seed. ``say`` is told of each step and write."""
    rng = random.Random(f"{seed}/{episode}/world")
    kernel, chance, judge = Kernel(), Chance(f"{seed}/{episode}"), Judge(SLOTS)
    store = Store(judge.wrote if say is None else in_turn(judge.wrote, told(kernel, say)))
    weather = Weather(until={}, bad=rng.choice((1.0, 5.0, 20.0, 40.0, 60.0)), lag=rng.choice((0.01, 0.1, 1.0)))
    server = Server(kernel, store, chance, weather, say)
    server.policy = parts is None or parts.policy
    nodes = [f"n{i}" for i in range(rng.choice((1, 2, 3)))]
    replicas = [Replica(kernel, server, f"r{i}", parts or Parts()) for i in range(rng.choice((1, 2, 3)))]
    weather.unsure = rng.choice((0.0, 0.0, 0.0, 50.0))
    players = Players(kernel, store, server, replicas, nodes, chance)
    for each in shapes.classes():
        store.create(CLASSES, each["metadata"]["name"], each)
    players.begin()
    kernel.run(15.0)
    for step in steps:
        kernel.run(kernel.now + players.pause_before(step), stop=lambda: bool(judge.violations))
        if judge.violations:
            break
        if say is not None:
            say(f"{kernel.now:9.3f}  {step.kind} {step.a} {step.b}")
        players.play(step)
    if not judge.violations:
        _calm(kernel, server, replicas)
    operations = len(steps) + server.served
    found = Found(operations, overallocations=tuple(judge.violations[:1]), bound=judge.most)
    if not judge.violations:
        found = _compare(found, store, judge, replicas)
    for replica in replicas:
        replica.kill()
    return found


def _calm(kernel: Kernel, server: Server, replicas: Sequence[Replica]) -> None:
    server.weather.bad, server.weather.lag = 0.0, 0.02
    server.weather.until.clear()
    for replica in replicas:
        replica.machine.resume()
    kernel.run(kernel.now + _REST)


def _compare(found: Found, store: Store, judge: Judge, replicas: Sequence[Replica]) -> Found:
    crashes = [f"ended: {r.name} {e!r}" for r in replicas for e in r.failures()]
    leading = [r.term for r in replicas if r.term is not None and r.term.ready]
    if len(leading) != 1 or crashes:
        return msgspec.structs.replace(found, broken=(*crashes, f"leading: {len(leading)} replicas are ready"))
    term = leading[0]
    held = dict(term.ledger.entries())
    wanted = judge.holds
    leaks = [f"leak: {uid} holds {held[uid].placement}" for uid in sorted(held.keys() - wanted.keys())]
    ghosts = [f"ghost: {uid} is not charged for {wanted[uid]}" for uid in sorted(wanted.keys() - held.keys())]
    unbound = {
        pod["metadata"]["uid"]
        for pod in store.collections[PODS].values()
        if not pod["spec"].get("nodeName") and pod["status"]["phase"] == "Pending"
    }
    waiting = {str(pod.uid) for pod in term.waiting.oldest_first()}
    ghosts += [f"ghost: {uid} waits, and should not" for uid in sorted(waiting - unbound)]
    ghosts += [f"ghost: {uid} should wait, and does not" for uid in sorted(unbound - waiting)]
    ghosts += [f"ghost: conflict of {uid}" for uid in sorted(term.ledger.conflicts().keys() - wanted.keys())]
    leaks += _sums(term, judge)
    broken = [f"audit: {uuid}" for uuid in term.ledger.audit()]
    return msgspec.structs.replace(found, leaks=tuple(leaks), ghosts=tuple(ghosts), broken=tuple(broken))


def _sums(term: Term, judge: Judge) -> list[str]:
    """Cards of which the ledger says another thing than the sum of what the API server shows."""
    wrong: list[str] = []
    for node in {place.node for place in term.ledger.all_cards()}:
        state = term.ledger.node(node or "")
        for card in (*state.cards, *state.others) if state else ():
            size, cores, _, _ = judge.use(card.uuid)
            if card.free_memory != judge.sizes[card.uuid] - size or card.free_cores != 100 - cores:
                wrong.append(
                    f"leak: {card.uuid} has {card.free_memory} free, of {judge.sizes[card.uuid]} {size} are held"
                )
    return sorted(wrong)


def told(kernel: Kernel, say: Callable[[str], None]) -> Callable[[str, Object | None, Object | None], None]:
    """Says what is written to pods and cards."""

    def wrote(path: str, before: Object | None, after: Object | None) -> None:
        meta = (after or before or {})["metadata"]
        what = "deleted"
        if after is not None:
            spec, placed = after["spec"], held_by(after) if path == PODS else None
            phase, held = after.get("status", {}).get("phase", ""), placed[1] if placed else ""
            what = f"node={spec.get('nodeName', '')} phase={phase} {held}"
        say(f"{kernel.now:9.3f}      {path.rpartition('/')[2]} {meta['name']} {meta['uid']} {what}")

    return wrote


def in_turn(*each: Callable[[str, Object | None, Object | None], None]) -> Callable[..., None]:
    def all_of_them(path: str, before: Object | None, after: Object | None) -> None:
        for one in each:
            one(path, before, after)

    return all_of_them
