"""From what was seen in a round to its figures, and from rounds to verdicts. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from math import ceil

import msgspec

from tests.load.scenarios import Scenario

CONTROL_PLANE, SCHEDULER = "control-plane", "kube-scheduler"


class Used(msgspec.Struct, frozen=True):
    """Processor time of a process since its start, in seconds, and its resident memory, in bytes."""

    processor: float
    resident: int


class Share(msgspec.Struct, frozen=True):
    """What a program took in a round: ms of processor time for each pod, and its memory at the end, in MB (10^6)."""

    ms: float
    megabytes: float


class Times(msgspec.Struct, frozen=True):
    """Of one verb, in ms, inside the control plane."""

    calls: int
    p50: float
    p99: float


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round of a row. ``rate``: pods bound per second, from the first that was bound to the last. ``created``: pods
    created per second. ``writes``: API writes for each pod, by who and what. ``attempts``: of kube-scheduler, by their
    outcome. ``nominations``: of placement over all nodes, by what became of them, for each pod. ``alone``: share
    of the filter's calls that were about one node. ``algorithm``: ms of kube-scheduler's choice of a node, extender
    included, for each pod."""

    scenario: str
    number: int
    nodes: int
    pods: int
    rate: float
    created: float
    seconds: float
    load: float
    programs: dict[str, Share]
    verbs: dict[str, Times] = {}
    writes: dict[str, dict[str, float]] = {}
    attempts: dict[str, int] = {}
    nominations: dict[str, float] = {}
    alone: float = 0.0
    algorithm: float = 0.0

    def of(self, program: str) -> Share:
        return self.programs.get(program, Share(0.0, 0.0))


class Verdict(msgspec.Struct, frozen=True):
    """A figure beside its bar."""

    what: str
    value: float
    bar: float
    most: bool  # the bar is the most that it may be, not the least

    @property
    def met(self) -> bool:
        return self.value <= self.bar if self.most else self.value >= self.bar


def rate_of(bound: Sequence[float]) -> float:
    """Pods per second from the first to the last, of the instants at which they were bound."""
    span = max(bound) - min(bound)
    return (len(bound) - 1) / span if span else 0.0


def shares(before: Mapping[str, Used], after: Mapping[str, Used], pods: int) -> dict[str, Share]:
    """Of the programs that ran all the time."""
    return {
        name: Share((after[name].processor - used.processor) * 1000 / pods, after[name].resident / 1e6)
        for name, used in before.items()
        if name in after
    }


def percentile(values: Sequence[float], percent: float) -> float:
    """The smallest value that so many percent are not above (nearest rank)."""
    return sorted(values)[max(0, ceil(len(values) * percent / 100) - 1)]


_VERB = re.compile(rb" (filter|prioritize|bind|preempt) pod=.* ms=([0-9.]+)")


def verbs_of(lines: Iterable[bytes]) -> dict[str, Times]:
    """The times of the control plane's verbs, from its log, which has a line for each decision."""
    times: dict[str, list[float]] = {}
    for line in lines:
        if found := _VERB.search(line):
            times.setdefault(found[1].decode(), []).append(float(found[2]))
    return {verb: Times(len(some), percentile(some, 50), percentile(some, 99)) for verb, some in sorted(times.items())}


_ASKED = re.compile(rb" filter pod=.* asked=([0-9]+) ")


def alone(lines: Iterable[bytes]) -> float:
    """The share of the filter's calls that were about one node: where a nomination was seen in time, from the log."""
    asked = [int(found[1]) for line in lines if (found := _ASKED.search(line))]
    return sum(count == 1 for count in asked) / len(asked) if asked else 0.0


_SAMPLE = re.compile(r"^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? ([^ ]+)$", re.MULTILINE)
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


def sums(page: str, name: str, label: str) -> dict[str, float]:
    """The samples of one metric, added up by one of its labels."""
    found: dict[str, float] = {}
    for sample in _SAMPLE.finditer(page):
        if sample[1] == name:
            key = dict(_LABEL.findall(sample[2] or "")).get(label, "")
            found[key] = found.get(key, 0.0) + float(sample[3])
    return found


def best(rounds: Iterable[Round], scenario: str) -> Round | None:
    """The fastest round of a row: other work on the machine only ever slows one down."""
    return max((r for r in rounds if r.scenario == scenario), key=lambda r: r.rate, default=None)


def mean_rate(rounds: Iterable[Round], scenario: str) -> float:
    """All pods of a row by all its time."""
    mine = [r for r in rounds if r.scenario == scenario]
    return sum(r.pods for r in mine) / sum(r.pods / r.rate for r in mine) if mine else 0.0


def verdicts(rounds: Sequence[Round], table: Iterable[Scenario], user: str) -> list[Verdict]:
    """Every bar of the rows that were played. ``user``: as whom the control plane writes."""
    found: list[Verdict] = []
    for row in table:
        mine, other = best(rounds, row.name), best(rounds, row.against)
        if mine is None:
            continue
        if row.bar is not None and other is not None:
            what = f"{mine.nodes} nodes: {row.name}, pods per second against {row.against}"
            found.append(Verdict(what, mine.rate / other.rate, row.bar, most=False))
        if row.cpu_bar is not None:
            least = min(r.of(SCHEDULER).ms for r in rounds if r.scenario == row.name)
            what = f"{mine.nodes} nodes: {row.name}, ms of kube-scheduler for a pod"
            found.append(Verdict(what, least, row.cpu_bar, most=True))
        if row.writes_bar is not None:
            most = max(sum(r.writes.get(user, {}).values()) for r in rounds if r.scenario == row.name)
            what = f"{mine.nodes} nodes: {row.name}, API writes of the control plane for a pod"
            found.append(Verdict(what, most, row.writes_bar, most=True))
        found += _served(mine, row)
    return found


def _served(mine: Round, row: Scenario) -> list[Verdict]:
    """What the control plane's own bars say of a row whose pods come at a pace."""
    found: list[Verdict] = []
    if row.verb_bar is not None:
        found += [
            Verdict(f"{mine.nodes} nodes: {row.name}, p99 of {verb} in ms", times.p99, row.verb_bar, most=True)
            for verb, times in mine.verbs.items()
        ]
    if row.memory_bar is not None:
        what = f"{mine.nodes} nodes: {row.name}, MB of the control plane"
        found.append(Verdict(what, mine.of(CONTROL_PLANE).megabytes, row.memory_bar, most=True))
    return found
