"""A scene: one simulated host with two cards, containers with their terms, an arbiter, and players with roles in them
(player.h). shares/conductor.c runs it under the virtual clock, so that times are exact and the machine's load has no
effect, or in real time if the arbiter's own speed matters. What each container got is read from simgpu's accounts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

NATIVE = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(NATIVE / "tests" / "interposer"))

import container as layout  # noqa: E402
import suite  # noqa: E402

OUT = Path(os.environ.get("OUT", "build")).resolve()
USE_CARDS = (
    "work",
    "fresh",
    "contexts",
    "stops",
    "multi",
    "ring",
    "persistent",
    "service",
    "nvml",
    "full",
    "rooted",
    "closer",
    "boxed",
    "liar",
    "held",
    "old_events",
    "many_streams",
    "capture_beside",
    "capture_ends",
    "own_stream",
    "host_nodes",
    "graph_waits",
    "graph_never",
    "graph_sleeps",
)  # the library is preloaded
A, B = "GPU-00000000-0000-4000-8000-000000000001", "GPU-00000000-0000-4000-8000-000000000002"
MODEL = {"model": "NVIDIA A100-SXM4-40GB", "memoryMiB": 40960, "smCount": 108}


def host_of(count: int) -> list[dict]:
    """The cards of a host; the first two are A and B."""
    return [
        {"uuid": f"{A[:-1]}{i + 1}", "index": i, "pciBusID": f"00000000:{7 + 8 * i:02x}:00.0", **MODEL}
        for i in range(count)
    ]


PACED = 1  # flag of a card: other containers have shares


@dataclass(frozen=True)
class Terms:
    """The terms of a container, the same on both cards."""

    cores: int = 0
    limit: int = 0
    weight: int = 0
    priority: int = 0
    flags: int = PACED


@dataclass(frozen=True)
class Part:
    """The role of one process of a container; `words` are those of player.h. Times are in ms."""

    container: str
    role: str
    words: str = ""
    arrive: int = 0
    depart: int | None = None
    processes: int = 1


@dataclass
class Books:
    """GPU time and kernels of each container at each sample."""

    at: list[int] = field(default_factory=list[int])
    gpu: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    launches: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    latencies: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    written: dict[str, str] = field(default_factory=dict[str, str])  # files that players wrote, by name
    regions: dict[str, bytes] = field(default_factory=dict[str, bytes])  # the containers' regions at the end

    def share(self, container: str, begin: int, end: int) -> float:
        """Percent of the first card's time between two samples."""
        i, j = self.at.index(begin), self.at.index(end)
        return (self.gpu[container][j] - self.gpu[container][i]) / ((end - begin) * 1e4)

    def kernels(self, container: str, begin: int, end: int) -> int:
        """Kernels on both cards."""
        i, j = self.at.index(begin), self.at.index(end)
        return self.launches[container][j] - self.launches[container][i]

    def status(self) -> dict:
        return json.loads(self.written["status"].split("\n", 1)[1])

    def memory_kib(self) -> int:
        """The arbiter's peak memory."""
        return int(self.written["status"].split("\n", 1)[0])

    def events(self) -> dict[str, int]:
        """Counts of events: "container kind" -> count."""
        return {f"{e['slice']} {e['kind']}": e["count"] for e in self.status()["events"]}

    def account(self, container: str, name: str) -> int:
        """Sum over the slots of the container's region, first card."""
        data, at = self.regions[container], layout.Container.there(Path(), [A, B])
        return sum(layout.get(data, "account", name, at.account(i, 0)) for i in range(at.slots))


def play(
    containers: dict[str, Terms],
    parts: list[Part],
    window: int = 3000,
    *,
    real: bool = False,
    sample: int = 50,
    cards: int = 2,
) -> Books:
    """Runs the scene. Raises Skip if the programs were not built."""
    player, conductor = OUT / "tests/arbiter/player", OUT / "shares/conductor"
    if not player.exists() or not conductor.exists():
        raise suite.Skip("make check builds the player and the conductor")
    shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    root = Path(tempfile.mkdtemp(prefix="scene-", dir=shm))
    try:
        case = _prepare(root, containers, parts, window, sample, host_of(cards))
        out = _conduct(root, [conductor, player], case, real, patience=window / 1000 + 50)
        books = _parse(out, [p.container for p in parts])
        books.written = {p.name: p.read_text() for p in (root / "out").iterdir()}
        books.regions = {c: (root / "slices" / c / "shared/region").read_bytes() for c in containers}
        return books
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _prepare(
    root: Path, containers: dict[str, Terms], parts: list[Part], window: int, sample: int, cards: list[dict]
) -> str:
    (root / "cards.json").write_text(json.dumps(cards))
    (root / "out").mkdir()
    for name, terms in containers.items():
        c = layout.Container(root / "slices" / name, {c["uuid"]: 8 << 30 for c in cards}, context=256 << 20)
        for i in range(len(cards)):
            c.write(c.limits, "limits_card", c.limits_card(i), cores=terms.cores, cores_limit=terms.limit)
            c.write(c.limits, "limits_card", c.limits_card(i), weight=terms.weight, flags=terms.flags)
        c.write(c.limits, "limits", priority=terms.priority)
    arbiter = OUT / "virtual/arbiter/fractile-arbiter"
    lines = ["deaths", f"window {window}", f"sample {sample}", f"arbiter {arbiter} {root / 'slices'}"]
    for p in parts:
        library = OUT / "virtual/interposer/libfractile.so" if p.role in USE_CARDS else "-"
        words = p.words.replace("ROOT", str(root)).replace("ARBITER", str(arbiter))
        depart = window if p.depart is None else p.depart
        where = f"{p.container} {root / 'slices' / p.container} {library}"
        lines.append(f"tenant {where} {p.arrive} {depart} {p.processes} role={p.role} {words}")
    return "\n".join(lines) + "\n"


def _conduct(root: Path, command: list[Path], case: str, real: bool, patience: float) -> str:
    environment = dict(os.environ, SIMGPU_DIR=str(root), LD_LIBRARY_PATH=str(OUT / "simgpu"), SIMGPU_CONTENTS_MIB="0")
    environment |= {} if real else {"SIMGPU_CLOCK": "virtual"}
    if real:
        (root / "clock-bell.0").touch()  # tells the conductor that the arbiter is running
    p = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True
    )
    try:
        out, err = p.communicate(case, timeout=patience)
    except subprocess.TimeoutExpired:
        p.kill()  # its children die with it
        _, err = p.communicate()
        raise AssertionError(f"not done after {patience:.0f} s: {err[-600:]}") from None
    assert p.returncode == 0, err[-600:]
    return out


def _parse(out: str, names: list[str]) -> Books:
    books = Books(gpu={n: [] for n in names}, launches={n: [] for n in names})
    for words in map(str.split, out.splitlines()):
        if words[0] in ("longest", "processor"):
            continue
        if words[0] == "latency":
            books.latencies[words[1]] = [int(w) for w in words[2:]]
            continue
        books.at.append(int(words[1]))
        # One container's players share a sum.
        row = dict(zip(names, zip(words[2::2], words[3::2], strict=True), strict=False))
        for name, (gpu, launches) in row.items():
            books.gpu[name].append(int(gpu))
            books.launches[name].append(int(launches))
    return books


def near(got: float, wanted: float, points: float = 2.5) -> None:
    assert abs(got - wanted) <= points, f"{got:.1f}, not {wanted}"


def status_at(window: int, container: str) -> Part:
    """A player that queries the arbiter's status at the end."""
    return Part(container, "status", "out=ROOT/out/status slices=ROOT/slices", arrive=window - 50)
